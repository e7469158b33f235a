"""The command line: what it prints, what it refuses, how it exits."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import TESTS
from packaging.requirements import Requirement
from typer.testing import CliRunner

import bench
from bench import environment, plan, registry, runner, store
from bench.cli import app
from bench.engines import local
from bench.plan import Request
from bench.progress import ProgressLines, what_varies

FAULTS = str(TESTS / "plugins" / "faults.py")
PAIR = ["run", "--suite", "stability", "--models", "rotrnn,lru", "--seeds", "0", "--depths", "1", "--device", "cpu"]


def changed(*words):
    """A command that would measure something, where options that stand in `words` replace its own."""
    base = {"--suite": "stability", "--models": "lru", "--device": "cpu"}
    return ["run", *(word for pair in base.items() if pair[0] not in words for word in pair), *words]


@pytest.fixture
def command(tmp_path, monkeypatch, own_registry):
    """The command line in this process, in an empty folder: (words) -> result."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def refused(command, tmp_path):
    """The one line with which a wrong command is refused."""

    def check(*words):
        before = sorted(tmp_path.rglob("*"))
        done = command(*words)
        assert done.exit_code == 2, done.output
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("bench: ")
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return check


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--models", "rotrn"], "unknown model 'rotrn': did you mean 'rotrnn'?"),
        (["--suite", "stabilty"], "unknown suite 'stabilty': did you mean 'stability'?"),
        (["--tasks", "listop"], "unknown task 'listop': did you mean 'listops'?"),
        (["--backends", "tensorflow"], "unknown backend 'tensorflow': allowed are jax, torch"),
        (["--preset", "fast"], "unknown preset of suite stability 'fast': "),
        (["--dtypes", "float16"], "unknown dtype 'float16'"),
        (["--match", "size"], "unknown size in --match 'size': allowed are flops, params, state"),
        (["--match", "params", "--models", "lru,s5[d_state=64]"], "--match params sets the d_state of s5"),
        (["--tokens", "0"], "--tokens is 0: a whole number, at least 1"),
        (["--tokens", "64"], "--tokens: the suite stability has no batch"),
        (["--suite", "throughput", "--tokens", "100"], "tokens = 100 is no multiple of length = 256"),
        (["--compile"], "--compile: cells of the suite stability are not compiled by torch"),
        (["--baseline", "lur"], "unknown model in --baseline 'lur': did you mean 'lru'?"),
        (["--suite", "throughput", "--jobs", "2"], "--jobs is 2: cells of the suite throughput need their device"),
        (["--models", ""], "--models is empty"),
        (["--seeds", ""], "--seeds is empty"),
        (["--suite", ","], "--suite is empty"),
        (["--tasks", ""], "--tasks is empty"),
        (["--depths", ""], "--depths is empty"),
        (["--dtypes", ""], "--dtypes is empty"),
        (["--backends", ""], "--backends is empty"),
        (["--set", ""], "--set '' should read OPTION=VALUE"),
        (["--models", "rotrnn", "--set", "heads=7"], "not heads = 7, d_state = 128"),
        (["--models", "rotrnn[heads=64,d_state=66]"], "not heads = 64, d_state = 66"),
        (["--models", "s5", "--set", "blocks=3"], "not blocks = 3, d_state = 128"),
        (["--set", "listops.max_length=0"], "max_length"),
        (["--tasks", "listops[max_length=0]"], "max_length"),
        (["--depths", "0"], "a depth must be at least 1, not 0"),
        (["--set", "hedas=4"], "unknown option in --set 'hedas'"),
        (["--device", "gpu"], "--device is 'gpu': allowed are auto, cpu, cuda, cuda:N"),
        (["--jobs", "0"], "--jobs is 0: at least 1"),
        (["--timeout", "0"], "--timeout is 0: above 0, in seconds"),
        (["--timeout", "nan"], "--timeout is nan"),
        (["--shard", "1/2"], "--shard needs --run NAME"),
        (["--run", "x", "--shard", "3/2"], "--shard is '3/2': it must read I/N with 1 <= I <= N"),
        (["--run", "a/b"], "--run 'a/b': letters, digits and . _ + - only"),
        (["--run", "../x"], "--run '../x'"),
        (["--run", ""], "--run ''"),
        (["--jobs", "two"], "Invalid value for '--jobs': 'two': allowed are whole numbers from 0; see "),
        (["--tokens", "1e3"], "Invalid value for '--tokens': '1e3': allowed are whole numbers from 0; see "),
        (["--timeout", "1h"], "Invalid value for '--timeout': '1h': allowed are numbers; see "),
        (["--thread", "2"], "No such option: --thread"),
        (["--plan=yes"], "'--plan' does not take a value; see "),
        (["--seeds"], "'--seeds' requires an argument; see "),
        (["--retry", "timeout"], "--retry goes with --resume RUN"),
        (["--data", "nowhere"], "--data nowhere: there is no such folder"),
        (["--plugin", "nowhere.py"], "there is no such file"),
        (["--out", "/proc/nowhere"], "--out /proc/nowhere: cannot write"),
        (["--out", "/dev/null/results"], "--out /dev/null/results: cannot write"),
        (["--out", "x" * 300], "File name too long"),
        (["nowhere.toml"], "nowhere.toml: No such file or directory"),
    ],
)  # fmt: skip
def test_a_wrong_command_is_one_line_and_exit_2_before_any_work(refused, words, says):
    assert says in refused(*changed(*words))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope"], "No such command 'nope'; see "),
        (["diff", "a"], "Missing argument 'B'; see "),
        (["diff", "a", "b", "--tolerance", "5%"], "'--tolerance': '5%': allowed are numbers; see "),
        (["data", "check", "digits", "--seed", "-1"], "'--seed': '-1': allowed are whole numbers from 0; see "),
        (["data", "list", "x"], "unexpected extra argument"),
    ],
)  # fmt: skip
def test_a_command_that_is_not_typed_right_is_one_line_too(refused, words, says):
    assert says in refused(*words)


