"""The store: what is written is read back as it was, whenever a process ends, and nothing is guessed."""

from __future__ import annotations

import getpass
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bench
from bench import environment, store
from bench import frame as framing
from bench.measurement import Measurement
from bench.plan import Request, cells
from bench.worker import cut_paths, short_traceback

pytestmark = pytest.mark.filterwarnings("default::bench.store.IncompleteResults")

CODE = "c0de"


def cell_table(cell_id="a", value=1.0, status="ok", **columns):
    cell = {"schema_version": 1, "cell_id": cell_id, "suite": "s", "model": "m", "seed": 0, "run_id": "run",
            "started_at": "2026-01-01T00:00:00.000+00:00", "code": CODE, "status": status}  # fmt: skip
    return store.table(cell | columns, [{"metric": "loss", "value": value, "step": 3}])


def make_run(folder, *cell_ids, value=1.0, **columns):
    """A run whose plan holds these cells, each with a file of one row."""
    (folder / "cells").mkdir(parents=True)
    for cell_id in cell_ids:
        store.write(folder / "cells" / f"{cell_id}.parquet", cell_table(cell_id, value, run_id=folder.name, **columns))
    plan = {"created": folder.name, "cells": [{"id": i, "columns": {"cell_id": i, "suite": "s"}} for i in cell_ids]}
    (folder / "run.json").write_text(json.dumps(plan))
    return folder


def warned(*paths):
    """The frame, and what was warned of."""
    with pytest.warns() as caught:
        frame = store.read_results(*paths)
    return frame, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("cut", ["0 bytes", "4 bytes", "half", "all but one byte", "no parquet at all"])
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path, cut):
    run = make_run(tmp_path / "run", "good1", "bad", "good2", "good3")
    file = run / "cells" / "bad.parquet"
    whole = file.read_bytes()
    file.write_bytes({"0 bytes": b"", "4 bytes": whole[:4], "half": whole[: len(whole) // 2],
                      "all but one byte": whole[:-1], "no parquet at all": b"status: ok\n" * 50}[cut])  # fmt: skip
    frame, said = warned(run)
    assert len(said) == 1
    assert said[0].startswith("bad.parquet cannot be read and is left out: ")
    assert frame["cell_id"].tolist() == ["good1", "bad", "good2", "good3"]  # as planned
    assert frame["status"].tolist() == ["ok", "interrupted", "ok", "ok"]
    assert frame["message"].tolist()[1] == "its result file cannot be read"


def test_a_bit_that_flips_in_the_data_changes_no_row_unnoticed(tmp_path):
    run = make_run(tmp_path / "run", "a", value=0.1)
    file = run / "cells" / "a.parquet"
    whole = file.read_bytes()
    rows = store.read_results(run)
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    rng = np.random.default_rng(0)
    noticed = 0
    for place in rng.choice(len(whole) - footer, 100, replace=False):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        with warnings.catch_warnings(action="ignore"):
            found = store.read_results(run)
        if found["status"].tolist() == ["interrupted"]:
            noticed += 1
        else:
            pd.testing.assert_frame_equal(found, rows)
    assert noticed > 50


SAVES = """
import sys
from pathlib import Path
from bench import store
for k in range(1, 10**6):
    rows = [{"metric": "loss", "value": float(k)}]
    store.write(Path(sys.argv[1]), store.table({"schema_version": 1, "cell_id": "a", "message": "x" * 100_000}, rows))
    print(k, flush=True)
"""


def test_a_process_that_is_killed_while_it_saves_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "a.parquet"
    command = [sys.executable, "-P", "-c", SAVES, str(path)]
    for attempt in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        seen = [int(process.stdout.readline()) for _ in range(5)]
        threading.Event().wait(0.001 * attempt)
        process.send_signal(signal.SIGKILL)
        seen += [int(line) for line in process.communicate()[0].split()]
        (value,) = pq.read_table(path)["value"].to_pylist()
        assert value in (seen[-1], seen[-1] + 1)
    assert store.read_results(path)["cell_id"].tolist() == ["a"]


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.parquet"
    store.write(path, cell_table("a", value=1.0))
    noise = np.random.default_rng(0).bytes(300_000).hex()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError):
            store.write(path, cell_table("a", value=2.0, message=noise))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.read_results(path)["value"].tolist() == [1.0]
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]


