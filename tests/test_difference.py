"""`bench diff` and `bench rerun`: what changed between two sets of results, and whether a cell can be had again."""

import dataclasses
import json
import math
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import SMALL
from made_store import cell, id_of, invoke, run_of, seeds, timed

from bench import plan, registry, runner, store
from bench.report import difference, provenance
from bench.report.blocks import Table

pytestmark = pytest.mark.filterwarnings("default::bench.store.IncompleteResults")

BASE = np.array([0.80, 0.82, 0.81, 0.84, 0.79, 0.83, 0.85])


@pytest.fixture
def folders(tmp_path):
    """Runs A and B of these cells."""
    return lambda a, b: (run_of(tmp_path / "a", a), run_of(tmp_path / "b", b))


@pytest.fixture
def compare(folders):
    """The difference of two lists of cells."""

    def made(a, b, **choices):
        before, after = map(store.read_results, folders(a, b))
        return difference.difference(before, after, **choices)

    return made


def of_suite(suite, cells):
    return [(columns | {"suite": suite}, rows) for columns, rows in cells]


def altered(cells, **changes):
    """The same cells with other content, and so with other ids."""
    return [(columns | changes | {"cell_id": columns["cell_id"][::-1]}, rows) for columns, rows in cells]


def test_difference_interval_and_p_are_those_of_a_hand_calculation(compare):
    """Differences 4, 3, 2, -1 points: a mean of 2, a standard deviation of sqrt(14 / 3), t(.975, 3) = 3.182446.

    Of 16 flips, all alike (a sum of 10) and -1 turned over (8 as it stands, with its mirror) reach |8|: p = 4 / 16.
    """
    a = [0.50, 0.60, 0.70, 0.80]
    (change,) = compare(seeds("m", a), seeds("m", [0.54, 0.63, 0.72, 0.79])).values
    half = 3.182446 * math.sqrt(14 / 3) / 2
    assert (change.before, change.after) == (pytest.approx(65), pytest.approx(67))
    assert change.test.difference == pytest.approx(2)
    assert (change.test.low, change.test.high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert change.corrected == 0.25
    assert change.mark == "too few pairs"  # .125 is the least that four can give


@pytest.mark.parametrize(
    ("suite", "metric", "factor", "mark"),
    [
        ("accuracy", "accuracy", 0.9, "worse"),
        ("accuracy", "accuracy", 1.1, "better"),
        ("accuracy", "loss", 0.9, "better"),
        ("accuracy", "loss", 1.1, "worse"),
        ("stability", "drift", -1.1, "worse"),  # nearer 0 is better: of a drift the size counts
        ("stability", "drift", -0.9, "better"),
        ("throughput", "time", 1.1, "worse"),
        ("throughput", "tokens_per_s", 1.1, "better"),
    ],
)
def test_better_and_worse_follow_the_measure(folders, suite, metric, factor, mark):
    """Seven differences of one sign have p = 2 / 2^7 = .0156."""
    runs = [of_suite(suite, seeds("m", values, metric=metric)) for values in (BASE, factor * BASE)]
    done = invoke("diff", *folders(*runs), "--json")
    assert done.exit_code == int(mark == "worse")
    (table,) = [block for block in json.loads(done.stdout) if "mark" in block.get("columns", [])]
    (row,) = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert (row["mark"], row["p"], row["pairs"]) == (mark, "0.016", "7")


def test_p_values_are_corrected_over_all_that_changed_and_nothing_else(compare):
    six, seven = BASE[:6], BASE
    same = seeds("equal", seven)  # equal values are no test
    one = compare([*seeds("m", six), *same], [*seeds("m", six - 0.01), *same])
    assert [(c.corrected, c.mark) for c in one.values] == [(2 / 2**6, "worse")]
    assert one.equal["Test accuracy"] == (7, 13)


def test_of_two_changes_six_seeds_cannot_mark_one_and_seven_can(compare):
    both = [*seeds("m", BASE[:6]), *seeds("n", BASE[:6])], [*seeds("m", BASE[:6] - 0.01), *seeds("n", BASE[:6] - 0.1)]
    found = compare(*both)
    assert [(c.corrected, c.mark) for c in found.values] == [(2 * 2 / 2**6, "too few pairs")] * 2
    assert not found.fault
    text = " ".join(block.text for block in difference.blocks(found) if not isinstance(block, Table))
    assert "the least p that can be had is 0.062 " in text
    assert "Holm over 2 tests); from 7 pairs on one could be." in text


def test_with_seven_seeds_two_changes_are_marked(compare):
    found = compare([*seeds("m", BASE), *seeds("n", BASE)], [*seeds("m", BASE - 0.01), *seeds("n", BASE + 0.1)])
    assert [(c.names["model"], c.corrected, c.mark) for c in found.values] == [
        ("m", 2 * 2 / 2**7, "worse"), ("n", 2 * 2 / 2**7, "better")
    ]  # fmt: skip
    assert found.fault


def test_differences_of_either_sign_are_no_difference_shown(compare):
    (change,) = compare(seeds("m", BASE), seeds("m", BASE + 0.01 * np.array([1, -1, 1, -1, 1, -1, 0.5]))).values
    assert change.mark == "no difference shown"


def test_times_are_compared_as_ratios_of_geometric_means(compare):
    """1, 2 and 4 ms have the geometric mean 2; all doubled: a ratio of 2 without spread."""
    a, b = (of_suite("throughput", seeds("m", s * np.array([1e-3, 2e-3, 4e-3]), metric="time")) for s in (1, 2))
    found = compare(a, b)
    (change,) = found.values
    assert (change.before, change.after) == (pytest.approx(2), pytest.approx(4))
    assert math.exp(change.test.difference) == pytest.approx(2)
    (table,) = [block for block in difference.blocks(found) if isinstance(block, Table)]
    assert table.rows[0][-7:] == ["3", "2.000", "4.000", "2", "-", "0.25", "too few pairs"]
    assert table.columns[-4] == "B / A"


def test_a_title_names_the_task_of_the_values_and_no_other(compare):
    a = [*seeds("m", BASE, task="digits"), *seeds("m", BASE, task="osuleaf")]
    found = compare(a, seeds("m", BASE + 0.01, task="osuleaf"))
    titles = [block.title for block in difference.blocks(found) if isinstance(block, Table)]
    assert titles[-1].startswith("Test accuracy [%], higher is better (accuracy: osuleaf, torch")


def test_means_that_lie_far_apart_keep_their_digits(compare):
    sides = (seeds("m", value * np.ones(2), metric="loss") for value in (0.0635, 16))
    found = [block for block in difference.blocks(compare(*sides)) if isinstance(block, Table)]
    row = dict(zip(found[-1].columns, found[-1].rows[0], strict=True))
    assert (row["A"], row["B"], row["B - A"]) == ("0.0635", "16.0000", "+15.9")


def test_a_cell_again_has_the_time_that_tables_have():
    """Processes of 1 and 3 samples: medians of 1 and 4 ms have the mean 2.5; of all samples the median is 4."""
    made, rows = timed("m", [[1e-3], [4e-3, 4e-3, 4e-3]])
    before = store.frame([store.table(made, rows)])
    after = store.frame([store.table(made, [row | {"value": 2 * row["value"]} for row in rows])])
    (table,) = [block for block in difference.again(before, after) if isinstance(block, Table)]
    assert table.rows[0] == ["Time [ms]", "2.5", "5", "+2.5"]


def test_of_runs_without_digests_no_file_is_said_to_have_changed(folders):
    a, b = folders(seeds("m", BASE), seeds("m", BASE, code="other"))
    sides = [provenance.Provenance.of_cells(store.read_results(run), [run]) for run in (a, b)]
    known = dataclasses.replace(sides[0], files={"bench/cli.py": frozenset("1")})
    (table,) = provenance.differences(known, sides[1], "A", "B")
    assert table.notes == ["Which files differ is not known: B kept no digests of them."]


def test_times_of_one_seed_are_paired_by_process(compare):
    """Two processes a cell, with 1 and 2 ms, then 2 and 4: medians over the samples of each."""
    columns, (row,) = cell("m", 0, 0.0, metric="time", suite="throughput")
    runs = [
        [(columns, [row | {"process": i, "value": s * t} for i, t in enumerate((1e-3, 2e-3)) for s in (k, k, 9 * k)])]
        for k in (1, 2)
    ]
    (change,) = compare(*runs).values
    assert (change.test.n, change.corrected) == (2, 0.5)
    assert (change.before, change.after) == (pytest.approx(math.sqrt(2)), pytest.approx(math.sqrt(8)))


@pytest.mark.parametrize(("tolerance", "code"), [(None, 0), (0.2, 0), (0.05, 1)])
def test_a_tolerance_makes_a_worse_mean_a_fault_where_seeds_are_few(folders, tolerance, code):
    """A tenth less, of three seeds, which no test could mark."""
    words = [] if tolerance is None else ["--tolerance", tolerance]
    done = invoke("diff", *folders(seeds("m", BASE[:3]), seeds("m", 0.9 * BASE[:3])), *words)
    assert done.exit_code == code
    assert ("worse by tolerance" if code else "too few pairs") in done.stdout


def test_a_better_mean_is_within_any_tolerance(folders):
    done = invoke("diff", *folders(seeds("m", BASE[:3]), seeds("m", 1.1 * BASE[:3])), "--tolerance", "0")
    assert done.exit_code == 0
    assert "too few pairs" in done.stdout


def test_equal_results_are_counted_and_no_fault(folders):
    done = invoke("diff", *folders(seeds("m", BASE), seeds("m", BASE)))
    assert done.exit_code == 0
    assert "Test accuracy 7 of 7" in done.stdout
    assert "7 cells in both: 0 missing, 0 added, 0 changed in status, 0 value gone, 0 worse, 0 better" in done.stdout
    assert "mark" not in done.stdout


@pytest.mark.parametrize(
    ("before", "after", "code", "strict"),
    [
        ("ok", "oom", 1, 1),
        ("ok", "interrupted", 1, 1),
        ("diverged", "error", 1, 1),
        ("ok", "diverged", 0, 1),
        ("ok", "unconverged", 0, 1),
        ("oom", "ok", 0, 0),
        ("oom", "error", 0, 0),
        ("diverged", "ok", 0, 0),
    ],
)
def test_a_status_is_a_fault_where_it_was_good_and_is_not(folders, before, after, code, strict):
    value = {"ok": 0.8, "unconverged": 0.8}
    runs = [[*seeds("m", [0.8, 0.9]), cell("m", 2, value.get(status), status)] for status in (before, after)]
    found = folders(*runs)
    done = invoke("diff", *found)
    assert done.exit_code == code
    assert re.search(rf"status +m +2 +{before} +{after} .*{id_of('m', 'digits', 2)}", done.stdout)
    assert "1 changed in status" in done.stdout
    assert invoke("diff", *found, "--strict").exit_code == strict


def test_a_diverged_seed_is_no_pair(compare):
    a = [*seeds("m", [0.8, 0.9]), cell("m", 2, 0.1)]
    b = [*seeds("m", [0.7, 0.8]), cell("m", 2, 0.1, "diverged")]
    (change,) = compare(a, b).values
    assert (change.test.n, change.test.left_out, change.before) == (2, 1, pytest.approx(85))


def test_missing_cells_are_a_fault_and_added_ones_are_not(folders):
    more, less = [*seeds("m", [0.8, 0.9]), *seeds("n", [0.7])], seeds("m", [0.8, 0.9])
    a, b = folders(more, less)
    done = invoke("diff", a, b)
    assert done.exit_code == 1
    assert re.search(rf"missing +n .*{id_of('n', 'digits', 0)}", done.stdout)
    done = invoke("diff", b, a)
    assert done.exit_code == 0
    assert re.search(rf"added +n .*{id_of('n', 'digits', 0)}", done.stdout)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"suite_version": 2}, "2 missing cells have a counterpart among the added that differs in this alone: "
                               "suite version 1 -> 2."),
        ({"options": '{"heads": 8}', "model": "m[heads=8]"}, "differs in this alone: heads."),
        ({"factors": '{"recipe": "quick", "steps": 800}'}, "differs in this alone: steps."),
        ({"dtype": "bfloat16"}, "differs in this alone: dtype float32 -> bfloat16."),
        ({"dtype": "bfloat16", "suite_version": 2}, None),
        ({"model": "other"}, None),
    ],
)  # fmt: skip
def test_cells_that_are_alike_but_for_one_thing_are_counted(compare, changes, says):
    a = seeds("m", [0.8, 0.9])
    found = compare(a, altered(a, **changes))
    notes = [note.text for note in found.notes]
    assert (len(found.cells), found.matched) == (4, 0)
    assert any(says in note for note in notes) if says else not any("counterpart" in note for note in notes)