@pytest.mark.parametrize("words", [[], ["data"]])
def test_without_a_command_the_help_is_shown(command, words):
    done = command(*words)
    assert done.exit_code == 2
    assert done.stderr.startswith("Usage: ")
    assert "Commands:" in done.stderr


def test_a_run_without_a_suite_is_refused_with_their_names(refused):
    assert (
        refused("run", "--models", "lru")
        == "bench: --suite is not given: name one of accuracy, memory, signal_propagation, stability, throughput"
    )


def test_an_out_that_cannot_be_written_is_refused(refused, tmp_path):
    (tmp_path / "file").touch()
    assert "--out file: cannot write" in refused(*changed("--out", "file"))
    (tmp_path / "results" / "mine").mkdir(parents=True)
    (tmp_path / "results" / "mine" / "thesis.tex").touch()
    assert "is no run" in refused(*changed("--run", "mine"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--resume", "nowhere"], "--resume nowhere: no run in results/nowhere"),
        (["--resume", ""], "no run in"),
        (["--resume", "r", "--models", "lru"], "--resume takes the plan of its run, so models cannot go with it"),
        (["--resume", "r", "--run", "s"], "so run cannot go with it"),
        (["--resume", "r", "--retry", "timeot"], "unknown status in --retry 'timeot': did you mean 'timeout'?"),
        (["--resume", "r", "--retry", ","], "--retry is empty"),
        (["--resume", "damaged"], "--resume damaged: its run.json cannot be used"),
        (["--resume", "r", "--shard", "0/1"], "--shard is '0/1'"),
    ],
)
def test_a_resume_that_cannot_be_is_refused(refused, tmp_path, words, says):
    for name, content in (("r", _run_json()), ("damaged", {"cells": []})):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "run.json").write_text(json.dumps(content))
    assert says in refused("run", *words)