WRITES = """
import sys
from pathlib import Path
from bench import store
run = Path(sys.argv[1])
(run / "cells").mkdir(parents=True)
for k in range(50):
    cell = {"schema_version": 1, "cell_id": f"{run.name}{k}", "status": "ok"}
    store.write(run / "cells" / f"{k}.parquet", store.table(cell, [{"metric": "loss", "value": 1.0}]))
    store.write_text(run / "run.json", '{"cells": []}')
"""


def test_two_processes_write_while_a_third_reads_and_no_row_is_lost(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-P", "-c", WRITES, str(tmp_path / name)]) for name in "ab"]
    while any(writer.poll() is None for writer in writers):
        for run in store.runs(tmp_path):
            store.read_results(run)  # a warning would be an error here
        for file in tmp_path.glob("*/cells/*.parquet"):
            assert pq.read_metadata(file).num_rows == 1
    assert [writer.returncode for writer in writers] == [0, 0]
    frame = store.read_results(tmp_path)
    assert len(frame) == frame["cell_id"].nunique() == 100


def test_of_several_processes_one_makes_the_plan(tmp_path):
    path = tmp_path / "run.json"
    told, start = [], threading.Barrier(8)

    def make(k):
        start.wait()
        told.append((store.write_text_once(path, str(k)), k))

    threads = [threading.Thread(target=make, args=(k,)) for k in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    (winner,) = [k for first, k in told if first]
    assert path.read_text() == str(winner)
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("names", [("old", "young"), ("young", "old")])
def test_columns_that_an_older_file_lacks_are_null_and_no_row_is_lost(tmp_path, names):
    old, young = (tmp_path / f"{'ab'[names.index(name)]}.parquet" for name in ("old", "young"))
    store.write(old, cell_table("old").drop_columns(["message", "threads", "head"]))
    store.write(young, cell_table("young", message="m", threads=2).append_column("n_heads", pa.array([4])))
    frame = store.read_results(*sorted(tmp_path.iterdir()))
    assert set(store.SCHEMA.names) | {"n_heads"} == set(frame.columns)
    frame = frame.set_index("cell_id")
    assert len(frame) == 2
    assert frame.loc["young", ["message", "threads", "n_heads"]].tolist() == ["m", 2, 4]
    assert frame.loc["old", ["message", "threads", "n_heads"]].isna().all()
    assert frame["schema_version"].tolist() == [1, 1]
    assert frame["threads"].dtype == "Int64"


@pytest.mark.parametrize("together", [1, 4, 50_000])
def test_tables_become_one_frame_with_every_value_however_many_are_converted_at_once(together, monkeypatch):
    monkeypatch.setattr(framing, "TOGETHER", together)
    texts, whole, real = [None, "a", "b", "\u03bb"], [None, 0, -1, 2**62], [None, 0.5, -1e300]
    rng = np.random.default_rng(0)
    made, tables = [], []
    for k in range(12):
        rows = [
            {"metric": rng.choice(texts), "step": rng.choice(whole), "value": rng.choice(real),
             "verified": rng.choice([None, True, False])} for _ in range(int(rng.integers(0, 5)))
        ] or [{}]  # fmt: skip
        table = store.table({"cell_id": f"{k}", "unit": rng.choice(texts), "threads": rng.choice(whole)}, rows)
        if k % 3 == 0:
            table = table.append_column("own", pa.array([k] * len(table)))
        if k % 4 == 0:
            table = table.drop_columns(["batch"])
        tables.append(table)
        made += [dict.fromkeys([*store.SCHEMA.names, "own"]) | row for row in table.to_pylist()]
    frame = store.frame(tables)
    assert [*frame] == [*store.SCHEMA.names, "own"]
    for name in frame:
        assert [None if pd.isna(x) else x for x in frame[name]] == [row[name] for row in made], name
    assert {str(frame[name].dtype) for name in ("step", "threads", "batch", "own")} == {"Int64"}
    assert [str(frame[name].dtype) for name in ("value", "verified", "metric")] == ["float64", "boolean", "object"]
    assert frame.index.tolist() == [*range(len(made))]
    assert len({id(text) for text in frame["unit"] if text is not None}) == frame["unit"].nunique()


def test_no_table_at_all_is_an_empty_frame_with_every_column():
    frame = store.frame([])
    assert [*frame] == store.SCHEMA.names
    assert len(frame) == 0
    assert frame["seed"].dtype == "Int64"


def test_a_file_of_an_older_schema_alone_has_every_column(tmp_path):
    store.write(tmp_path / "a.parquet", cell_table().drop_columns(["message", "verified"]))
    assert set(store.SCHEMA.names) == set(store.read_results(tmp_path / "a.parquet").columns)


def test_a_newer_version_is_left_out_and_named(tmp_path):
    run = make_run(tmp_path / "run", "a", "b")
    store.write(run / "cells" / "b.parquet", cell_table("b", schema_version=store.SCHEMA_VERSION + 1))
    frame, said = warned(run)
    assert said == ["b.parquet has schema version 2, newer than 1, and is left out"]
    assert frame.set_index("cell_id")["status"].to_dict() == {"a": "ok", "b": "interrupted"}


def test_whole_numbers_stay_whole_and_seed_zero_is_found(tmp_path):
    seeds = {"a": 2**53 + 1, "b": None, "c": 0, "d": 1}
    for name, seed in seeds.items():
        store.write(tmp_path / f"{name}.parquet", cell_table(name, seed=seed))
    frame = store.read_results(*sorted(tmp_path.iterdir()))
    assert frame["seed"].dtype == "Int64"
    assert [None if pd.isna(seed) else int(seed) for seed in frame["seed"]] == list(seeds.values())
    assert frame[frame["seed"] == 0]["cell_id"].tolist() == ["c"]
    assert frame[frame["seed"] == 2**53 + 1]["cell_id"].tolist() == ["a"]


def test_categories_in_a_file_come_back_as_plain_columns(tmp_path):
    frame = cell_table().to_pandas()
    frame["model"] = pd.Categorical(frame["model"], categories=["m", "never"])
    frame["length"] = pd.Categorical([1024], categories=[1024, 2048])
    frame.to_parquet(tmp_path / "a.parquet")
    found = store.read_results(tmp_path / "a.parquet")
    assert found["length"].dtype == "Int64"
    assert len(found.groupby(["model", "length"], observed=False)) == 1


def test_a_folder_that_is_named_like_a_column_adds_none(tmp_path):
    folder = tmp_path / "seed=7" / "model=x"
    folder.mkdir(parents=True)
    store.write(folder / "a.parquet", cell_table(seed=3))
    assert store.read_results(folder / "a.parquet")[["seed", "model"]].to_numpy().tolist() == [[3, "m"]]


def test_a_run_that_was_renamed_or_copied_has_its_new_name(tmp_path):
    run = make_run(tmp_path / "old", "a", "b")
    (run / "cells" / "b.parquet").unlink()
    store.write(run / "cells" / "unplanned.parquet", cell_table("c", run_id="old"))
    frame = store.read_results(run.rename(tmp_path / "new"))
    assert frame["cell_id"].tolist() == ["a", "b", "c"]
    assert set(frame["run_id"]) == {"new"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (cell_table("b").slice(0, 0), "it holds no row"),
        (cell_table(None), "rows of it name no cell"),
        (cell_table("b").drop_columns(["cell_id"]), '\'Field "cell_id" does not exist'),
        (cell_table("b").set_column(0, "schema_version", pa.array(["new"])), "Failed to parse string"),
    ],
)
def test_a_file_that_says_nothing_of_a_cell_is_left_out_and_its_cell_is_not_done(tmp_path, content, reason):
    run = make_run(tmp_path / "run", "a", "b")
    store.write(run / "cells" / "b.parquet", content)
    frame, said = warned(run)
    assert len(said) == 1
    assert said[0].startswith(f"b.parquet cannot be read and is left out: {reason}")
    assert frame.set_index("cell_id")["status"].to_dict() == {"a": "ok", "b": "interrupted"}


def test_columns_of_others_that_do_not_go_together_are_texts(tmp_path):
    store.write(tmp_path / "a.parquet", cell_table("a").append_column("note", pa.array(["x"])))
    store.write(tmp_path / "b.parquet", cell_table("b").append_column("note", pa.array([7])))
    store.write(tmp_path / "c.parquet", cell_table("c").append_column("more", pa.array([8])))
    frame = store.read_results(*sorted(tmp_path.iterdir()))
    assert [None if pd.isna(text) else text for text in frame["note"]] == ["x", "7", None]
    assert frame["more"].dtype == "Int64"


def test_a_value_that_is_not_finite_is_read_as_a_measurement_stores_it(tmp_path):
    store.write(tmp_path / "a.parquet", cell_table("a", float("inf")))
    assert store.read_results(tmp_path / "a.parquet")["value"].isna().all()


def test_diverged_and_never_run_look_different(tmp_path):
    run = make_run(tmp_path / "run", "nan", "absent")
    store.write(run / "cells" / "nan.parquet", cell_table("nan", None, "diverged", message="non-finite loss at step 3"))
    (run / "cells" / "absent.parquet").unlink()
    frame = store.read_results(run).set_index("cell_id")
    assert frame["value"].isna().all()
    assert frame["status"].to_dict() == {"nan": "diverged", "absent": "interrupted"}
    assert frame["message"].to_dict() == {"nan": "non-finite loss at step 3", "absent": "no result file"}


def test_of_one_cell_under_other_code_the_newest_counts_with_a_warning_and_no_average(tmp_path):
    make_run(tmp_path / "1", "a", "b", value=0.5, code="old", started_at="2026-01-01")
    make_run(tmp_path / "2", "a", value=0.9, code="new", started_at="2026-01-02")
    for paths in ([tmp_path], [tmp_path / "1", tmp_path / "2"], [tmp_path / "2", tmp_path / "1"]):
        frame, said = warned(*paths)
        assert said == ["1 cells were measured more than once, under different code: the newest counts"]
        assert frame.set_index("cell_id")["value"].to_dict() == {"a": 0.9, "b": 0.5}


def test_of_one_cell_measured_again_under_the_same_code_the_newest_counts_in_silence(tmp_path):
    make_run(tmp_path / "1", "a", value=0.5, started_at="2026-01-01")
    make_run(tmp_path / "2", "a", value=0.9, started_at="2026-01-02")
    assert store.read_results(tmp_path)["value"].tolist() == [0.9]


def test_a_cell_without_a_file_never_replaces_one_that_was_measured(tmp_path):
    make_run(tmp_path / "1", "a", value=0.5)
    later = make_run(tmp_path / "2", "a")
    (later / "cells" / "a.parquet").unlink()
    for paths in ([tmp_path], [tmp_path / "2", tmp_path / "1"]):
        assert store.read_results(*paths)["value"].tolist() == [0.5]


def test_what_is_named_twice_is_read_once(tmp_path):
    run = make_run(tmp_path / "run", "a", "b")
    joined = tmp_path / "joined.parquet"
    store.read_results(run).to_parquet(joined)
    assert len(store.read_results(run, run)) == 2
    assert len(store.read_results(tmp_path, run, joined)) == 2
    assert store.read_results(joined)["seed"].dtype == "Int64"


def test_reference_and_asv_are_skipped_unless_they_are_named(tmp_path):
    for name in ("run", "asv", "reference"):
        make_run(tmp_path / name, name)
    assert store.read_results(tmp_path)["cell_id"].tolist() == ["run"]
    assert store.read_results(tmp_path / "reference")["cell_id"].tolist() == ["reference"]


def test_nothing_to_read_is_an_error_that_names_the_place(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=path.name):
            bench.read_results(path)


def test_a_damaged_plan_is_named_and_the_cells_are_read(tmp_path):
    run = make_run(tmp_path / "run", "a")
    for content in ("", "{", "[1]", "\x00\xff"):
        (run / "run.json").write_bytes(content.encode("latin-1"))
        frame, said = warned(run)
        assert said[0].startswith("run.json of run cannot be read: ")
        assert frame["cell_id"].tolist() == ["a"]


def test_result_files_can_be_read_by_others_as_the_users_umask_says(tmp_path):
    before = os.umask(0o022)
    try:
        store.write(tmp_path / "a.parquet", cell_table())
        store.write_text(tmp_path / "run.json", "{}")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o644}