def test_many_cells_are_counted_after_the_first(folders):
    done = invoke("diff", *folders(seeds("m", 0.1 + np.zeros(50)), seeds("m", [0.1])))
    assert done.stdout.count("missing  ") == difference.CELLS_SHOWN
    assert f"and {49 - difference.CELLS_SHOWN} more missing" in done.stdout


def test_a_value_that_is_gone_from_a_cell_that_is_ok_is_a_fault(folders):
    done = invoke("diff", *folders(seeds("m", [0.8, 0.9]), [*seeds("m", [0.8]), cell("m", 1, None)]))
    assert done.exit_code == 1
    assert re.search(r"value gone +m .*Test accuracy: no value", done.stdout)


def test_a_layer_that_the_oracle_contradicts_now_has_no_value(folders):
    columns, rows = cell("m", 0, 0.8)
    done = invoke("diff", *folders([(columns, rows)], [(columns, [rows[0] | {"verified": False}])]))
    assert done.exit_code == 1
    assert "Test accuracy: its layer is not shown to agree with the oracle" in done.stdout


def test_one_measure_may_be_chosen(folders):
    columns, (row,) = cell("m", 0, 0.8)
    rows = [[row | {"value": value}, row | {"metric": "loss", "value": value}] for value in (0.8, 0.7)]
    runs = folders(*([(columns, one)] for one in rows))
    assert [name in invoke("diff", *runs).stdout for name in ("Test accuracy [%], higher", "Test loss, lower")] == [
        True
    ] * 2
    done = invoke("diff", *runs, "--metric", "loss")
    assert [name in done.stdout for name in ("Test accuracy", "Test loss, lower is better")] == [False, True]
    assert "one pair" in done.stdout


