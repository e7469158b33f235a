"""`bench table` and `bench why`: the right numbers, marks and notes from stores that are not as one would wish."""

import csv
import io
import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from made_store import NAME, cell, changed, id_of, invoke, run_of, seeds, timed

from bench import store
from bench.report import comparison, estimates, tables, why, writers
from bench.report.writers import CELLS
from suites.accuracy.published import figure

pytestmark = pytest.mark.filterwarnings("default::bench.store.IncompleteResults")


@pytest.fixture
def build(tmp_path):
    def made(cells, **choices):
        folder = run_of(tmp_path / f"run{len(list(tmp_path.iterdir()))}", cells)
        return tables.build(store.read_results(folder), **choices)

    return made


def fields(sheet, column=0):
    return {row[0]: found[column] for row, found in sheet.rows}


def test_means_intervals_and_marks_are_those_of_the_statistics(build):
    a, b, c = [0.90, 0.91, 0.93], [0.88, 0.91, 0.90], [0.5, 0.6, 0.7]
    sheet = build([*seeds("a", a), *seeds("b", b), *seeds("c", c)])
    found = fields(sheet)
    exact = estimates.mean(100 * np.array(a))
    assert found["a"].number == pytest.approx(exact.value)
    assert (found["a"].low, found["a"].high) == (pytest.approx(exact.low), pytest.approx(exact.high))
    assert [found[m].mark for m in "abc"] == ["best", "second", ""]
    assert (found["a"].n, found["a"].planned) == (3, 3)
    assert "No difference is marked by a test" in " ".join(sheet.caption)  # .25 at best with three seeds
    assert "the least p that can be had is 0.5 " in " ".join(sheet.caption)  # .25 twice, by Holm


def test_with_enough_seeds_what_no_test_tells_from_the_best_is_bold_too(build):
    rng = np.random.default_rng(0)
    base = 0.9 + 0.01 * rng.standard_normal(8)
    close, far = base + 0.003 * np.array([1, -1, 2, -2, 1, -1, 1, -0.5]), base - 0.05  # both signs alike
    sheet = build([*seeds("base", base), *seeds("close", close), *seeds("far", far)])
    best, other = ("base", "close") if base.mean() > close.mean() else ("close", "base")
    scores = {"base": 100 * base, "close": 100 * close, "far": 100 * far}
    p = [comparison.compare(scores[best], scores[name]).p for name in (other, "far")]
    corrected = comparison.corrected(p, "holm")
    assert corrected[0] > 0.05 >= corrected[1]
    assert {name: field.mark for name, field in fields(sheet).items()} == {
        "base": "best", "close": "best", "far": "second"
    }  # fmt: skip
    assert "Bold: the best of a column and all that do not differ" in " ".join(sheet.caption)


def test_a_diverged_seed_is_named_never_averaged_away_and_never_best(build):
    cells = [*seeds("good", [0.8, 0.8, 0.81]), cell("bad", 0, 0.99), cell("bad", 1, None, "diverged"),
             cell("bad", 2, None, "diverged")]  # fmt: skip
    sheet = build(cells)
    bad = fields(sheet)["bad"]
    assert (bad.value, bad.half, bad.mark, bad.n, bad.planned) == ("99.0", "", "", 1, 3)
    assert sheet.footnotes == ["2 of 3 diverged; the mean is over the others"]
    assert bad.notes == (1,)
    assert fields(sheet)["good"].mark == ""  # nothing whole to compare it with


def test_a_missing_cell_is_a_dash_with_its_status(build):
    cells = [*seeds("a", [0.8, 0.9]), *(cell("b", seed, None, "interrupted") for seed in (0, 1))]
    sheet = build(cells)
    b = fields(sheet)["b"]
    assert (b.value, b.mark, b.notes) == ("-", "", (1,))
    assert sheet.footnotes == ["2 of 2 interrupted"]


def test_what_was_never_planned_is_a_dash_without_a_note(build):
    sheet = build([*seeds("a", [0.8, 0.9]), *seeds("b", [0.8, 0.9]), *seeds("a", [0.1, 0.2], task="osuleaf")])
    found = fields(sheet, column=1)
    assert sheet.columns == ["digits", "osuleaf"]
    assert (found["b"].value, found["b"].notes, found["b"].cells) == ("-", (), ())


def test_ties_are_all_best(build):
    sheet = build([*seeds("a", [0.8, 0.9]), *seeds("b", [0.9, 0.8]), *seeds("c", [0.1, 0.2])])
    assert [field.mark for field in fields(sheet).values()] == ["best", "best", "second"]


