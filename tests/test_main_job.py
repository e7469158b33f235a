"""The main job through the console command: built-in models, a plugin file, a stranger's distribution."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import SMALL, TESTS
from safetensors.numpy import load_file

import bench
from bench import registry, store

MINE = TESTS / "plugins" / "mine.py"
TINY = [*SMALL, "--set", "d_state=8"]
PAIR = ["--models", "rotrnn,lru", "--set", "rotrnn.heads=2"]

HOSTILE = {
    "models.py": "raise SystemExit('the wrong models')",
    "bench.py": "raise SystemExit('the wrong bench')",
    "suites.py": "raise SystemExit('the wrong suites')",
    "torch.py": "raise SystemExit('the wrong torch')",
    "jax.py": "raise SystemExit('the wrong jax')",
    "signal.py": "raise SystemExit('the wrong signal')",
}


@pytest.fixture(scope="module")
def empty(bench_in, tmp_path_factory):
    """The command in the title of this project, from an empty folder, smaller: its run folder and what it printed."""
    place = tmp_path_factory.mktemp("empty")
    words = ["--models", "rotrnn,lru", "--set", "rotrnn.heads=2", "--seeds", "0,1", "--jobs", "1"]
    done = bench_in(place)("run", *TINY, *words)
    (folder,) = (place / "results").iterdir()
    return folder, done


@pytest.fixture(scope="module")
def hostile(bench_in, tmp_path_factory):
    """The LRU with both backends, seeds in another order, where files have the names of what is imported."""
    place = tmp_path_factory.mktemp("hostile")
    for name, content in HOSTILE.items():
        (place / name).write_text(content)
    words = ["--models", "lru", "--backends", "jax,torch", "--seeds", "1,0", "--jobs", "1", "--run", "both"]
    done = bench_in(place)("run", *TINY, *words, JAX_ENABLE_X64="1", JAX_DISABLE_MOST_OPTIMIZATIONS=None)
    return place / "results" / "both", done


def test_every_cell_is_ok_and_has_its_rows(empty):
    folder, done = empty
    rows = bench.read_results(folder)
    cells = rows.drop_duplicates("cell_id")
    assert cells["model"].tolist() == ["rotrnn[d_state=8,heads=2]"] * 2 + ["lru[d_state=8]"] * 2
    assert cells["seed"].tolist() == [0, 1, 0, 1]
    assert cells["state_reals"].tolist() == [8, 8, 16, 16]
    assert set(rows["status"]) == {"ok"}
    assert set(rows["run_id"]) == {folder.name}
    assert {"loss", "state_rms", "norm_paper", "drift", "gradient_norm", "largest_modulus"} <= set(rows["metric"])
    assert rows["value"].notna().mean() > 0.9
    never_null = [name for name in (store.CELL_COLUMNS | store.END_COLUMNS) if name not in ("mode", "message")]
    assert rows[never_null].notna().all().all()
    assert "Cells: 4 ok" in done.stdout


def test_a_run_is_a_folder_with_its_plan_cells_environment_and_parameters(empty):
    folder, _ = empty
    assert sorted(path.name for path in folder.iterdir()) == ["cells", "environments", "params", "run.json"]
    plan = json.loads((folder / "run.json").read_text())
    ids = [cell["id"] for cell in plan["cells"]]
    assert sorted(path.stem for path in folder.glob("cells/*")) == sorted(ids)
    assert sorted(path.stem for path in folder.glob("params/*")) == sorted(ids)
    assert plan["command"][:3] == ["run", "--suite", "stability"]
    assert plan["packages"]["torch"]
    (environment,) = folder.glob("environments/*.json")
    assert set(bench.read_results(folder)["env_id"]) == {environment.stem}
    for file in folder.glob("params/*"):
        assert all(np.isfinite(value).all() for value in load_file(file).values())


def test_names_in_the_working_folder_change_nothing(hostile):
    folder, done = hostile
    rows = bench.read_results(folder)
    assert set(rows["status"]) == {"ok"}
    assert "the wrong" not in done.stdout + done.stderr
    assert len(rows.drop_duplicates("cell_id")) == 4


def test_a_cell_measured_again_in_another_order_has_the_same_numbers_to_the_last_bit(empty, hostile):
    index = ["cell_id", "metric", "step", "layer", "t", "head", "split"]
    frames = []
    for folder in (empty[0], hostile[0]):
        rows = bench.read_results(folder)
        rows = rows[(rows["backend"] == "torch") & (rows["model"] == "lru[d_state=8]")].sort_values(index)
        frames.append(rows[[*index, "value", "unit", "threads", "facts"]].reset_index(drop=True))
    assert len(frames[0]) > 100
    pd.testing.assert_frame_equal(*frames, check_exact=True)
    for cell_id in frames[0]["cell_id"].unique():
        here, there = (load_file(f / "params" / f"{cell_id}.safetensors") for f in (empty[0], hostile[0]))
        assert {key: value.tobytes() for key, value in here.items()} == {k: v.tobytes() for k, v in there.items()}


def test_seed_zero_differs_from_seed_one_in_data_and_in_weights(empty):
    rows = bench.read_results(empty[0])
    for model in rows["model"].unique():
        zero, one = (rows[(rows["model"] == model) & (rows["seed"] == seed)] for seed in (0, 1))
        assert json.loads(zero["facts"].iloc[0])["data_sha256"] != json.loads(one["facts"].iloc[0])["data_sha256"]
        moduli = [part[part["metric"] == "largest_modulus"]["value"].iloc[0] for part in (zero, one)]
        assert moduli[0] != moduli[1]
    facts = rows.drop_duplicates("cell_id").groupby("seed")["facts"].nunique()
    assert facts.tolist() == [1, 1], "models are compared on the same data"


def test_torch_and_jax_start_from_the_same_network_and_stay_close(hostile):
    """float32 accuracy at the start; six steps of training let rounding grow by a small factor."""
    rows = bench.read_results(hostile[0])
    start = rows[(rows["metric"] == "state_rms") & (rows["step"] == 0)]
    table = start.pivot(index=["seed", "layer", "t"], columns="backend", values="value").dropna()
    assert len(table) > 6
    assert np.allclose(table["torch"], table["jax"], rtol=1e-5)
    losses = rows[(rows["metric"] == "loss") & (rows["split"] == "train")]
    table = losses.pivot(index=["seed", "step"], columns="backend", values="value")
    assert len(table) == 12
    assert np.allclose(table["torch"], table["jax"], rtol=1e-4)


def test_x64_in_the_users_environment_does_not_make_a_float32_cell_float64(hostile):
    """The run with both backends had JAX_ENABLE_X64=1; parameters come back in the precision they were trained in."""
    rows = bench.read_results(hostile[0]).drop_duplicates("cell_id")
    for cell_id in rows[rows["backend"] == "jax"]["cell_id"]:
        kept = load_file(hostile[0] / "params" / f"{cell_id}.safetensors")
        assert {value.dtype for value in kept.values()} == {np.dtype(np.float32)}


def test_the_trained_networks_started_within_the_models_own_bounds(empty):
    rows = bench.read_results(empty[0])
    start = rows[(rows["metric"] == "largest_modulus") & (rows["step"] == 0)]
    assert start[start["model"].str.startswith("rotrnn")]["value"].between(0.9, 0.999).all()
    assert start[start["model"].str.startswith("lru")]["value"].between(0.0, 0.99).all()
    assert len(start) == 4


def test_the_report_of_the_run_is_what_bench_report_prints(empty, bench_in):
    folder, done = empty
    assert bench_in(folder.parent)("report", folder.name, "--out", ".").stdout == done.stdout


@pytest.fixture(scope="module")
def stranger(environment_without, tmp_path_factory):
    """The command in an environment into which somebody else's distribution was built and installed."""
    source = tmp_path_factory.mktemp("stranger") / "source"
    shutil.copytree(TESTS / "strangers", source, ignore=shutil.ignore_patterns("__pycache__"))
    bench_at = environment_without()
    site = next(Path(bench_at(source).command[0]).parent.parent.glob("lib/python*/site-packages"))
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site), str(source)]
    subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True, capture_output=True)
    return bench_at