def test_a_truncated_file_is_a_fault_on_either_side(folders):
    a, b = folders(seeds("m", [0.8, 0.9]), seeds("m", [0.8, 0.9]))
    broken = b / "cells" / f"{id_of('m', 'digits', 0)}.parquet"
    broken.write_bytes(broken.read_bytes()[:200])
    done = invoke("diff", a, b)
    assert done.exit_code == 1
    assert "cannot be read" in done.stderr
    assert re.search("status .*ok +interrupted +its result file cannot be read", done.stdout)
    assert "Test accuracy 1 of 1" in done.stdout
    assert invoke("diff", b, a).exit_code == 1  # part of what is compared could not be read


def test_cells_of_an_older_schema_are_the_same_cells(folders):
    a, b = folders([*seeds("m", BASE[:3])], [*seeds("m", BASE[:3])])
    for path in [*(a / "cells").iterdir()][:2]:
        pq.write_table(pq.read_table(path).drop_columns(["compiled", "facts"]), path)
    done = invoke("diff", a, b)
    assert done.exit_code == 0
    assert "Test accuracy 3 of 3" in done.stdout
    before, after = store.read_results(a), store.read_results(b)
    after["value"] += 0.01
    (change,) = difference.difference(before, after).values
    assert change.test.n == 3  # one group, whatever an older file does not say