@pytest.fixture
def measurement():
    request = Request.parse(suite="stability", models="lru", seeds="0", depths="1", set=["d_model=4", "d_state=4"])
    return Measurement(cells(request, "cpu", "quick")[0], "cpu", threads=1)


def test_any_frameworks_scalar_is_saved_as_a_number_or_as_null_with_the_reason(measurement, tmp_path):
    import jax.numpy as jnp
    import torch

    halves = {
        "Python": 0.5,
        "numpy float32": np.float32(0.5),
        "numpy 0-d": np.array(0.5),
        "torch": torch.tensor(0.5),
        "torch with gradient": torch.tensor(0.5, requires_grad=True),
        "torch bfloat16": torch.tensor(0.5, dtype=torch.bfloat16),
        "jax": jnp.float32(0.5),
    }
    nulls = {"NaN": float("nan"), "torch NaN": torch.tensor(float("nan")), "infinite": np.inf, "nothing": None}
    for name, value in (halves | nulls).items():
        measurement.record(name, value, step=np.int64(3), layer=0)
    columns = measurement.cell_columns() | {"status": "ok"}
    store.write(tmp_path / "a.parquet", store.table(columns, measurement.rows))
    frame = store.read_results(tmp_path / "a.parquet").set_index("metric")
    assert frame["value"].dropna().to_dict() == dict.fromkeys(halves, 0.5)
    assert frame["message"].dropna().to_dict() == {
        "NaN": "nan is not finite", "torch NaN": "nan is not finite", "infinite": "inf is not finite",
        "nothing": "not measured",
    }  # fmt: skip
    assert set(frame["step"]) == {3}