@pytest.fixture(scope="module")
def together(stranger, tmp_path_factory):
    """One command: two suites, models of three origins, a stranger's task."""
    place = tmp_path_factory.mktemp("together")
    shutil.copy(MINE, place)
    words = [word if not word.startswith("listops") else "odd[bits=10]" for word in TINY]
    done = stranger(place)(
        "run", *words, "--suite", "impulse", "--models", "lru,stranger,mine,mine[slowest=10]", "--set", "averages=2",
        "--plugin", "mine.py", "--run", "both", "--jobs", "1",
    )  # fmt: skip
    return place, done


def test_a_strangers_layer_suite_and_task_run_beside_a_plugin_file(together):
    place, done = together
    rows = bench.read_results(place / "results" / "both")
    assert set(rows["status"]) == {"ok"}
    assert set(rows["suite"]) == {"stability", "impulse"}
    names = {"lru[d_state=8]", "stranger[averages=2]", "mine[d_state=8]", "mine[d_state=8,slowest=10.0]"}
    for suite in ("stability", "impulse"):
        assert set(rows[rows["suite"] == suite]["model"]) == names
    assert set(rows["task"]) == {"odd[bits=10]"}
    energies = rows[rows["suite"] == "impulse"]
    assert sorted(energies["length"].unique()) == [2, 5]
    assert (energies["value"] > 0).all()
    reals = rows.drop_duplicates("model").set_index("model")["state_reals"]
    assert reals["stranger[averages=2]"] == 2 * 8 * 2
    assert reals["mine[d_state=8]"] == 2 * 8
    assert "Memory of an impulse" in done.stdout
    assert "Stability of the hidden state" in done.stdout


