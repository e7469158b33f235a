"""What the tests of the harness share: a cache of their own, the command line as a process, environments."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

TESTS = Path(__file__).resolve().parent
SITE = Path(sysconfig.get_paths()["purelib"])

SMALL = [
    "--suite", "stability", "--device", "cpu", "--jobs", "2", "--depths", "1", "--seeds", "0",
    "--tasks", "listops[max_length=30,train=64,validation=32,test=32]",
    *(word for setting in ("d_model=8", "steps=6", "evaluations=3", "probe=8", "noise=4", "batch=4")
      for word in ("--set", setting)),
]  # fmt: skip
"""A cell of the suite `stability` that is done at once."""


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Nothing that a test does touches the user's cache; what one test makes the next one finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Where tests run side by side each has a core: threads of several would wait for each other at every operation."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        threadpool_limits(1)
        with contextlib.suppress(ModuleNotFoundError):
            import torch

            torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """Ctrl-C reaches what the tests start, even where they themselves run in a shell's background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def quick_compilation():
    """Half the time for jax. Compiled as users get them, layers are tested in test_reference_files."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


class Bench:
    """The console command as a process of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.command, self.folder = command, folder

    def __call__(self, *words: str | Path, expect: int | None = 0, **environment: str | None):
        """Runs it and checks its exit status; `environment` adds variables, or with None takes them away."""
        done = subprocess.run(
            [*self.command, *map(str, words)],
            cwd=self.folder,
            env=_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if expect is not None:
            assert done.returncode == expect, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *words: str | Path, **environment: str | None) -> subprocess.Popen[str]:
        """Runs it and goes on."""
        return subprocess.Popen(
            [*self.command, *map(str, words)],
            cwd=self.folder,
            env=_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def refused(self, *words: str | Path, **environment: str | None) -> str:
        """The one line with which a wrong command is refused; nothing may have been made."""
        before = sorted(self.folder.rglob("*"))
        done = self(*words, expect=2, **environment)
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("bench: ")
        assert done.stdout == ""
        assert sorted(self.folder.rglob("*")) == before
        return lines[0]


def _environment(changes: dict[str, str | None]) -> dict[str, str]:
    """One thread, so that the number of jobs does not show in the last digits; jax compiles in half the time."""
    common = {"OMP_NUM_THREADS": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    found = os.environ | common | {k: v for k, v in changes.items() if v is not None}
    dropped = {"FORCE_COLOR", "PYTHONPATH", "BENCH_DATA"} - changes.keys()
    return {k: v for k, v in found.items() if k not in dropped and changes.get(k, v) is not None}


@pytest.fixture(scope="session")
def bench_in() -> Callable[[Path], Bench]:
    """The console command, given in a folder."""
    script = Path(sysconfig.get_path("scripts"), "bench")
    return lambda folder: Bench([str(script)], folder)


@pytest.fixture
def bench_here(bench_in, tmp_path) -> Bench:
    """The console command, given in an empty folder."""
    return bench_in(tmp_path)


@pytest.fixture(scope="session")
def plugins() -> Path:
    """The folder with plugin files."""
    return TESTS / "plugins"


@pytest.fixture(scope="session")
def environment_without(tmp_path_factory) -> Callable[..., Callable[[Path], Bench]]:
    """An environment like the one that the tests run in, without some packages: links to all that is installed."""

    def make(*missing: str) -> Callable[[Path], Bench]:
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        for entry in SITE.iterdir():
            if not entry.name.startswith(missing or ("-",)):
                (site / entry.name).symlink_to(entry)
        script = folder / "bin" / "bench"
        shutil.copy(Path(sysconfig.get_path("scripts"), "bench"), script)
        python = folder / "bin" / "python"
        script.write_text(f"#!{python}\n" + script.read_text().partition("\n")[2])
        return lambda place: Bench([str(script)], place)

    return make


@pytest.fixture
def own_registry(monkeypatch):
    """A registry without plugin files, which forgets what the test registers."""
    from bench import registry

    monkeypatch.setattr(registry, "_registered", {kind: [] for kind in registry.CONTRACTS})
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    return registry
