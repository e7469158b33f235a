"""Whatever happens to a cell, a worker, the engine or the user's patience: one status a cell, and no number is lost."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
from conftest import SMALL, TESTS

from bench import plan, store, worker
from bench.engines import local
from bench.plan import Request

PLUGIN = ["--plugin", str(TESTS / "plugins" / "faults.py")]
WALK = ["--suite", "walk", "--device", "cpu", *PLUGIN]
SLOW = ["run", *WALK, "--models", "faulty", "--seeds", "0-3", "--set", "pause=0.5", "--jobs", "1", "--run", "slow"]

FIVE = {
    "faulty": "ok",
    "faulty[fault=raises]": "error",
    "faulty[fault=exits]": "crashed",
    "faulty[fault=sleeps]": "timeout",
    "faulty[burns_at=0.98]": "diverged",
}
ORDERS = {
    "the fine one first": [0, 1, 2, 3, 4],
    "the fine one last": [3, 4, 2, 1, 0],
    "the fine one between": [2, 3, 0, 4, 1],
}
NOT_MEASURED = ["run_id", "env_id", "code", "started_at", "duration_s"]
"""The columns in which two measurements of one cell differ."""


def numbers(folder: Path, model: str | None = None) -> pd.DataFrame:
    """All that was measured of a run or of one model in it, in an order of its own."""
    rows = store.read_results(folder)
    rows = rows if model is None else rows[rows["model"] == model]
    rows = rows.sort_values(["cell_id", "metric", "step", "layer", "t", "head", "split"], kind="stable")
    return rows.drop(columns=NOT_MEASURED).reset_index(drop=True)


def statuses(folder: Path) -> dict[str, str]:
    """The status of each model of a run with one cell a model."""
    return store.read_results(folder).drop_duplicates("cell_id").set_index("model")["status"].to_dict()


def message(folder: Path, model: str) -> str:
    """The cell's message, which stands in all its rows; before it there may be a row's own."""
    rows = store.read_results(folder)
    found = min(rows[rows["model"] == model]["message"].unique(), key=len)
    assert rows[rows["model"] == model]["message"].str.endswith(found).all()
    return found


def running(word: str) -> list[str]:
    """Command lines of processes that hold this word, but for those that have ended and wait to be collected."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                state = folder.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                line = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if state not in "ZX" and word in line:
                found.append(line)
    return found


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(what, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def five(bench_in, place):
    """The five in three orders, all at the same time: name of the order -> (run folder, finished process)."""
    started = {}
    for name, order in ORDERS.items():
        models = ",".join(list(FIVE)[i] for i in order)
        started[name] = bench_in(place).start(
            "run", *WALK, "--seeds", "0", "--models", models, "--run", name.replace(" ", "-"), "--jobs", "1",
            "--timeout", "10", FAULTS_SECRET="do-not-show-this",
        )  # fmt: skip
    return {name: (place / "results" / name.replace(" ", "-"), _ended(process)) for name, process in started.items()}


def _ended(process):
    process.stdout_text, process.stderr_text = process.communicate(timeout=300)
    return process


@pytest.mark.parametrize("order", ORDERS)
def test_every_fault_has_its_own_status_in_any_order(five, order):
    folder, process = five[order]
    assert statuses(folder) == FIVE
    assert process.returncode == 1


@pytest.mark.parametrize("order", ORDERS)
def test_faults_of_others_do_not_change_the_last_digit_of_a_fine_cell(five, order):
    first, _ = five["the fine one first"]
    pd.testing.assert_frame_equal(numbers(five[order][0], "faulty"), numbers(first, "faulty"), check_exact=True)
    energies = numbers(first, "faulty")["value"].dropna()
    assert len(energies) == energies.nunique() == 5


@pytest.mark.parametrize("order", ORDERS)
def test_divergence_is_stored_with_its_step(five, order):
    rows = numbers(five[order][0], "faulty[burns_at=0.98]")
    (row,) = rows[rows["metric"] == "diverged_at_step"].itertuples()
    assert (row.value, row.step, row.status) == (3.0, 3, "diverged")
    assert rows[rows["metric"] == "energy"]["step"].tolist() == [0, 1, 2]
    assert set(rows["message"]) == {"non-finite energy at step 3"}


def test_an_error_has_its_traceback_without_locals_and_without_paths(five):
    text = message(five["the fine one last"][0], "faulty[fault=raises]")
    assert 'File "faults.py", line' in text
    assert "in _raises" in text
    assert text.endswith("ValueError: no such thing as 1000000 in notes.txt")
    assert "do-not-show-this" not in text
    assert "999999" not in text
    assert not re.search(r"(?<![\w.])/\w+/", text)


def test_a_crash_and_a_timeout_say_how_the_worker_ended(five):
    folder, _ = five["the fine one between"]
    assert message(folder, "faulty[fault=exits]") == "the worker ended with exit status 9"
    assert message(folder, "faulty[fault=sleeps]") == "ended after 10 s"


def test_failures_stand_first_in_the_report_and_worst_first(five):
    lines = five["the fine one first"][1].stdout_text.strip().splitlines()
    assert lines[0] == "Not ok: 4 of 5 cells"
    assert [line.split()[0] for line in lines[2:6]] == ["error", "crashed", "timeout", "diverged"]


def test_progress_in_a_pipe_is_lines_with_cells_done_failed_and_time_left(five):
    text = five["the fine one last"][1].stderr_text
    lines = text.strip().splitlines()
    assert re.fullmatch(r"1/5 cells, 1 failed, \d+ (s|min) left; faulty\[fault=sleeps\] .*: timeout", lines[0])
    assert lines[-2].startswith("5/5 cells, 3 failed; faulty ")
    assert "\x1b" not in text
    assert "\r" not in text


def test_retry_measures_the_named_statuses_again_and_nothing_else(five, bench_in, tmp_path):
    shutil.copytree(five["the fine one first"][0], tmp_path / "results" / "again")
    folder = tmp_path / "results" / "again"
    before = store.read_results(folder).drop_duplicates("cell_id").set_index("model")["started_at"]
    bench_in(tmp_path)("run", "--resume", "again", "--retry", "timeout,error", expect=1, FAULTS_SLEEP="0")
    assert statuses(folder) == FIVE | {"faulty[fault=sleeps]": "ok"}
    after = store.read_results(folder).drop_duplicates("cell_id").set_index("model")["started_at"]
    assert set(after.index[after != before]) == {"faulty[fault=sleeps]", "faulty[fault=raises]"}


def test_training_that_diverges_stops_at_its_step_and_the_next_cell_is_fine(bench_here, tmp_path):
    recipe = [word for setting in ("rate=0.1", "weight_decay=0.1", "warmup=0") for word in ("--set", setting)]
    models = "faulty[burns_at=0.98],faulty"
    bench_here("run", *SMALL, *recipe, *PLUGIN, "--models", models, "--jobs", "1", "--run", "two")
    folder = tmp_path / "results" / "two"
    assert statuses(folder) == {"faulty[burns_at=0.98]": "diverged", "faulty": "ok"}
    rows = numbers(folder, "faulty[burns_at=0.98]")
    assert rows[rows["metric"] == "diverged_at_step"]["step"].tolist() == [3]
    assert rows[(rows["metric"] == "loss") & (rows["split"] == "train")]["step"].tolist() == [0, 1, 2]
    assert message(folder, "faulty[burns_at=0.98]") == "non-finite loss at step 3"
    report = bench_here("report", "--json", "--plugin", PLUGIN[1])
    assert json.loads(report.stdout)["counts"] == {"diverged": 1, "ok": 1}


@pytest.fixture(scope="module")
def rare(bench_in, place):
    """Rarer faults, each followed by a fine cell of its own: run folder, numbers of the processes that cling."""
    faults = ["exits_0", "exits_3", "leaves", "prints", "killed", "memory", "clings"]
    models = ",".join(f"faulty[fault={fault}]" for fault in faults) + ",faulty"
    child = place / "child"
    done = bench_in(place)(
        "run", *WALK, "--seeds", "0", "--models", models, "--run", "rare", "--jobs", "2", "--timeout", "10", expect=1,
        FAULTS_CHILD=str(child),
    )  # fmt: skip
    return place / "results" / "rare", list(map(int, child.read_text().split())), done


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ("exits_0", "crashed", "the worker ended with exit status 0"),
        ("exits_3", "crashed", "the worker ended with exit status 3"),
        ("leaves", "error", "SystemExit: enough"),
        ("killed", "crashed", "the worker ended with signal SIGKILL"),
        ("memory", "oom", "out of host memory"),
        ("clings", "timeout", "ended after 10 s"),
    ],
)
def test_a_rarer_fault_has_its_status_and_says_what_it_was(rare, fault, status, says):
    folder, _, _ = rare
    model = f"faulty[fault={fault}]"
    assert statuses(folder)[model] == status
    assert says in message(folder, model)