def test_where_a_suite_is_not_installed_the_report_says_so_and_shows_the_rest(together, bench_in):
    place, _ = together
    done = bench_in(place)("report")
    assert "suite impulse is not installed here, so its rows are not shown" in done.stdout
    assert "Memory of an impulse" not in done.stdout
    assert "Stability of the hidden state" in done.stdout
    assert "Cells: 12 ok" in done.stdout


def test_a_plugin_that_cannot_be_imported_is_listed_with_the_reason(stranger, tmp_path):
    lines = stranger(tmp_path)("list", "models").stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("unfinished")]
    assert "cannot be used" in line
    assert "No module named 'a_package_that_nobody_has'" in line
    assert "linrec_bench_stranger.unfinished:Layer of linrec-bench-stranger" in line
    assert [line.split()[0] for line in lines if line and line.split()[0] in ("lru", "stranger")] == ["lru", "stranger"]
    text = stranger(tmp_path).refused("run", "--suite", "impulse", "--models", "unfinished")
    assert "a_package_that_nobody_has" in text


def test_one_name_registered_twice_is_an_error_that_names_both_sources(stranger, tmp_path):
    (tmp_path / "twice.py").write_text(MINE.read_text().replace('"mine"', '"lru"'))
    (tmp_path / "again.py").write_text(MINE.read_text().replace('"mine"', '"Stranger"'))
    command = ["run", "--suite", "stability", "--models"]
    text = stranger(tmp_path).refused(*command, "lru", "--plugin", "twice.py")
    assert "model 'lru' is registered twice: by models.lru:LRU of linrec-bench and Leaky in " in text
    assert "twice.py" in text
    text = stranger(tmp_path).refused(*command, "stranger", "--plugin", "again.py")
    assert "linrec_bench_stranger.layer:MovingAverage of linrec-bench-stranger and Leaky in " in text
    listed = stranger(tmp_path)("list", "models", "--plugin", "twice.py").stdout
    assert "cannot be used: model 'lru' is registered twice" in listed


def test_two_classes_of_one_file_under_one_name_are_an_error(own_registry, tmp_path):
    file = tmp_path / "two.py"
    text = MINE.read_text()
    file.write_text(text + text.partition("import bench\n")[2].replace("Leaky", "Leakier"))
    registry.load_file(file)
    with pytest.raises(ValueError, match=r"registered twice: by Leaky in .*two\.py and Leakier in .*two\.py"):
        registry.find("model", "mine")