def _run_json():
    request = Request.parse(suite="stability", models="lru", seeds="0", depths="1", device="cpu")
    cells = plan.cells(request, "cpu", "quick")
    prepared = runner.Prepared(
        cells, cells, cells, Path("r"), "cpu", {}, request, registry.code(), False, 1, runner.Execution()
    )
    return runner._plan(prepared, [])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("suite = [", "plan.toml: "),
        ("suites = 'stability'", "unknown key in plan.toml 'suites': did you mean 'suite'?"),
        ("suite = 'stability'\nmodels = 3", "--models"),
        ("suite = 'stability'\nseeds = true", "--seeds"),
        ("suite = 'stability'\nvariants = 'no'", "--variants is 'no'"),
        ("suite = 'stability'\nset = 3", "`set` is a table"),
        ("suite = 'stability'\ndevice = 1", "--device is 1"),
        ("suite = 'stability'\njobs = 'two'", "--jobs is 'two'"),
        ("suite = 'stability'\n[set]\nhedas = 4", "unknown option in --set 'hedas'"),
        ("suite = 'stability'\nplugin = 3", "--plugin"),
        ("\udcff", "plan.toml: "),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(refused, tmp_path, content, says):
    (tmp_path / "plan.toml").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert says in refused("run", "plan.toml")


def test_a_file_says_the_same_as_the_options_and_options_win(tmp_path):
    (tmp_path / "own").mkdir()
    shutil.copy(TESTS / "plugins" / "mine.py", tmp_path / "own")
    file = tmp_path / "own" / "plan.toml"
    file.write_text(
        """
        suite = "stability"
        models = "rotrnn,mine"
        backends = ["torch", "jax"]
        device = "cpu"
        seeds = "0-1"
        depths = 2
        tasks = ["listops[max_length=90]"]
        plugin = "mine.py"
        data = "."
        out = "elsewhere"
        run = "name"
        jobs = 2
        timeout = 60
        params = false
        [set]
        steps = [20, 40]
        evaluations = 2
        rotrnn.heads = 4
        """
    )
    request, execution = runner.merge(file, {"seeds": ["5"], "set": ["steps=30"], "timeout": 90.0})
    same = Request.parse(
        suite="stability", models="rotrnn,mine", backends="torch,jax", device="cpu", seeds="5", depths="2",
        tasks="listops[max_length=90]", plugin=[str(tmp_path / "own" / "mine.py")], data=str(tmp_path / "own"),
        set=["steps=30", "evaluations=2", "rotrnn.heads=4"],
    )  # fmt: skip
    assert request == same
    assert execution == runner.Execution(
        out=Path("elsewhere"), run="name", jobs=2, timeout=90.0, params=False,
    )  # fmt: skip


def test_ctrl_c_before_the_work_begins_is_130_and_leaves_nothing(command, monkeypatch, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "find_device", interrupt)
    assert command(*changed()).exit_code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("statuses", "strict", "code"),
    [
        (["ok"], False, 0),
        (["ok", "diverged", "unconverged", "unsupported"], False, 0),
        (["ok", "unsupported"], True, 0),
        (["ok", "diverged"], True, 1),
        (["ok", "unconverged"], True, 1),
        (["diverged"], False, 0),
        ([], False, 1),
        (["unsupported"], False, 1),
        *[(["ok", status], False, 1) for status in
          ("oom", "timeout", "error", "compile_failed", "crashed", "missing", "interrupted")],
    ],
)  # fmt: skip
def test_the_exit_status_says_what_became_of_the_cells(statuses, strict, code):
    assert runner.exit_code(statuses, strict) == code


@pytest.fixture(scope="module")
def without_jax(environment_without, tmp_path_factory):
    """A run with both backends where jax and flax are not installed; the folder, the command, its report as JSON."""
    place = tmp_path_factory.mktemp("without_jax")
    command = environment_without("jax", "flax", "optax")(place)
    words = ["--models", "faulty", "--backends", "torch,jax", "--seeds", "0", "--device", "cpu", "--run", "both"]
    done = command("run", "--suite", "walk", "--plugin", FAULTS, *words, "--json", expect=1)
    return place / "results" / "both", command, json.loads(done.stdout)


def test_a_backend_that_is_not_installed_is_missing_with_the_line_that_installs_it(without_jax):
    folder, _, report = without_jax
    cells = store.read_results(folder).drop_duplicates("cell_id").set_index("backend")
    assert cells["status"].to_dict() == {"torch": "ok", "jax": "missing"}
    line = 'jax is not installed: pip install "linrec-bench[jax]"'
    assert cells.loc["jax", "message"] == line
    assert report["counts"] == {"ok": 1, "missing": 1}
    assert report["blocks"][0]["title"] == "Not ok: 1 of 2 cells"
    assert line in report["blocks"][0]["rows"][0]