def test_of_two_results_of_one_cell_the_newest_counts(tmp_path):
    run_of(tmp_path / "a" / "old", [cell("m", 0, 0.5)])
    run_of(tmp_path / "a" / "new", [cell("m", 0, 0.9, started=1)])
    b = run_of(tmp_path / "b", [cell("m", 0, 0.9)])
    done = invoke("diff", tmp_path / "a", b)
    assert done.exit_code == 0
    assert "Test accuracy 1 of 1" in done.stdout


def test_a_suite_that_is_not_installed_is_said_and_is_a_fault(folders):
    cells = of_suite("elsewhere", seeds("m", [0.8]))
    done = invoke("diff", *folders(cells, cells))
    assert done.exit_code == 1
    assert "suite elsewhere is not installed here, so its values are not compared" in done.stdout


def test_what_differs_in_code_machine_and_threads_is_shown(tmp_path):
    machine = {"cpu": "one", "cores": 2, "packages": {"torch": "2.12"}, "commit": "a" * 40, "dirty": False}
    other = machine | {"packages": {"torch": "2.13"}, "commit": "b" * 40, "dirty": True}
    sources = {"x.py": "1", "y.py": "1"}, {"x.py": "1", "y.py": "2"}
    codes = [registry.code_id(hashes) for hashes in sources]
    a = run_of(tmp_path / "a", [cell("m", 0, 0.8, threads=1, code=codes[0])], sources[0], machine)
    b = run_of(tmp_path / "b", [cell("m", 0, 0.8, threads=2, code=codes[1])], sources[1], other)
    b = b.rename(tmp_path / "moved")
    blocks = json.loads(invoke("diff", a, b, "--json").stdout)
    (found,) = [block for block in blocks if block.get("title") == "Measured with"]
    assert found["rows"] == [
        ["code", *codes], ["threads", "1", "2"], ["commit", "a" * 10, "b" * 10 + " with changes"],
        ["torch", "2.12", "2.13"],
    ]  # fmt: skip
    assert found["notes"] == ["Changed in the code: y.py"]
    assert "Code, packages, machine and threads are the same." in invoke("diff", a, a).stdout