def test_of_a_measure_that_is_better_lower_the_least_is_best(build):
    cells = [*seeds("a", [0.8, 0.9], metric="loss"), *seeds("b", [0.2, 0.3], metric="loss")]
    sheet = build(cells, metric="loss")
    assert [field.mark for field in fields(sheet).values()] == ["second", "best"]
    assert "lower is better" in sheet.caption[0]


def test_of_what_is_better_nearer_0_sizes_are_shown_and_the_smallest_is_best(build):
    """One drifts by 3 up or down, whose mean is near 0; the other by 1 always."""
    cells = [*seeds("far", [3.0, -3.0], metric="drift"), *seeds("near", [1.0, 1.0], metric="drift")]
    moved = [(columns | {"suite": "stability"}, rows) for columns, rows in cells]
    found = fields(build(moved, metric="drift"))
    assert (found["far"].number, found["near"].number) == (3, 1)
    assert (found["far"].mark, found["near"].mark) == ("second", "best")


def test_one_seed_has_no_interval_and_no_test(build):
    sheet = build([*seeds("a", [0.8]), *seeds("b", [0.85])])
    assert [(field.half, field.mark) for field in fields(sheet).values()] == [("", "second"), ("", "best")]
    assert "1 seed;" in sheet.caption[0]
    assert not any("±" in text for text in sheet.caption)


def test_an_option_that_one_model_alone_has_changes_nothing_else(build):
    cells = [*seeds("a", [0.8, 0.9], options='{"heads": 4}'), *seeds("b", [0.7, 0.8])]
    assert list(fields(build(cells))) == ["a", "b"]


def test_two_results_of_one_cell_are_not_averaged(tmp_path):
    first = run_of(tmp_path / "a", [cell("a", 0, 0.5)])
    second = run_of(tmp_path / "b", [cell("a", 0, 0.9, started=1)])
    sheet = tables.build(store.read_results(first, second))
    assert fields(sheet)["a"].number == pytest.approx(90)


def test_a_truncated_file_and_an_older_schema(tmp_path):
    folder = run_of(tmp_path / "run", [*seeds("a", [0.8, 0.9]), *seeds("b", [0.7, 0.6])])
    broken = folder / "cells" / f"{id_of('a', 'digits', 0)}.parquet"
    broken.write_bytes(broken.read_bytes()[:200])
    old = folder / "cells" / f"{id_of('b', 'digits', 1)}.parquet"
    pq.write_table(pq.read_table(old).drop_columns(["compiled", "facts"]), old)
    with pytest.warns(store.IncompleteResults, match="cannot be read"):
        results = store.read_results(folder)
    found = fields(tables.build(results))
    assert (found["a"].n, found["a"].planned, found["a"].number) == (1, 2, pytest.approx(90))
    assert (found["b"].n, found["b"].number) == (2, pytest.approx(65))


def test_cells_that_differ_by_more_than_their_seed_are_kept_apart_or_refused(build):
    cells = [*seeds("a", [0.8, 0.9]), *seeds("a", [0.5, 0.6], depth=4)]
    sheet = build(cells)
    assert sheet.columns == ["depth 2", "depth 4"]  # the depth, the only thing that varies
    with pytest.raises(
        ValueError, match=r"model a, task digits: its cells differ in depth \(2, 4\): name it in --rows"
    ):
        build(cells, rows=["model"], columns=["task"])
    sheet = build(cells, rows=["model"], columns=["task"], where={"depth": "4"})
    assert fields(sheet)["a"].number == pytest.approx(55)
    assert [row for row, _ in build(cells, rows=["model", "depth"], columns=["task"]).rows] == [("a", "2"), ("a", "4")]


@pytest.mark.parametrize(
    ("name", "columns", "values"),
    [
        ("suite_version", {"suite_version": 2}, ("1", "2")),
        ("gamma", {"options": '{"gamma": "tied"}'}, ("learned", "tied")),
        ("recipe", {"recipe": "paper", "factors": '{"recipe": "paper", "steps": 500}'}, ("quick", "paper")),
        ("steps", {"factors": '{"recipe": "quick", "steps": 9}'}, ("500", "9")),
        ("d_state", {"d_state": 64}, ("128", "64")),
    ],
)  # fmt: skip
def test_cells_of_another_run_that_are_others_are_never_taken_for_the_same(build, name, columns, values):
    cells = seeds("a", [0.8, 0.9], options='{"gamma": "learned"}', d_state=128)
    sheet = build([*cells, *changed(seeds("a", [0.5, 0.6], options='{"gamma": "learned"}', d_state=128), **columns)])
    assert sheet.row_heads == ["model", name.replace("_", " ")]
    numbers = {row: found[0].number for row, found in sheet.rows}
    assert numbers == {("a", values[0]): pytest.approx(85), ("a", values[1]): pytest.approx(55)}