def test_all_commands_work_where_a_backend_is_not_installed(without_jax):
    _, command, _ = without_jax
    listed = command("list", "backends").stdout
    assert re.search(r'^jax +jax is not installed: pip install "linrec-bench\[jax\]"$', listed, re.MULTILINE)
    assert re.search(r"^torch +installed$", listed, re.MULTILINE)
    assert "Options" in command("show", "lru").stdout


def test_missing_cells_are_measured_when_that_is_asked_for_also_with_jax_alone(without_jax, environment_without):
    """Resumed first where nothing has changed, then where jax is installed and torch is not."""
    folder, command, _ = without_jax
    command("run", "--resume", "both", expect=1)
    assert store.read_results(folder).drop_duplicates("cell_id")["status"].tolist() == ["ok", "missing"]
    command = environment_without("torch")(command.folder)
    command("run", "--resume", "both", "--retry", "missing")
    rows = store.read_results(folder)
    assert set(rows["status"]) == {"ok"}
    energies = rows.pivot(index="step", columns="backend", values="value")
    assert energies["jax"].to_numpy() == pytest.approx(energies["torch"].to_numpy(), rel=1e-5)  # float32
    assert re.search(r'^torch +torch is not installed: pip install "linrec-bench\[torch\]"$',
                     command("list", "backends").stdout, re.MULTILINE)  # fmt: skip


def test_a_gpu_that_is_not_there_makes_cells_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(
        environment, "probe", lambda backend: {"version": "1", "cuda": backend == "jax", "devices": ["x"]}
    )
    device, probes = runner.find_device("cuda", ["torch", "jax"])
    assert device == "cuda"
    assert "reason" not in probes["jax"]
    assert probes["torch"]["reason"] == 'torch finds no GPU here; with one: pip install "linrec-bench[torch]"'
    _, probes = runner.find_device("cuda:1", ["jax"])
    assert probes["jax"]["reason"] == "jax finds 1 GPUs here, and no cuda:1"


def test_auto_is_one_device_for_both_backends(monkeypatch):
    monkeypatch.setattr(environment, "probe", lambda backend: {"cuda": False, "devices": []})
    assert runner.find_device("auto", ["torch", "jax"])[0] == "cpu"
    monkeypatch.setattr(environment, "probe", lambda backend: {"cuda": backend == "torch", "devices": ["x"]})
    device, probes = runner.find_device("auto", ["torch", "jax"])
    assert device == "cuda"
    assert "jax-cuda" in probes["jax"]["reason"]


def test_a_backend_that_fails_when_it_is_asked_for_its_devices_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "_PROBE", "raise SystemExit('libcuda is broken')")
    assert environment.probe("torch") == {
        "reason": "torch could not be asked for its devices (exit status 1): libcuda is broken"
    }
    monkeypatch.setattr(environment, "_PROBE", "import time; time.sleep(60)")
    assert "no answer within 0.5 s" in environment.probe("torch", timeout=0.5)["reason"]