def test_wrong_words_of_diff_are_refused(folders, tmp_path):
    a, b = folders(seeds("m", [0.8]), seeds("m", [0.8]))
    empty = run_of(tmp_path / "empty", [])
    for words, says in (
        ((a, b, "--metric", "acuracy"), "unknown measure in --metric 'acuracy': did you mean 'accuracy'"),
        ((a, b, "--correction", "none"), "unknown correction in --correction 'none'"),
        ((a, b, "--tolerance", "-0.1"), "--tolerance is -0.1: a share of the mean, 0 or more"),
        ((a, tmp_path / "nowhere"), "there is no run here"),
        ((empty, b), "its runs have no cells"),
    ):
        done = invoke("diff", *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert says in done.stderr
    assert invoke("diff", a, empty).exit_code == 1


# A cell measured again.


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the run `one` of one tiny cell."""
    out = tmp_path_factory.mktemp("results")
    done = invoke("run", *SMALL, "--models", "lru", "--set", "d_state=8", "--out", out, "--run", "one")
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def repeated(place):
    """What `bench rerun` printed of that cell, which went into the run `two`."""
    (file,) = (place / "one" / "cells").iterdir()
    return invoke("rerun", file.stem[:8], "--out", place, "--run", "two")


def test_a_cell_that_is_measured_again_is_equal_to_the_last_bit(repeated, place):
    assert repeated.exit_code == 0, repeated.output
    first, then = repeated.stdout.splitlines()[0], repeated.stdout
    assert "of one: stability, lru[d_state=8], torch, cpu, float32, listops" in first
    assert "Code, packages, machine and threads are the same." in then
    rows = [line for line in then.splitlines() if line.startswith(("Size of", "Largest", "Accuracy", "Loss"))]
    assert len(rows) >= 2
    assert all("equal to the last bit" in row for row in rows)
    one, two = (store.read_results(place / name) for name in ("one", "two"))
    where = ["cell_id", "metric", *difference.WHERE, "value"]
    assert one[where].equals(two[where])
    assert one["started_at"][0] < two["started_at"][0]


def test_a_rerun_is_a_run_that_is_compared_and_reported(repeated, place):
    done = invoke("diff", place / "one", place / "two")
    assert done.exit_code == 0, done.output
    assert "1 cells in both: 0 missing" in done.stdout
    assert invoke("report", place / "two").exit_code == 0
    assert store.load_json(place / "two" / "run.json")["cells"] == store.load_json(place / "one" / "run.json")["cells"]


def test_the_newest_result_of_a_cell_is_what_a_rerun_is_compared_with(repeated, place):
    (file,) = (place / "one" / "cells").iterdir()
    assert runner.find_cell(file.stem, store.runs(place)) == (file.stem, place / "two")
    assert runner.find_cell(file.stem[:6].upper(), [place / "one"]) == (file.stem, place / "one")


def test_cells_that_cannot_be_found_or_had_again_are_refused(repeated, place, tmp_path):
    (file,) = (place / "one" / "cells").iterdir()
    ids = ["abcdef0000000000", "abcdef1111111111"]
    run_of(tmp_path / "two", [(cell("m", seed)[0] | {"cell_id": id_}, []) for seed, id_ in enumerate(ids)])
    for words, says in (
        (("abcde", tmp_path), "cell 'abcde': give at least 6 digits of its id"),
        (("abcdef", tmp_path), "cell abcdef may be any of abcdef0000000000, abcdef1111111111: give more digits"),
        (("abcdef2", tmp_path), "no cell abcdef2 in two"),
        (("abcdef0", tmp_path), "two: its run.json cannot be used: KeyError"),
        ((file.stem, place / "one", "--device", "gpu"), "--device is 'gpu'"),
        ((file.stem, place / "one", "--data", tmp_path / "none"), "there is no such folder"),
        ((file.stem, place / "one", "--out", place, "--run", "two"), "two exists: give the new run another"),
        ((file.stem, place / "one", "--timeout", "0"), "--timeout is 0: above 0"),
    ):
        done = invoke("rerun", *words)
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert says in done.stderr
    assert [path.name for path in sorted(place.iterdir())] == ["one", "two"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda spec: spec.update(suite_version=0), "suite_version is 1, and was 0"),
        (lambda spec: spec["options"].pop("r_max"), "r_max is new, and 0.99"),
        (lambda spec: spec["options"].update(gone=1), "model lru[d_state=8] has no option 'gone'"),
    ],
)
def test_a_cell_that_is_another_under_this_code_is_refused_with_what_changed(place, tmp_path, change, says):
    content = store.load_json(place / "one" / "run.json")
    spec = content["cells"][0]["cell"]
    change(spec)
    content["cells"][0]["id"] = plan.Cell(**spec).id
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text(json.dumps(content))
    done = invoke("rerun", content["cells"][0]["id"], "--out", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_rerun_has_as_many_threads_as_the_cell_had(place, monkeypatch):
    """On eight processors: three workers would have 3, 3 and 2 of them."""
    monkeypatch.setattr(runner.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(runner.os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (file,) = (place / "one" / "cells").iterdir()
    for threads, jobs in ((8, 1), (4, 2), (3, 3), (1, 8)):
        monkeypatch.setattr(runner.store, "first", lambda *_, threads=threads: threads)
        assert runner.prepare_rerun(file.stem, place / "one", runner.Execution()).jobs == jobs