def test_a_layer_that_prints_ten_megabytes_stops_nothing(rare):
    folder, _, done = rare
    assert statuses(folder)["faulty[fault=prints]"] == "ok"
    assert statuses(folder)["faulty"] == "ok"
    assert "xxxx" not in done.stdout + done.stderr


def test_a_worker_that_ignores_a_polite_end_ends_with_its_children(rare):
    assert [process for process in rare[1] if is_running(process)] == []


def test_no_message_holds_an_absolute_path(rare):
    for text in store.read_results(rare[0])["message"].dropna().unique():
        assert not re.search(r"(?<![\w.])/\w+/", text)


@pytest.fixture(scope="module")
def undisturbed(bench_in, place):
    """Four cells that nothing happens to."""
    bench_in(place)(*SLOW[:-1], "undisturbed")
    return place / "results" / "undisturbed"


def files(folder: Path) -> list[Path]:
    return sorted((folder / "cells").glob("*.parquet"))


def interrupted(bench, folder: Path, sent: signal.Signals):
    """Ends a run of four cells when at least one is done; the process, and the files that are kept."""
    process = bench.start(*SLOW, TMPDIR=str(bench.folder))
    wait_for(lambda: files(folder))
    process.send_signal(sent)
    _ended(process)
    kept = files(folder)
    assert process.returncode == 130
    assert 1 <= len(kept) < 4
    assert f"interrupted: {len(kept)} of 4 cells are kept" in process.stderr_text
    assert running(str(bench.folder)) == []
    assert (store.read_results(folder)["status"] == "interrupted").sum() == 4 - len(kept)
    return process, kept