def test_an_option_that_a_model_got_between_two_runs_is_no_difference_but_two_cells_of_a_seed_are_refused(build):
    before, after = '{"gamma": "learned"}', '{"gamma": "learned", "ring": true}'
    first = seeds("a", [0.8, 0.9], options=before)
    later = changed([cell("a", 2, 0.7)], options=after)
    assert fields(build([*first, *later]))["a"].number == pytest.approx(80)
    again = changed([cell("a", 1, 0.7)], options=after)
    says = (
        rf"model a, task digits: {id_of('a', 'digits', 1)} and [0-9a-f]+ are two cells of seed 1 \(ring - / True; runs"
    )
    with pytest.raises(ValueError, match=says):
        build([*first, *again])


def test_options_can_make_rows(build):
    cells = [*seeds("a", [0.8, 0.9], options='{"gamma": 1}'), *seeds("a[gamma=2]", [0.5, 0.6], options='{"gamma": 2}'),
             *seeds("b", [0.3, 0.5])]  # fmt: skip
    sheet = build(cells, rows=["gamma"], columns=["task"])
    assert {row: found[0].number for row, found in sheet.rows} == {
        ("1",): pytest.approx(85), ("2",): pytest.approx(55), ("-",): pytest.approx(40),
    }  # fmt: skip


def test_a_test_with_too_few_pairs_makes_nothing_bold(build):
    rng = np.random.default_rng(1)
    best = 0.9 + 0.002 * rng.standard_normal(10)
    near = best + 0.003 * np.array([1, -1, 2, -2, 1, -1, 1, -0.5, -1, -0.5])
    sheet = build([*seeds("best", best), *seeds("near", near), *seeds("far", best - 0.4), *seeds("few", [0.50, 0.51])])
    marks = {name: field.mark for name, field in fields(sheet).items()}
    top = max(("best", "near"), key=lambda name: fields(sheet)[name].number)
    assert marks[top] == "best"
    assert marks[{"best": "near", "near": "best"}[top]] == "best"
    assert marks["few"] != "best"  # two pairs have no p below .5
    assert "1 test had too few seeds to tell anything." in sheet.caption


def test_a_cell_without_its_value_is_counted_and_its_row_is_never_best(build):
    sheet = build([*seeds("a", [0.9, 0.9]), cell("a", 2), *seeds("b", [0.6, 0.7, 0.65])])
    found = fields(sheet)["a"]
    assert (found.n, found.planned, found.mark) == (2, 3, "")
    assert [sheet.footnotes[i - 1] for i in found.notes] == ["1 of 3 without a value; the mean is over the others"]


def test_seeds_that_are_still_needed_are_enough_for_a_mark(build):
    sheet = build([*seeds("a", [0.9, 0.91, 0.92]), *seeds("b", [0.5, 0.52, 0.51])], baseline="a")
    (row,) = writers.details(sheet).rows
    assert row[-1] == "3"  # the t test has its power with fewer, but no p of a sign flip is below .05 from fewer than 6
    assert "from 6 on one could be" in " ".join(sheet.caption)


@pytest.mark.parametrize(("choices", "says"), [
    ({"metric": "acuracy"}, "unknown metric of suite accuracy 'acuracy': did you mean 'accuracy'"),
    ({"rows": ["modle"]}, "unknown factor in --rows and --columns 'modle': did you mean 'model'"),
    ({"where": {"depth": "9"}}, "--where depth=9: no cell has it: there are 2"),
    ({"where": {"dept": "2"}}, "unknown factor in --where 'dept'"),
    ({"suite": "stability"}, "unknown suite in --suite 'stability'"),
    ({"baseline": "b"}, "unknown row in --baseline 'b': allowed are a"),
    ({"baseline": "a", "statistic": "iqm"}, "--baseline compares means: leave out --statistic iqm"),
    ({"statistic": "mode"}, "unknown statistic in --statistic 'mode': did you mean"),
    ({"overall": True}, "--overall needs more than one column"),
])  # fmt: skip
def test_wrong_choices_are_refused(build, choices, says):
    with pytest.raises(ValueError, match=says):
        build(seeds("a", [0.8, 0.9]), **choices)


# What spread is taken over; other statistics; differences from a row; all columns together.


def test_of_times_the_processes_are_what_repeats(build):
    sheet = build([timed("a", [[1e-3, 3e-3, 2e-3], [4e-3, 4e-3, 9e-3]]), timed("b", [[1e-3], [1e-3], [1e-3]])])
    a = fields(sheet)["a"]
    exact = estimates.mean([2.0, 4.0])  # the processes' medians, in ms
    assert (a.number, a.low, a.high, a.n) == (3.0, exact.low, exact.high, 2)
    assert sheet.caption[0] == "Mean over 2 to 3 processes; lower is better."