def test_help_and_import_load_neither_framework_nor_pandas():
    program = """
import sys
import bench
loaded = {name.partition(".")[0] for name in sys.modules}
from typer.testing import CliRunner
from bench.cli import app
for words in (["--help"], ["run", "--help"], ["report", "--help"]):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "Usage" in done.output
loaded |= {name.partition(".")[0] for name in sys.modules}
print(*sorted(loaded & {"torch", "jax", "flax", "pandas", "scipy", "pyarrow", "sklearn"}))
bench.read_results, bench.backends.torch
print("torch" in sys.modules, "jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "True False"]


def test_help_is_whole_and_shows_defaults_and_brackets_as_they_are_typed(command):
    assert "..." not in command("--help").stdout.partition("Commands:")[2]
    text = " ".join(command("run", "--help").stdout.split())
    for shown in ("lru[gamma=tied]", "listops[max_length=150]", "[default: torch]", "[default: results]", "2: a wrong"):
        assert shown in text


def test_bench_has_no_module_named_like_one_of_its_functions():
    names = {path.stem for path in Path(bench.__file__).parent.iterdir()}
    assert not names & {"layer", "run", "read_results"}
    assert {"layer", "run", "read_results"} <= set(bench.__all__)


def test_only_what_is_declared_is_imported():
    """Such as click, which comes with one version of typer and not with the next."""
    declared = tomllib.loads((registry.ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in declared["optional-dependencies"].values() for line in lines]
    known = {Requirement(line).name for line in declared["dependencies"] + extras}
    allowed = {name.replace("-", "_") for name in known} | {"sklearn", "PIL", "bench", "models", "suites"}
    for package in ("bench", "models", "suites"):
        for path in (registry.ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
                tops = {name.partition(".")[0] for name in names}
                assert tops <= allowed | sys.stdlib_module_names, path
                assert not any("._" in f".{name}" for name in names if name != "__future__"), path


@pytest.fixture(scope="module")
def measured(bench_in, tmp_path_factory):
    """A run with one failure: its place and what it printed."""
    place = tmp_path_factory.mktemp("measured")
    words = ["--models", "faulty,faulty[fault=raises]", "--seeds", "0", "--device", "cpu", "--run", "one"]
    done = bench_in(place)("run", "--suite", "walk", "--plugin", FAULTS, *words, expect=1, OMP_NUM_THREADS=None)
    return place, done


def test_one_thread_a_job_is_the_default_and_is_honoured_and_stored(measured):
    place, _ = measured
    rows = store.read_results(place / "results").drop_duplicates("cell_id")
    processors = len(os.sched_getaffinity(0))
    (threads,) = rows["threads"].unique()
    jobs = runner.choose_jobs(None, "cpu", [])
    assert threads == len(next(iter(local.processors(jobs))))
    facts = json.loads(rows[rows["status"] == "ok"]["facts"].iloc[0])
    assert facts == {"torch_threads": threads, "cpus": threads}
    assert threads * jobs <= processors


def test_omp_num_threads_bounds_the_threads_of_a_job(monkeypatch):
    for value, threads in (("1", 1), ("3,2", 3), ("", None), ("0", None), ("many", None)):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert local.threads_allowed() == threads
        assert len(local._Slot(list(range(8))).cpus) == (threads or 8)


def test_the_limits_of_a_worker_are_set_before_a_framework_is_imported(monkeypatch):
    found = local._environment("cpu", 3)
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == found["PJRT_NPROC"] == "3"
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert found["JAX_PLATFORMS"] == "cpu"
    assert "JAX_PLATFORMS" not in local._environment("cuda", 3).keys() - os.environ.keys()


def test_processors_are_dealt_out_without_overlap(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert sorted(cpu for part in local.processors(3) for cpu in part) == list(range(8))
    assert [len(part) for part in local.processors(10)] == [1] * 10


def test_a_pipe_gets_whole_numbers_and_no_control_codes_however_narrow_the_window(measured, bench_in):
    place, done = measured
    for columns in ("40", "60"):
        text = bench_in(place)("report", "--plugin", FAULTS, COLUMNS=columns, TERM="xterm-256color").stdout
        assert text == done.stdout
        assert "\x1b" not in text
        assert "…" not in text
        values = store.read_results(place / "results")["value"].dropna()
        assert all(f"{value:.17g}" in text for value in values)


def on_a_terminal(command, columns: int) -> str:
    """What a command prints on a terminal of this width, without its control codes and without white space."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {
        "TERM": "xterm-256color"
    }
    process = subprocess.Popen(command.words, cwd=command.folder, env=env, stdin=side, stdout=side, stderr=side)
    os.close(side)
    text = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    os.close(main)
    assert process.wait(60) == 0
    return "".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode()).split())


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_nothing_is_cut_on_a_terminal_of_any_width(measured, bench_in, columns):
    place, _ = measured
    command = bench_in(place)
    command.words = [*command.command, "report", "--plugin", FAULTS]
    text = on_a_terminal(command, columns)
    values = store.read_results(place / "results")["value"].dropna()
    assert len(values) == 5
    assert all(f"{value:.17g}" in text for value in values)
    assert "…" not in text
    assert "faulty[fault=raises]" in text
    assert "Energiesofthewalk" in text