def test_a_run_that_ctrl_c_ends_keeps_what_is_done_and_goes_on_later(bench_here, undisturbed, tmp_path):
    folder = tmp_path / "results" / "slow"
    process, kept = interrupted(bench_here, folder, signal.SIGINT)
    before = [store.stamp(path) for path in kept]
    (resume,) = re.findall(r"bench (run --resume .*)", process.stderr_text)
    bench_here(*resume.split(), "--jobs", "1")
    assert [store.stamp(path) for path in kept] == before
    pd.testing.assert_frame_equal(numbers(folder), numbers(undisturbed), check_exact=True)


def test_a_scheduler_ends_a_run_as_ctrl_c_does_even_in_the_background(bench_here, tmp_path):
    bench_here.command = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', *bench_here.command]
    interrupted(bench_here, tmp_path / "results" / "slow", signal.SIGTERM)


@pytest.fixture
def engine(tmp_path, own_registry):
    """The local engine in this process with one cell, in whose worker some more lines of the plugin file run.

    Gives the status that the engine reports and the message that is stored.
    """

    def run(in_the_worker):
        plugin = tmp_path / "faults.py"
        plugin.write_text(f"{Path(PLUGIN[1]).read_text()}\nif os.getpid() != {os.getpid()}:\n    {in_the_worker}\n")
        (cell,) = plan.cells(
            Request.parse(suite="walk", models="faulty", seeds="0", plugin=str(plugin)), "cpu", "quick"
        )
        (tmp_path / "cells").mkdir()
        job = local.Job(tmp_path, "run", "env", "code", "cpu", timeout=60, plugins=(str(plugin),))
        said = []
        local.run([cell], job, 1, lambda cell, status: said.append(status))
        (status,) = said
        (text,) = store.read_results(tmp_path / "cells" / f"{cell.id}.parquet")["message"]
        return status, text

    return run