@pytest.mark.parametrize(("statistic", "value"), [("mean", 30), ("median", 20), ("iqm", 20)])
def test_other_statistics_than_the_mean(build, statistic, value):
    sheet = build(seeds("a", [0.1, 0.2, 0.2, 0.2, 0.8]), statistic=statistic)
    assert fields(sheet)["a"].number == pytest.approx(value)


def test_differences_from_a_row_are_paired_by_seed(build):
    base, other = np.array([0.50, 0.60, 0.90]), np.array([0.53, 0.64, 0.92])
    sheet = build([*seeds("base", base), *seeds("other", other)], baseline="base")
    assert sheet.title == "Test accuracy [%], difference from that of base"
    assert [row for row, _ in sheet.rows] == [("other",)]
    field = fields(sheet)["other"]
    paired = comparison.compare(100 * other, 100 * base)
    assert field.number == pytest.approx(3) == pytest.approx(paired.difference)
    assert (field.low, field.high) == (pytest.approx(paired.low), pytest.approx(paired.high))
    assert (field.text[:4], field.p, field.against) == ("+3.0", 0.25, "base")
    assert set(field.cells) == {id_of(model, "digits", seed) for model in ("base", "other") for seed in range(3)}


def test_a_difference_that_a_test_shows_is_marked_better_or_worse(build):
    base = np.array([0.5, 0.6, 0.7, 0.55, 0.65, 0.58, 0.61, 0.52])
    cells = [*seeds("base", base), *seeds("up", base + 0.1 + 0.01 * np.arange(8)), *seeds("down", base - 0.1),
             *seeds("same", base + 0.01 * np.array([1, -1, 2, -2, 1, -1, 1, -0.5]))]  # fmt: skip
    marks = {name: field.mark for name, field in fields(build(cells, baseline="base")).items()}
    assert marks == {"up": "better", "down": "worse", "same": ""}
    losses = [(columns, [rows[0] | {"metric": "loss"}]) for columns, rows in cells]
    marks = {name: field.mark for name, field in fields(build(losses, baseline="base", metric="loss")).items()}
    assert marks == {"up": "worse", "down": "better", "same": ""}


def test_differences_of_times_are_ratios_with_an_interval_on_the_log_scale(build):
    sheet = build([timed("a", [[1e-3], [2e-3], [4e-3]]), timed("b", [[2e-3], [8e-3], [8e-3]])], baseline="a")
    field = fields(sheet)["b"]
    logs = np.log([2, 4, 2])
    exact = estimates.mean(logs)
    assert field.number == pytest.approx(np.exp(logs.mean()))
    assert (field.low, field.high) == (pytest.approx(np.exp(exact.low)), pytest.approx(np.exp(exact.high)))
    assert field.text == f"{field.number:.2f} [{field.low:.2f}, {field.high:.2f}]"
    assert sheet.title == "Time, over that of a"


def test_a_baseline_goes_row_by_row_where_rows_have_several_names(build):
    cells = [*seeds("a", [0.5, 0.6]), *seeds("b", [0.6, 0.8])]
    jax = [({**columns, "backend": "jax", "cell_id": columns["cell_id"][::-1]}, [{**rows[0], "value": 1.0}])
           for columns, rows in cells]  # fmt: skip
    sheet = build([*cells, *jax], rows=["model", "backend"], columns=["task"], baseline="a")
    found = {row: field.number for row, (field,) in sheet.rows}
    assert found == {("b", "torch"): pytest.approx(15), ("b", "jax"): 0}


def test_over_all_columns_there_is_a_mean_with_seeds_varying_within_and_a_mean_rank(build):
    a, b = {"digits": [0.8, 0.9], "osuleaf": [0.4, 0.5]}, {"digits": [0.7, 0.6], "osuleaf": [0.6, 0.8]}
    both = [(model, task, values) for model, of in (("a", a), ("b", b)) for task, values in of.items()]
    cells = [one for model, task, values in both for one in seeds(model, values, task=task)]
    cells += [one for task in a for one in seeds("c", [0.99, 0.99] if task == "digits" else [0.1], task=task)]
    cells.append(cell("c", 1, None, "oom", task="osuleaf"))
    sheet = build(cells, overall=True)
    assert sheet.columns == ["digits", "osuleaf", "all 2", "mean rank"]
    found = {row[0]: row_fields[2:] for row, row_fields in sheet.rows}
    exact = estimates.mean(100 * np.array([[0.8, 0.4], [0.9, 0.5]]))
    whole, rank = found["a"]
    assert (whole.number, whole.low, whole.high) == (exact.value, exact.low, exact.high)
    assert (rank.value, found["b"][1].value) == ("1.50", "1.50")
    assert [field.value for field in found["c"]] == ["-", "-"]  # it lacks a seed of one