def test_what_cannot_be_saved_is_an_error_when_it_is_recorded(measurement):
    with pytest.raises(ValueError, match="'three' does not fit into the column step"):
        measurement.record("loss", 1.0, step="three")
    with pytest.raises(ValueError, match=r"does not fit into the column batch"):
        measurement.describe(batch="many")
    with pytest.raises(ValueError, match="no such column: size"):
        measurement.describe(size=3)
    with pytest.raises(ValueError, match="the fact x cannot be stored as JSON"):
        measurement.fact(x=float("nan"))
    with pytest.raises(ValueError, match="the fact x cannot be stored as JSON"):
        measurement.fact(x=object())
    with pytest.raises((TypeError, ValueError)):
        measurement.record("loss", np.ones(3))
    assert measurement.rows == []


def test_facts_are_json_and_in_every_row(measurement):
    measurement.fact(order=np.int64(3), shape=(1, 2), weights=np.ones(2), label="x")
    assert json.loads(measurement.cell_columns()["facts"]) == {
        "order": 3, "shape": [1, 2], "weights": [1.0, 1.0], "label": "x",
    }  # fmt: skip


def test_the_message_of_a_failed_cell_is_in_every_row_after_the_rows_own():
    rows = [{"metric": "a", "message": "own"}, {"metric": "b"}]
    assert store.table({"status": "ok"}, rows)["message"].to_pylist() == ["own", None]
    assert store.table({"status": "error", "message": "why"}, rows)["message"].to_pylist() == ["own; why", "why"]