def test_a_worker_that_never_begins_is_ended_and_says_so(engine, monkeypatch):
    monkeypatch.setattr(local, "START_LIMIT_S", 0.5)
    assert engine("time.sleep(600)") == ("timeout", "the worker had not begun and was ended after 0.5 s")


def test_a_plugin_that_fails_in_the_worker_alone_is_an_error_with_the_reason(engine):
    status, text = engine("raise ImportError('not here')")
    assert status == "error"
    assert text.endswith("--plugin faults.py: ImportError: not here")


def choices(waiting, kind, backend, others=()):
    """The order in which a slot that has measured this kind and backend would take the cells, alone."""
    slot = local._Slot([0])
    slot.kind, slot.group = kind, backend
    waiting, taken = [local.Work(cell, kind, cell.backend) for cell, kind in waiting], []
    while waiting:
        work = waiting.pop(local._choice(waiting, slot, set(others)))
        slot.kind, slot.group = work.kind, work.group
        taken.append((work.cell.backend, work.kind, work.cell.seed))
    return taken


def test_a_worker_stays_with_its_kind_and_its_backend_and_leaves_other_kinds_to_others():
    a, b = (Request.parse(suite="stability", models=m, seeds="0,1", depths="1", backends="torch,jax") for m in
            ("lru", "s5"))  # fmt: skip
    waiting = [(cell, f"{cell.model} {cell.backend}") for r in (a, b) for cell in plan.cells(r, "cpu", "quick")]
    order = choices(waiting, "s5 jax", "jax")
    assert [kind for _, kind, _ in order] == ["s5 jax"] * 2 + ["lru jax"] * 2 + ["lru torch"] * 2 + ["s5 torch"] * 2
    order = choices(waiting, "", None, others={"lru torch"})
    assert [kind for _, kind, _ in order[:2]] == ["lru jax"] * 2


def test_a_worker_that_cannot_save_says_so_before_any_work(tmp_path, monkeypatch):
    spec = {"folder": str(tmp_path / "nowhere"), "engine": os.getppid(), "cpus": [], "data": None}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    monkeypatch.setattr(worker, "_end_with", lambda engine: None)
    monkeypatch.setattr(worker, "_own_stdin", lambda: pytest.fail("it asked for a cell"))
    with pytest.raises(FileNotFoundError):
        worker.main(str(tmp_path / "spec.json"))


def test_data_that_are_not_there_make_a_cell_missing_with_what_to_do(tmp_path, monkeypatch):
    import torch

    monkeypatch.delenv("BENCH_DATA", raising=False)
    request = Request.parse(suite="stability", models="lru", seeds="0", depths="1", tasks="listops[origin=files]")
    (cell,) = plan.cells(request, "cpu", "quick")
    (tmp_path / "cells").mkdir()
    spec = {"plugins": [], "params": False, "threads": torch.get_num_threads(), "begun": str(tmp_path / "begun"),
            "device": "cpu", "run_id": "run", "env_id": "env", "code": "code"}  # fmt: skip
    assert worker.measure(worker.Task(dataclasses.asdict(cell)), spec, tmp_path) == "missing"
    (text,) = store.read_results(tmp_path / "cells" / f"{cell.id}.parquet")["message"]
    assert "basic_train.tsv" in text
    assert "BENCH_DATA" in text
    assert (tmp_path / "begun").exists()