def shared(values, other):
    """Cells of one task in two depths."""
    return [*seeds("a", values, depth=1), *seeds("a", other, depth=2)]


def test_over_columns_that_share_seeds_each_seed_counts_once(build):
    values, other = [0.8, 0.9, 0.7], [0.82, 0.91, 0.69]
    sheet = build(shared(values, other), columns=["depth"], overall=True)
    exact = estimates.mean(100 * (np.array(values) + other) / 2)
    whole = sheet.rows[0][1][2]
    assert (whole.number, whole.low, whole.high) == tuple(map(pytest.approx, (exact.value, exact.low, exact.high)))
    assert "±: over seeds, as columns have seeds in common" in " ".join(sheet.caption)
    sheet = build(shared(values, other), columns=["depth"], overall=True, statistic="median")
    assert (sheet.rows[0][1][2].number, sheet.rows[0][1][2].low) == (pytest.approx(100 * (2.4 + 2.42) / 6), None)


def test_ranks_over_columns_that_share_seeds_have_no_test(build):
    cells = [one for model, add in (("a", 0), ("b", 0.01), ("c", 0.02)) for depth in (1, 2, 3, 4)
             for one in seeds(model, [0.5 + add, 0.6 + add], depth=depth)]  # fmt: skip
    sheet = build(cells, columns=["depth"], overall=True)
    assert [row_fields[-1].value for _, row_fields in sheet.rows] == ["3.00", "2.00", "1.00"]
    said = " ".join(sheet.caption)
    assert "mean rank: over the 4 columns, 1 is best; no test, as columns have seeds in common." in said
    assert "Friedman" not in said


def test_differences_over_all_columns_have_the_interval_that_the_caption_names(build):
    """From ten pairs on too, where that of a single row's numbers would be bootstrapped."""
    rng = np.random.default_rng(1)
    base, other = 0.5 + 0.1 * rng.random((2, 12)), 0.6 + 0.1 * rng.random((2, 12))
    cells = [one for model, scores in (("a", base), ("b", other)) for task, own in zip(("x", "y"), scores, strict=True)
             for one in seeds(model, own, task=task)]  # fmt: skip
    sheet = build(cells, overall=True, baseline="a")
    exact = estimates.mean(100 * (other - base).T, method="t")
    whole = sheet.rows[0][1][2]
    assert (whole.low, whole.high) == (pytest.approx(exact.low), pytest.approx(exact.high))
    assert "Student's t" in " ".join(sheet.caption)


def test_the_chance_to_be_better_says_better_whatever_the_direction(build):
    cells = [one for task in ("x", "y") for model, value in (("a", 2.0), ("b", 1.0))
             for one in seeds(model, value + 0.1 * np.arange(5), task=task, metric="loss")]  # fmt: skip
    sheet = build(cells, metric="loss", overall=True, baseline="a")
    assert sheet.rows[0][1][-1].value == "1.00"  # a lower loss, always
    assert "chance to be better: that one seed is better than one of a in the same column" in " ".join(sheet.caption)


def test_the_chance_to_be_better_has_an_interval_where_columns_are_independent_alone(build):
    def chance(columns, **places):
        ((name, values),) = places.items()
        cells = [one for value in values for model, add in (("a", 0.0), ("b", 0.03))
                 for one in seeds(model, 0.5 + add + 0.02 * np.arange(6), **{name: value})]  # fmt: skip
        return build(cells, columns=[columns], overall=True, baseline="a").rows[0][1][-1]

    tasks, depths = chance("task", task=("x", "y")), chance("depth", depth=(1, 2))
    assert tasks.value == depths.value
    assert tasks.bounds is not None
    assert depths.bounds is None


def test_all_that_tie_for_second_are_underlined(build):
    sheet = build([*seeds("a", [0.9]), *seeds("b", [0.8]), *seeds("c", [0.8]), *seeds("d", [0.7])])
    assert [field.mark for field in fields(sheet).values()] == ["best", "second", "second", ""]


def test_a_whole_number_that_only_one_model_has_stays_whole(build):
    cells = [*seeds("a", [0.9], options='{"heads": 16}'), *seeds("b", [0.8], options="{}")]
    assert [row for row, _ in build(cells, rows=["model", "heads"]).rows] == [("a", "16"), ("b", "-")]