def test_paths_are_cut_to_the_package_and_other_text_stays():
    home = os.path.expanduser("~")
    texts = {
        f'File "{sys.prefix}/lib/x.py", line 3': 'File "lib/x.py", line 3',
        f'File "{os.path.dirname(pd.__file__)}/core/frame.py"': 'File "pandas/core/frame.py"',
        f'File "{os.path.dirname(bench.__file__)}/plan.py"': 'File "bench/plan.py"',
        f"cannot open '{home}/secret project/data.npy'": "cannot open 'secret project/data.npy'",
        "no /scratch/alice/data/x.tsv, sorry": "no x.tsv, sorry",
        "FileNotFoundError: /mnt/alice/a:/mnt/bob/b": "FileNotFoundError: a:b",
        "see https://pytorch.org/docs/stable/x.html": "see https://pytorch.org/docs/stable/x.html",
        "1/2 of 3 / 4, and/or n/a; sum |x|^2 / state_reals": "1/2 of 3 / 4, and/or n/a; sum |x|^2 / state_reals",
        "torch/nn/modules/module.py": "torch/nn/modules/module.py",
    }
    assert {text: cut_paths(text) for text in texts} == texts


def test_a_message_stays_short_however_long_the_error_is():
    try:
        raise ValueError("x" * 10**6)
    except ValueError as error:
        text = short_traceback(error)
    assert "in test_a_message_stays_short_however_long_the_error_is" in text
    assert text.endswith("(1,000,012 characters)")
    assert len(text) < 4000


def test_rows_and_environment_name_no_user_no_host_and_no_path(measurement):
    measurement.record("loss", 1.0)
    described = environment.describe({"torch": {"devices": ["NVIDIA H200"], "cuda": True, "version": "2"}})
    row = store.table(measurement.cell_columns(), measurement.rows).to_pylist()[0]
    for text in [json.dumps(described), json.dumps(row)]:
        assert socket.gethostname() not in text
        assert os.path.expanduser("~") not in text
        assert '"/' not in text
        if getpass.getuser() != "root":  # a word of its own right in other names
            assert getpass.getuser() not in text
    assert described["gpus"] == ["NVIDIA H200"]
    assert described["packages"]["numpy"] == np.__version__
    assert described["cores"] >= 1
    assert described["cpu"]
