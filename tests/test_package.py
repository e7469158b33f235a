"""What is shipped: the wheel, and the code that the documents show."""

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

import bench
from bench import registry

ROOT = Path(bench.__file__).resolve().parent.parent


def call(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"bench", "models", "suites"}
    shipped = {name for name in names if name.endswith(".py")}
    tracked = {
        path.relative_to(ROOT).as_posix() for p in ("bench", "models", "suites") for path in (ROOT / p).rglob("*.py")
    }
    assert shipped == tracked
    assert {f"bench/report/web/{path.name}" for path in (ROOT / "bench" / "report" / "web").iterdir()} <= set(names)


def test_the_wheel_works_in_an_empty_environment_from_an_empty_folder(wheel, tmp_path):
    """Only its own dependencies are lent to the new environment, from the one that runs this test: no download."""
    where = tmp_path / "venv"
    venv.create(where, with_pip=False)
    python = where / "bin" / "python"
    site = Path(call(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    call(
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        str(wheel),
        cwd=tmp_path,
    )
    own = Path(sysconfig.get_path("purelib"))
    for entry in own.iterdir():
        if not entry.name.startswith(("linrec", "_linrec", "torch", "jax", "flax", "optax")) and entry.suffix != ".pth":
            (site / entry.name).exists() or (site / entry.name).symlink_to(entry)
    empty = tmp_path / "empty"
    empty.mkdir()
    listed = call(str(where / "bin" / "bench"), "list", "models", cwd=empty)
    for name in ("lru", "rotrnn", "s4d", "s5", "gru", "rnn", "s4", "transformer"):
        assert re.search(rf"^{name} .*models\.{name}", listed, re.MULTILINE), listed
    assert "cannot be used" not in listed
    assert call(str(where / "bin" / "linrec-bench"), "list", "models", cwd=empty) == listed
    assert "pip install" in call(str(where / "bin" / "bench"), "list", "backends", cwd=empty)  # neither is here
    assert list(empty.iterdir()) == []


def test_lower_bounds_and_constraints_name_the_same_packages():
    text = (ROOT / "pyproject.toml").read_text()
    pinned = {
        line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    bounded = {name.lower() for name in re.findall(r'^\s*"([\w-]+)>=', text, re.MULTILINE)}
    bounded |= {name.lower() for line in re.findall(r"= \[(.*)\]", text) for name in re.findall(r'"([\w-]+)>=', line)}
    assert bounded - pinned == set()


def test_the_layer_in_contributing_runs_on_every_backend(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(# mine\.py\n.*?)```", text, re.DOTALL)[1])
    registry.load_file(tmp_path / "mine.py")
    layer = bench.layer("mine", d_model=6, d_state=5)
    params = layer.init(seed=0)
    u = np.random.default_rng(0).standard_normal((2, 40, 6))
    wanted = layer.apply(params, u, backend="reference", dtype="float64")
    for backend in ("torch", "jax"):
        np.testing.assert_allclose(layer.apply(params, u, backend=backend, dtype="float64"), wanted, rtol=0, atol=1e-12)