def test_beside_a_baseline_stands_the_chance_to_be_better_from_five_seeds_on(build):
    def cells(count):
        above = [0.9, 0.8, 0.85, 0.95, 0.82][:count]
        return [*seeds("a", [0.5] * count), *seeds("b", above), *seeds("a", [0.5] * count, task="osuleaf"),
                *seeds("b", [0.5] * count, task="osuleaf")]  # fmt: skip

    sheet = build(cells(5), overall=True, baseline="a")
    assert sheet.columns[-1] == "chance to be better"
    assert all(field.cells for _, found in sheet.rows for field in found)  # `bench why` finds them behind each number
    lines = [line for line in writers.latex(sheet).splitlines() if line.startswith("b & ")]
    assert [len(ids.split(",")) for ids in lines[0].partition(CELLS)[2].split(";")] == [10, 10, 20, 10, 20]
    assert sheet.rows[0][1][-1].value == "0.75"  # always above in one, always equal in the other
    assert build(cells(4), overall=True, baseline="a").rows[0][1][-1].value == "-"


def test_a_cell_that_failed_stands_at_the_length_that_was_asked_for(build):
    good = [timed(model, [[1e-3]], length=64) for model in "ab"]
    long = [({**columns, "cell_id": columns["cell_id"][::-1], "factors": '{"length": 128}', "length": 128}, rows)
            for columns, rows in good]  # fmt: skip
    long[1] = ({**long[1][0], "length": None, "status": "oom"}, [])
    sheet = build([*good, *long])
    assert sheet.columns == ["length 64", "length 128"]
    field = fields(sheet, column=1)["b"]
    assert (field.value, sheet.footnotes[field.notes[0] - 1]) == ("-", "1 of 1 oom")


def test_over_all_columns_times_have_ratios_alone(build):
    cells = [timed("a", [[1e-3], [1e-3]]), timed("b", [[2e-3], [2e-3]])]
    long = [(columns | {"cell_id": columns["cell_id"][::-1], "factors": '{"length": 128}'},
             [row | {"value": 4 * row["value"] if columns["model"] == "b" else row["value"]} for row in rows])
            for columns, rows in cells]  # fmt: skip
    sheet = build([*cells, *long], overall=True, baseline="a")
    assert sheet.rows[0][1][2].number == pytest.approx(4)  # of 2 and 8
    with pytest.raises(ValueError, match="--overall: Time has no scale that columns share: add --baseline, for ratios"):
        build([*cells, *long], overall=True)


# Formats.


@pytest.fixture
def sheet(build):
    return build([*seeds(NAME, [0.8, 0.9]), *seeds("b", [0.71, 0.7]), cell("b", 2, None, "oom"), cell(NAME, 2, 0.85)])


def test_latex_escapes_names_and_carries_the_cells_of_each_number(sheet):
    text = writers.latex(sheet)
    assert r"a\_b\&c\%d\#e{[}x=1{]} & " in text
    (line,) = [line for line in text.splitlines() if line.startswith("b & ")]
    assert line.endswith(CELLS + ",".join(id_of("b", "digits", seed) for seed in (0, 1, 2)))
    assert r"\textsuperscript{1}~1 of 3 oom; the mean is over the others.\par" in text
    for needed in (r"\toprule", r"\midrule", r"\bottomrule", r"\num{85"):
        assert needed in text
    assert writers.latex(sheet) == text


def test_macros_are_letters_alone_and_differ(sheet):
    lines = writers.macros(sheet).splitlines()
    names = [re.fullmatch(r"\\newcommand\{\\([A-Za-z]+)\}\{.*\} % cells: .*", line).group(1) for line in lines]
    assert names == ["TestAccuracyABCDEXOneDigits", "TestAccuracyBDigits"]


def test_macros_of_two_tables_of_one_measure_differ(build):
    cells = [*seeds("a", [0.8, 0.9]), *seeds("b", [0.7, 0.75])]
    made = [
        build(cells, **choices)
        for choices in ({}, {"baseline": "a"}, {"statistic": "median"}, {"where": {"depth": "2"}})
    ]
    names = [re.findall(r"newcommand\{(.+?)\}", writers.macros(sheet)) for sheet in made]
    assert names[0][-1] == r"\TestAccuracyBDigits"
    assert names[1] == [r"\TestAccuracyDifferenceFromThatOfABDigits"]
    assert len({name for found in names for name in found}) == sum(map(len, names))


def test_letters_that_latex_does_not_have_without_packages_are_written_so_that_it_compiles(build):
    text = writers.latex(build(seeds("λ-naïve-Ω-😀", [0.8, 0.9])))
    assert r"$\lambda$-naïve-$\Omega$-U+1F600 & " in text