@pytest.mark.parametrize("hiding", ["models.py", "models/__init__.py", "suites.py"])
def test_a_built_in_that_a_strangers_file_hides_is_refused_naming_that_file(hiding, bench_here, tmp_path):
    file = tmp_path / "shadow" / hiding
    file.parent.mkdir(parents=True)
    file.write_text("print('the wrong one')")
    text = bench_here.refused("run", "--suite", "stability", "--models", "lru", PYTHONPATH=str(tmp_path / "shadow"))
    assert f"is hidden by {file}: move or rename that file" in text
    listed = bench_here("list", hiding.partition("/")[0].removesuffix(".py"), PYTHONPATH=str(tmp_path / "shadow"))
    assert f"hidden by {file}" in listed.stdout
    assert "the wrong one" not in listed.stdout


def test_a_folder_of_the_users_own_called_models_goes_on_working(bench_here, tmp_path):
    """A plugin file imports from `models/` beside it, which is not the one with the built-in models."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").touch()
    shutil.copy(MINE, tmp_path / "models" / "leaky.py")
    (tmp_path / "plugin.py").write_text("from models.leaky import Leaky  # noqa: F401\n")
    listed = bench_here("list", "models", "--plugin", "plugin.py").stdout
    assert [line.split()[0] for line in listed.strip().splitlines()[2:]] == [
        "dense-linear", "dense-lru", "dense-rnn", "gru", "lru", "mine", "rnn", "rotrnn", "s4", "s4d", "s5",
        "transformer",
    ]  # fmt: skip
    assert "cannot be used" not in listed


def test_a_plugin_file_that_has_changed_is_loaded_again(own_registry, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE.read_text())
    registry.load_file(file)
    before = registry.code()["plugin mine.py"]
    assert registry.find("model", "mine")(d_model=2).d_state == 16
    file.write_text(MINE.read_text().replace("d_state: int = 16", "d_state: int = 12").replace("Leaky", "Leakier"))
    registry.load_file(file)
    assert registry.find("model", "mine")(d_model=2).d_state == 12
    assert registry.code()["plugin mine.py"] != before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("def", "SyntaxError"),
        ("import a_package_that_nobody_has", "No module named 'a_package_that_nobody_has'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_plugin_file_that_fails_is_an_error_with_its_name_and_reason(own_registry, tmp_path, content, says):
    file = tmp_path / "broken.py"
    file.write_text(content)
    with pytest.raises(ValueError) as error:
        registry.load_file(file)
    assert str(error.value).startswith(f"--plugin {file}: ")
    assert says in str(error.value)


def test_what_is_no_layer_cannot_be_used_as_one(own_registry):
    @bench.register.model("nothing")
    class Nothing:
        pass

    @bench.register.model("half")
    class Half(bench.DiagonalLayer):
        pass

    with pytest.raises(ValueError, match=r"model 'nothing' .* is no subclass of bench\.Layer"):
        registry.find("model", "nothing")
    with pytest.raises(ValueError, match="model half: Can't instantiate abstract class Half"):
        bench.layer("half")


def test_a_layer_that_lives_in_this_process_alone_is_refused_before_any_work(own_registry, tmp_path):
    @bench.register.model("local")
    class Local(registry.find("model", "lru")):
        pass

    assert bench.layer("local").layer.d_model == 64
    with pytest.raises(ValueError, match="model 'local' is registered in this process only"):
        bench.run(suite="stability", models="local", out=tmp_path / "results", device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_from_python_the_same_cells_are_measured(empty, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = bench.run(
        suite="stability", models=["lru"], device="cpu", depths=1, seeds=[0], jobs=1, out=tmp_path,
        tasks="listops[max_length=30,train=64,validation=32,test=32]",
        set={"d_model": 8, "steps": 6, "evaluations": 3, "probe": 8, "noise": 4, "batch": 4, "d_state": 8},
    )  # fmt: skip
    rows = bench.read_results(folder)
    first = bench.read_results(empty[0])
    first = first[(first["model"] == "lru[d_state=8]") & (first["seed"] == 0)]
    assert folder.parent == tmp_path
    assert set(rows["cell_id"]) == set(first["cell_id"])
    assert np.array_equal(rows["value"], first["value"], equal_nan=True)
    with pytest.raises(ValueError, match="exists; to go on with it write --resume"):
        bench.run(suite="stability", models="lru", device="cpu", run=folder.name, out=tmp_path)
    assert bench.run(resume=folder.name, out=tmp_path) == folder
    assert store.status(folder, rows["cell_id"].iloc[0]) == "ok"