def test_a_signal_without_a_name_is_its_number():
    assert [local._signal_name(number) for number in (9, 11, 35)] == ["SIGKILL", "SIGSEGV", "35"]


def test_an_engine_that_is_killed_leaves_no_worker_and_readable_files(bench_here, tmp_path):
    child = tmp_path / "child"
    process = bench_here.start(
        "run", *WALK, "--seeds", "0", "--models", "faulty,faulty[fault=clings]", "--run", "killed", "--jobs", "1",
        TMPDIR=str(tmp_path), FAULTS_CHILD=str(child),
    )  # fmt: skip
    wait_for(lambda: child.exists() and child.read_text().count(" ") == 1)
    process.kill()
    _ended(process)
    wait_for(lambda: not running(str(tmp_path)) and not any(map(is_running, map(int, child.read_text().split()))))
    folder = tmp_path / "results" / "killed"
    assert statuses(folder) == {"faulty": "ok", "faulty[fault=clings]": "interrupted"}


@pytest.fixture(scope="module")
def sharded(bench_in, place):
    """The four cells by two commands at the same time."""
    shutil.copy(PLUGIN[1], place)
    shards = [bench_in(place).start(*SHARD, f"{i}/2") for i in (1, 2)]
    for shard in map(_ended, shards):
        assert shard.returncode == 0, shard.stderr_text
    return place / "results" / "sharded", shards


SHARD = [
    *SLOW[: SLOW.index("--plugin")],
    "--plugin",
    "faults.py",
    *SLOW[SLOW.index("--models") : -1],
    "sharded",
    "--shard",
]


def test_two_shards_at_the_same_time_measure_the_plan_once(sharded, undisturbed):
    folder, _ = sharded
    assert [path.name for path in files(folder)] == [path.name for path in files(undisturbed)]
    pd.testing.assert_frame_equal(numbers(folder), numbers(undisturbed), check_exact=True)


def test_a_shard_reports_its_own_cells_alone(sharded):
    for shard in sharded[1]:
        assert "Not ok" not in shard.stdout_text
        assert "Cells: 2 ok" in shard.stdout_text


def test_a_run_that_exists_takes_only_shards_of_its_own_plan(sharded, bench_in, place):
    refused = bench_in(place).refused
    assert "exists; to go on with it write --resume sharded" in refused(*SHARD[:-1])
    assert "is a run of other cells" in refused(*SHARD, "1/2", "--set", "steps=7")
    assert "--shard needs --run NAME" in refused("run", *WALK, "--models", "faulty", "--shard", "1/2")


def test_other_code_is_refused_unless_it_is_allowed(sharded, bench_in, tmp_path):
    shutil.copytree(sharded[0], tmp_path / "results" / "sharded")
    folder = tmp_path / "results" / "sharded"
    files(folder)[0].unlink()
    plugin = tmp_path / "faults.py"
    plugin.write_text(Path(PLUGIN[1]).read_text() + "\n# a change\n")
    for command in (["run", "--resume", "sharded"], [*SHARD, "2/2"]):
        text = bench_in(tmp_path).refused(*command)
        assert "the code changed since (plugin faults.py); --allow-changed-code goes on all the same" in text
    (tmp_path / "elsewhere").mkdir()
    elsewhere = bench_in(tmp_path / "elsewhere")
    assert "there is no such file" in elsewhere.refused("run", "--resume", folder)
    elsewhere("run", "--resume", folder, "--plugin", plugin, "--allow-changed-code")
    rows = store.read_results(folder).drop_duplicates("cell_id")
    assert rows["status"].tolist() == ["ok"] * 4
    assert sorted(rows["code"].value_counts()) == [1, 3]