def test_a_table_that_is_wider_than_a_page_is_told(tmp_path):
    cells = [one for i in range(14) for one in seeds("a", [0.8, 0.9], task=f"a-task-of-number-{i}")]
    done = invoke("table", run_of(tmp_path / "wide", cells), "--format", "latex")
    assert "wider than a page (100): exchange --rows and --columns" in done.stderr
    done = invoke("table", tmp_path / "wide", "--format", "latex", "--rows", "task", "--columns", "model")
    assert (done.exit_code, done.stderr) == (0, "")


def test_csv_is_tidy_and_keeps_all_digits(sheet):
    rows = list(csv.DictReader(io.StringIO(writers.comma_separated(sheet))))
    assert [row["model"] for row in rows] == [NAME, "b"]
    assert float(rows[0]["value"]) == pytest.approx(85)
    assert (rows[1]["n"], rows[1]["planned"], rows[1]["notes"]) == ("2", "3", "1 of 3 oom; the mean is over the others")


def test_markdown_and_html_show_the_same_numbers_and_escape_names(build):
    sheet = build([*seeds("<script>alert(1)</script>|x", [0.8, 0.9]), *seeds("b", [0.5, 0.6])])
    value = f"{sheet.rows[0][1][0].value} ± {sheet.rows[0][1][0].half}"
    text, page = writers.markdown(sheet), writers.hypertext(sheet)
    assert f"**{value}**" in text
    assert "</script>\\|x" in text
    assert f"<b>{value}</b>" in page
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;|x" in page
    assert f"{value} *" in writers.block(sheet).rows[0]


def test_the_text_of_a_html_table_keeps_notes_apart_from_numbers(sheet):
    (marked,) = [field for _, (field,) in sheet.rows if field.notes]
    text = re.sub("<[^>]*>", "", writers.hypertext(sheet))
    assert f"{marked.text} (1)" in text


# The command.


def test_the_command_prints_each_format_and_why_finds_the_cells(tmp_path):
    run = run_of(tmp_path / "run", [*seeds("a", [0.8, 0.9]), *seeds("b", [0.7, 0.75], task="osuleaf")])
    for kind in ("text", "latex", "markdown", "csv", "html"):
        done = invoke("table", run, "--format", kind)
        assert done.exit_code == 0, done.output
        assert "85" in done.output
    file, names = tmp_path / "t.tex", tmp_path / "m.tex"
    file.write_text(invoke("table", run, "--format", "latex", "--macros", names).output)
    lines = file.read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.startswith("b & ")]
    column = lines[number - 1].index("num") + 1
    assert why.cells_at(f"{file}:{number}:{column}") == [id_of("b", "osuleaf", 0), id_of("b", "osuleaf", 1)]
    done = invoke("why", f"{file}:{number}:{column}", run)
    assert done.exit_code == 0
    assert id_of("b", "osuleaf", 1) in done.output
    assert why.cells_at(f"{names}:1:1") == [id_of("a", "digits", 0), id_of("a", "digits", 1)]
    for place, says in (
        ("nowhere.tex:1:1", "there is no such file"),
        (f"{file}", "should read FILE:LINE:COLUMN"),
        (f"{file}:1:1", "this line carries no cells"),
        (f"{file}:999:1", "the file has"),
        (f"{file}:{number}:1", "this is the name of a row"),
        (f"{file}:{number}:5", "nothing was planned here"),
    ):
        refused = invoke("why", place, run)
        assert refused.exit_code == 2
        assert says in refused.output


def test_cells_that_the_oracle_contradicts_are_left_out_and_named(tmp_path):
    wrong, rows = cell("wrong", 0, 0.99)
    run = run_of(tmp_path / "run", [*seeds("a", [0.8]), (wrong, [rows[0] | {"verified": False}])])
    done = invoke("table", run)
    assert "1 cell is left out of the tables" in done.stderr
    assert "99" not in done.stdout
    sheet = tables.build(store.read_results(run))
    assert sheet.footnotes == ["1 of 1 unverified"]
    assert fields(sheet)["wrong"].number is None
    shown = invoke("table", run, "--unverified")
    assert shown.stderr == ""
    assert fields(tables.build(store.read_results(run), unverified=True))["wrong"].number == pytest.approx(99)


def test_a_row_that_lost_seeds_to_the_oracle_says_so_and_is_never_best(build):
    cells = [(made, [rows[0] | {"verified": made["seed"] > 0}]) for made, rows in seeds("a", [0.9, 0.9, 0.9])]
    sheet = build([*cells, *seeds("b", [0.6, 0.7, 0.65])])
    found = fields(sheet)["a"]
    assert (found.n, found.planned, found.mark) == (2, 3, "")
    assert sheet.footnotes == ["1 of 3 unverified; the mean is over the others"]