def test_a_terminal_that_knows_no_other_letters_gets_others(measured, bench_in):
    done = bench_in(measured[0])("list", "tasks", PYTHONIOENCODING="ascii")
    assert done.stdout.isascii()
    assert "Traceback" not in bench_in(measured[0])("show", "rotrnn", PYTHONIOENCODING="ascii").stderr


class Cell:
    suite, model, backend, id = "s", "m", "torch", "1"


def test_progress_of_many_failures_in_a_pipe_is_a_few_lines(capsys):
    with ProgressLines(1000, {"s": 1000}) as progress:
        for _ in range(1000):
            progress.ended(Cell, "error")
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= progress.FAILURES_SHOWN + 2
    assert lines[-1] == "1000/1000 cells, 1000 failed; m torch: error"


def test_progress_names_what_tells_a_cell_from_the_others(capsys):
    asked = {"length": [64, 256], "mode": ["forward", "decode"], "d_model": 8}
    cells = plan.cells(plan.Request.parse(suite="throughput", models="lru", set=asked), "cpu", "quick")
    with ProgressLines(4, runner.rounds(cells), names=what_varies(cells)) as progress:
        for cell in cells:
            progress.ended(cell, "error")
    said = {line.partition("; ")[2] for line in capsys.readouterr().err.splitlines()}
    assert said == {f"lru torch length {n} mode {mode}: error" for n in (64, 256) for mode in ("forward", "decode")}


def test_progress_of_several_suites_names_them_and_leaves_out_what_one_has_not():
    asked = plan.Request.parse(suite="stability,throughput", models="lru", depths="1", seeds="0")
    said = list(what_varies(plan.cells(asked, "cpu", "quick")).values())
    assert said[0] == " stability"
    assert " throughput length 256 mode train" in said[1:]