def test_ids_of_a_store_are_data_and_never_markup(build):
    (made, rows), other = seeds("a", [0.8, 0.9])
    page = writers.hypertext(build([(made | {"cell_id": 'x"><b onclick="y'}, rows), other]))
    assert "<b onclick" not in page
    assert "x&quot;&gt;&lt;b onclick=&quot;y" in page


def test_a_name_that_looks_like_the_comment_of_a_line_hides_no_cell(build, tmp_path):
    file = tmp_path / "t.tex"
    file.write_text(writers.latex(build(seeds("a % cells: x", [0.8, 0.9]))))
    (number,) = [i for i, line in enumerate(file.read_text().splitlines(), 1) if "num" in line and "&" in line]
    ids = [id_of("a % cells: x", "digits", seed) for seed in (0, 1)]
    assert why.cells_at(f"{file}:{number}:40") == ids


def test_a_table_of_a_store_that_cannot_all_be_read_ends_with_1(tmp_path):
    run = run_of(tmp_path / "run", seeds("a", [0.8, 0.9]))
    file = run / "cells" / f"{id_of('a', 'digits', 0)}.parquet"
    file.write_bytes(file.read_bytes()[:99])
    done = invoke("table", run)
    assert done.exit_code == 1
    assert "90.00" in done.stdout
    assert "cannot be read" in done.stderr
    assert invoke("plot", run, "--out", tmp_path / "figures").exit_code == 1


def test_a_device_is_named_by_what_was_measured(tmp_path):
    cells = [*seeds("a", [0.8, 0.9]), cell("a", 2, None, "interrupted", env_id=None)]
    run = run_of(tmp_path / "run", cells, environment={"cpu": "Test CPU"})
    assert (
        invoke("table", run)
        .stdout.rstrip()
        .endswith("on Test CPU.\n(1) 1 of 3 interrupted; the mean is over the others.")
    )


def test_wrong_words_are_refused(tmp_path):
    run = run_of(tmp_path / "run", seeds("a", [0.8, 0.9]))
    for words, says in (
        (["--format", "word"], "unknown format in --format 'word': allowed are csv, html, latex, markdown, text"),
        (["--correction", "bonferroni"], "unknown correction in --correction 'bonferroni'"),
        (["--where", "depth"], "--where 'depth' should read FACTOR=VALUE"),
        (["--where", "depth=2", "--where", "depth=4"], "--where depth: 2 and 4: name one value"),
        (["--macros", tmp_path], "this is a folder: name a file in it"),
        (["--macros", tmp_path / "nowhere" / "x.tex"], "there is no folder"),
    ):
        done = invoke("table", run, *words)
        assert done.exit_code == 2
        assert says in done.output


def test_published_rows_stand_apart_with_their_sources(tmp_path):
    place = {"facts": json.dumps({"published": ["LRA", "ListOps"]}), "task": "listops"}
    run = run_of(tmp_path / "run", [*seeds("lru", [0.5, 0.6], **place), *seeds("rotrnn", [0.4, 0.5], **place)])
    sheet = tables.build(store.read_results(run), published=True)
    rows = {row[0]: found[0] for row, found in sheet.published}
    assert rows["LRU"].value.startswith("60.2")
    assert "printed" in sheet.footnotes[rows["LRU"].notes[0] - 1]
    assert [row for row, _ in sheet.rows] == [("lru",), ("rotrnn",)]
    text = writers.latex(sheet)
    assert text.index("published") < text.index("LRU &")
    with pytest.raises(
        ValueError, match="--published: published figures are test accuracies, not Test loss: leave out"
    ):
        tables.build(store.read_results(run), published=True, metric="loss")


def test_published_figures_that_are_not_read_in_the_paper_itself_stand_there_on_request_alone(tmp_path):
    place = {"facts": json.dumps({"published": ["Speech Commands 35", "16 kHz"]}), "task": "speech-commands"}
    results = store.read_results(run_of(tmp_path / "run", seeds("rotrnn", [0.5, 0.6], **place)))
    usual, more = (tables.build(results, published=True, summaries=summaries) for summaries in (False, True))
    assert "RotRNN" not in {row[0] for row, _ in usual.published}
    rows = {row[0]: found[0] for row, found in more.published}
    assert rows["RotRNN"].value == "95.2"
    assert more.footnotes[rows["RotRNN"].notes[0] - 1].endswith("(summary)")
    assert figure(("Speech Commands 35", "16 kHz"), "rotrnn") == "-"