def test_the_time_left_is_each_suites_own_and_names_those_that_have_not_begun(monkeypatch, capsys):
    now = iter([0.0, 60.0, 61.0, 62.0, 122.0, 123.0])  # the start, then each end
    monkeypatch.setattr("bench.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    with ProgressLines(6, {"slow": 2, "quick": 3, "last": 1}) as progress:
        for suite in ("slow", "quick", "quick", "slow", "quick"):
            progress.ended(SimpleNamespace(suite=suite, model="m", backend="torch", id="1"), "error")
    said = [line.partition(", ")[2].partition("; ")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == [
        "1 failed, 60 s left, then quick, last",
        "2 failed, 62 s left, then last",
        "3 failed, 61 s left, then last",
        "4 failed, 1 s left, then last",
        "5 failed, last left",
    ]


def test_progress_on_a_terminal_is_one_line_that_changes(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with ProgressLines(3, {"s": 3}) as progress:
        progress.ended(Cell, "ok")
        progress.ended(Cell, "error")
        progress.bar.refresh()
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "2/3" in text
    assert "1 failed, 0 s left; m torch: error" in text


def test_progress_in_a_narrow_window_keeps_its_count_and_its_clock(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    with ProgressLines(3, {"s": 3}, {"1": " depth 2" * 20}) as progress:
        progress.ended(Cell, "error")
        progress.bar.refresh()
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    line = text.replace("\r", "\n").strip().splitlines()[-1]
    assert "1/3 0:00:0" in line
    assert line.endswith("…")
    assert len(line) <= 60


def test_report_as_json_holds_the_same_tables(measured, bench_in):
    place, _ = measured
    content = json.loads(bench_in(place)("report", "--json", "--plugin", FAULTS).stdout)
    assert content["counts"] == {"ok": 1, "error": 1}
    titles = [block["title"] for block in content["blocks"] if "title" in block]
    assert titles == ["Not ok: 1 of 2 cells", "Energies of the walk"]
    (energies,) = [block for block in content["blocks"] if block.get("title") == "Energies of the walk"]
    assert len(energies["rows"]) == 5


def test_a_report_of_damaged_results_names_the_file_and_exits_1(measured, bench_in, tmp_path):
    shutil.copytree(measured[0] / "results", tmp_path / "results")
    file = sorted((tmp_path / "results" / "one" / "cells").glob("*.parquet"))[0]
    file.write_bytes(file.read_bytes()[:-1])
    done = bench_in(tmp_path)("report", "--plugin", FAULTS, expect=1)
    assert done.stderr.startswith(f"bench: {file.name} cannot be read and is left out: ")
    assert "interrupted" in done.stdout
    (tmp_path / "results" / "one" / "run.json").write_text("{")
    done = bench_in(tmp_path)("report", "one", "--plugin", FAULTS, expect=1)
    assert "bench: run.json of one cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_estimates_the_time_from_cells_that_have_run_and_writes_nothing(measured, command):
    place, _ = measured
    before = sorted(place.rglob("*"))
    words = ["run", "--suite", "walk", "--plugin", FAULTS, "--models", "faulty", "--device", "cpu", "--plan"]
    done = command(*words, "--seeds", "0-3", "--out", place / "results")
    assert done.stdout.splitlines()[1] == "Plan: 4 cells"
    assert re.search(r"^about \d+ s with \d+ at a time$", done.stdout, re.MULTILINE)
    (table,) = json.loads(command(*words, "--seeds", "0-3", "--json").stdout)
    assert [row[table["columns"].index("seed")] for row in table["rows"]] == ["0", "1", "2", "3"]
    assert [row[table["columns"].index("state reals")] for row in table["rows"]] == ["8"] * 4
    assert sorted(place.rglob("*")) == before


def test_a_plan_shows_parameters_and_state_sizes(command, tmp_path):
    done = command(*PAIR, "--plan")
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.strip().splitlines()[2:4]]
    request, _ = runner.merge(None, {"suite": "stability", "models": "rotrnn,lru", "seeds": "0", "depths": "1"})
    planned = plan.cells(request, "cpu", "quick")
    assert [line[0] for line in lines] == [cell.id for cell in planned]
    assert [line[-3:-1] for line in lines] == [[f"{cell.trained:,}", str(cell.layer.state_reals)] for cell in planned]
    assert "no time estimate: no cell of these kinds has run yet" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_lists_are_lists_however_they_are_given(command):
    ids = []
    for models in (
        ["--models", "rotrnn,lru"],
        ["--models", "rotrnn", "--models", "LRU"],
        ["--models", "rotrnn, ,lru,"],
    ):
        done = command("run", "--suite", "stability", *models, "--device", "cpu", "--plan", "--json")
        (table,) = json.loads(done.stdout)
        ids.append([row[0] for row in table["rows"]])
    assert ids[0] == ids[1] == ids[2]
    assert len(ids[0]) == 2 * 2 * 3


@pytest.mark.parametrize("words", [["report"], ["report", "nowhere"], ["report", "--out", "nowhere"]])
def test_a_report_without_any_run_says_so(refused, words):
    assert "run" in refused(*words)


def test_a_report_of_a_run_without_cells_is_nothing_and_exit_1(command, tmp_path):
    (tmp_path / "results" / "empty").mkdir(parents=True)
    (tmp_path / "results" / "empty" / "run.json").write_text("{}")
    done = command("report")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "bench: nothing was measured\n"


@pytest.mark.parametrize("what", ["models", "suites", "tasks", "backends", "runs"])
def test_every_list_also_as_json(command, what):
    (table,) = json.loads(command("list", what, "--json").stdout)
    text = command("list", what).stdout
    assert all(row[0] in text for row in table["rows"])
    names = ["torch", "jax"] if what == "backends" else declared().get(what, [])
    assert [row[0] for row in table["rows"]] == names


def declared():
    """The built-in names of models, suites and tasks, as pyproject.toml declares them."""
    found = tomllib.loads((registry.ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return {group.removeprefix("linrec_bench."): sorted(names) for group, names in found.items()}


def test_an_unknown_list_or_model_gets_the_nearest_name(refused):
    assert "unknown list 'model': did you mean 'models'?" in refused("list", "model")
    assert "unknown model 'rotrn': did you mean 'rotrnn'?" in refused("show", "rotrn")
    assert "model lru has no option 'gama'" in refused("show", "lru[gama=tied]")


def test_runs_are_listed_with_what_is_done(command, measured, tmp_path):
    done = command("list", "runs", "--out", measured[0] / "results")
    assert re.search(r"^one +20\d\d-\d\d-\d\dT[\d:]+ +2/2$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("model", ["lru", "rotrnn", "s4d", "s5", "s4", "gru", "rnn", "dense-linear", "transformer"])
def test_show_has_equations_options_roles_variants_and_source(command, model):
    text = command("show", model).stdout
    cls = registry.find("model", model)
    layer = bench.layer(model).layer
    assert cls.source
    assert f"Source: {cls.source}" in text
    assert cls.__doc__.splitlines()[0] in text
    for name in set(vars(layer)) - {"d_model", "_shape"}:
        assert re.search(rf"^{name} ", text, re.MULTILINE), name
    for name, role in layer.roles().items():
        assert re.search(rf"^{name} .* {role} ", text, re.MULTILINE), name
    for options in cls.variants.values():
        bracket = ",".join(f"{key}={value}" for key, value in options.items())
        assert f"{model}[{bracket}]" in text
    titles = [block["title"] for block in json.loads(command("show", model, "--json").stdout) if "title" in block]
    assert titles[:2] == ["Options", "Parameters at d_model = 64"]


def test_show_of_a_plugin_file(command):
    text = command("show", "mine", "--plugin", TESTS / "plugins" / "mine.py").stdout
    assert "x_t = a x_{t-1} + (1 - a) B u_t" in text
    assert re.search(r"^rate_log +\(16,\) +dynamics", text, re.MULTILINE)
    assert "mine[slowest=10.0]" in text


def test_python_gives_the_same_errors_as_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, says in (
        ({"suite": "stability", "models": "rotrn"}, "did you mean 'rotrnn'"),
        ({"suite": "stability", "modles": "lru"}, "unknown option 'modles': did you mean 'models'?"),
        ({"suite": "stability", "seeds": []}, "--seeds is empty"),
        ({"resume": "nowhere"}, "no run in"),
        ({"resume": "x", "models": "lru"}, "models cannot go with it"),
        ({"suite": "stability", "retry": "oom"}, "--retry goes with --resume"),
        ({"suite": "stability", "jobs": "2"}, "--jobs is '2'"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            bench.run(**given)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    request, execution = runner.merge(None, {"suite": "stability", "models": "lru", "device": "cpu", "out": tmp_path})
    both = [runner.prepare(request, execution) for _ in range(2)]
    both[1] = runner.dataclasses.replace(both[1], folder=both[0].folder)
    folders = [runner.begin(prepared, []).folder for prepared in both]
    assert folders[1].name == f"{folders[0].name}-2"
    assert [json.loads((folder / "run.json").read_text())["device"] for folder in folders] == ["cpu"] * 2


def test_a_suite_that_needs_its_device_alone_is_not_measured_in_parallel(own_registry, monkeypatch):
    @bench.register.suite("alone")
    class Alone(registry.find("suite", "stability")):
        exclusive = True

    cells = plan.cells(Request.parse(suite="alone", models="lru"), "cpu", "quick")
    assert runner.choose_jobs(None, "cpu", cells) == 1
    assert runner.choose_jobs(1, "cpu", cells) == 1
    with pytest.raises(ValueError, match="--jobs is 2: cells of the suite alone need their device to themselves"):
        runner.choose_jobs(2, "cpu", cells)
    assert runner.choose_jobs(None, "cuda", []) == 1


def git(folder, *words):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True)


def test_a_row_says_from_which_commit_it_is_and_whether_files_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    assert environment._commit() == {"commit": None, "dirty": None}
    git(tmp_path, "init")
    assert environment._commit() == {"commit": None, "dirty": None}
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    clean = environment._commit()
    assert re.fullmatch("[0-9a-f]{40}", clean["commit"])
    assert clean["dirty"] is False
    (tmp_path / "a.py").write_text("2")
    assert environment._commit() == clean | {"dirty": True}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment._commit() == {"commit": None, "dirty": None}


def test_a_missing_git_does_not_fail_a_run(command, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    described = environment.describe({})
    assert described["commit"] is None
    assert described["dirty"] is None
    assert described["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment.identity(described) == environment.identity(dict(reversed(described.items())))
