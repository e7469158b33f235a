"""Figures as data: what is plotted is what the store has, with the tables' intervals; and all of it can be drawn."""

import itertools
import json
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from test_throughput import given, shown, steady, weighed

from bench import store
from bench.contract import View
from bench.report import drawing, estimates
from bench.report.blocks import Table
from bench.report.cells import legend
from bench.report.drawing import log_labels, log_ticks
from bench.report.figures import Figure, Panel, Series
from bench.report.statistics import pareto
from suites.accuracy.suite import Accuracy
from suites.memory.suite import Memory
from suites.stability.suite import Stability
from suites.throughput.suite import Throughput


def rows_of(suite, model, seed, rows, status="ok", **columns):
    """The frame of one cell; rows are (metric, value, step, layer, t, split)."""
    names = ("metric", "value", "step", "layer", "t", "split")
    made = {
        "suite": suite, "model": model, "options": "{}", "factors": "{}", "backend": "torch", "device": "cpu",
        "dtype": "float32", "task": "digits", "depth": 2, "d_model": 8, "seed": seed, "params": 10, "state_reals": 4,
        "compiled": False, "status": status,
    } | columns  # fmt: skip
    made["cell_id"] = "/".join(
        str(made[name]) for name in ("model", "options", "factors", "backend", "task", "depth", "seed")
    )
    found = [dict(zip(names, row, strict=False)) for row in rows]
    return store.frame([store.table(made, found)])


def trained(model, seed, rms, status="ok", **columns):
    """A cell of stability: rms (evaluations, layers) at steps 0, 10, .., along t at both ends, and white noise."""
    rms = np.asarray(rms, float)
    steps, rows = 10 * np.arange(len(rms)), []
    for (i, step), layer in itertools.product(enumerate(steps), range(rms.shape[1])):
        rows.append(("state_rms", None if np.isnan(rms[i, layer]) else rms[i, layer], step, layer))
        if step in (0, steps[-1]):
            for t in (1, 2, 4):
                rows.append(("state_rms", rms[i, layer] / t, step, layer, t))
                noise = {"energy": (1 + seed) * t, "error": 0.1 + 0.2 * layer, "expected": 1.5 * t}
                rows += [(f"white_noise_{name}", value, step, layer, t) for name, value in noise.items()]
    return rows_of("stability", model, seed, rows if status == "ok" else rows[:1], status, **columns)


def scored(model, seed, accuracies, test=0.5, seconds=10.0, status="ok", **columns):
    """A cell of accuracy, evaluated at steps 5, 10, ..; 100 tokens a step, `seconds` in all."""
    rows = []
    for i, value in enumerate(accuracies, 1):
        rows.append(("accuracy", value, 5 * i, None, None, "validation"))
        rows.append(("seconds", seconds * i / len(accuracies), 5 * i))
        rows.append(("tokens", 500 * i, 5 * i))
    rows += [
        ("waiting", 0.01, 5),
        ("accuracy", test, 5, None, None, "test"),
        ("selected_step", 5, None, None, None, "validation"),
    ]
    return rows_of("accuracy", model, seed, rows if status == "ok" else [], status, **columns)


def together(*frames):
    return pd.concat(frames, ignore_index=True)


def figures(suite, *frames):
    return {figure.name: figure for figure in suite().figures(together(*frames), View())}


def test_norms_over_training_are_means_over_layers_with_the_interval_over_seeds():
    rms = np.array([[[1, 2], [2, 2], [4, 1]], [[1, 1], [1, 4], [8, 2]], [[2, 2], [3, 5], [1, 7]]], float)
    found = figures(Stability, *(trained("lru", seed, rms[seed]) for seed in range(3)))
    (panel,) = found["norm-over-training"].panels
    (line,) = panel.series
    moved = np.log2(rms / rms[:, :1]).mean(axis=2)  # seeds x evaluations
    assert (panel.title, line.name, line.note) == ("depth 2", "lru", "")
    np.testing.assert_array_equal(line.x, [0, 10, 20])
    np.testing.assert_allclose(line.y, moved.mean(axis=0))
    for k in (1, 2):
        exact = estimates.mean(moved[:, k])
        assert (line.low[k], line.high[k]) == (pytest.approx(exact.low), pytest.approx(exact.high))
    assert np.isnan(line.low[0])  # all seeds are at 0 there by definition
    assert "95 % interval" in found["norm-over-training"].caption


def test_a_single_seed_has_no_band_and_a_group_that_lost_seeds_says_so():
    one = trained("lru", 0, [[1], [2], [4]])
    lost = [trained("s5", seed, [[1], [2 + seed], [3]], status) for seed, status in
            enumerate(["ok", "ok", "diverged", "timeout", "ok"])]  # fmt: skip
    gone = trained("s4d", 0, [[1], [1], [1]], "diverged")
    (panel,) = figures(Stability, one, *lost, gone)["norm-over-training"].panels
    lru, s5 = panel.series  # and no s4d
    assert (lru.low, lru.note) == (None, "")
    assert (s5.name, s5.note) == ("s5", "3/5 seeds")
    np.testing.assert_allclose(s5.y, [0, np.log2([2, 3, 6]).mean(), np.log2(3)])


def test_a_value_that_is_missing_leaves_a_gap_and_no_mean_of_other_seeds():
    (panel,) = figures(
        Stability, trained("lru", 0, [[1, 1], [np.nan, 2], [2, 2]]), trained("lru", 1, [[1, 1], [4, 4], [8, 8]])
    )["norm-over-training"].panels
    np.testing.assert_array_equal(panel.series[0].y, [0, np.nan, 2])


def test_where_nothing_was_measured_there_is_no_figure():
    assert figures(Stability, trained("lru", 0, [[1], [1]], "diverged")) == {}
    assert figures(Accuracy, scored("lru", 0, [], status="timeout")) == {}
    assert figures(Throughput, given({("lru", "torch", 64): [], ("lru", "torch", 128): []})) == {}
    empty = rows_of("stability", "lru", 0, [("loss", 1.0, 10)])
    assert figures(Stability, empty) == {}
    assert figures(Accuracy, empty.assign(suite="accuracy")) == {}


def test_the_norm_over_t_is_shown_before_and_after_training():
    frames = [trained("lru", seed, [[1, 3], [2 + seed, 4]]) for seed in (0, 1)]
    start, end = figures(Stability, *frames)["norm-over-t"].panels
    assert (start.title, end.title) == ("depth 2, start", "depth 2, end")
    np.testing.assert_array_equal(end.series[0].x, [1, 2, 4])
    np.testing.assert_allclose(start.series[0].y, [2, 1, 0.5])
    np.testing.assert_allclose(end.series[0].y, [3.25, 1.625, 0.8125])  # means 3 and 3.5 over layers
    assert end.series[0].high[0] == pytest.approx(estimates.mean([3, 3.5]).high)


def test_energies_under_white_noise_stand_beside_their_exact_expectation():
    frames = [trained("lru", seed, [[1, 1], [1, 1]]) for seed in (0, 1)]
    _, end = figures(Stability, *frames)["norm-over-t-noise"].panels
    points, exact = end.series
    assert (points.style, exact.style, exact.name) == ("points", "theory", "lru")
    np.testing.assert_allclose(points.y, [1.5, 3, 6])
    np.testing.assert_allclose(exact.y, [1.5, 3, 6])
    np.testing.assert_allclose(points.high - points.y, 0.2 / np.sqrt(2))  # .1 and .3 in each of two seeds


def test_tasks_and_depths_make_panels_and_what_else_varies_is_in_the_name():
    frames = [
        trained("lru", 0, [[1], [factor]], task=task, depth=depth, backend=backend, factors=json.dumps({"rate": rate}))
        for factor, (task, depth, backend, rate) in enumerate(
            [("a", 1, "torch", 0.1), ("a", 2, "torch", 0.1), ("b", 2, "torch", 0.1), ("a", 1, "jax", 0.1),
             ("a", 1, "torch", 0.2)], 1)
    ]  # fmt: skip
    panels = figures(Stability, *frames)["norm-over-training"].panels
    assert {panel.title: [(s.name, round(2 ** s.y[-1], 9)) for s in panel.series] for panel in panels} == {
        "a, depth 1": [("lru, torch, rate 0.1", 1), ("lru, jax, rate 0.1", 4), ("lru, torch, rate 0.2", 5)],
        "a, depth 2": [("lru, torch, rate 0.1", 2)],
        "b, depth 2": [("lru, torch, rate 0.1", 3)],
    }


def test_options_are_named_where_nothing_else_tells_cells_apart():
    def group(task, **options):
        key = {"model": "lru", "task": task, "options": json.dumps(options)}
        return SimpleNamespace(key=key, cells=pd.DataFrame([key | {"suite": "s", "backend": "torch", "factors": "{}"}]))

    assert legend([group("a", d_state=4), group("b", d_state=8)], ("task",)) == ["lru", "lru"]  # as a recipe has it
    one_task = [group("a", d_state=4, r=1), group("a", d_state=8, r=1)]
    assert legend(one_task, ("task",)) == ["lru, d_state 4", "lru, d_state 8"]


def test_accuracy_is_shown_over_steps_and_over_the_mean_time_of_each_evaluation():
    accuracies = np.array([[0.2, 0.6], [0.4, 0.7], [0.3, 0.8]])
    frames = [scored("lru", seed, accuracies[seed], seconds=10 + 4 * seed) for seed in range(3)]
    found = figures(Accuracy, *frames, scored("s5", 0, [0.1, 0.9], task="osuleaf"))
    first, second = found["accuracy-over-steps"].panels
    assert (first.title, second.title) == ("digits", "osuleaf")
    np.testing.assert_array_equal(first.series[0].x, [5, 10])
    np.testing.assert_allclose(first.series[0].y, [30, 70])
    exact = estimates.mean(100 * accuracies[:, 1])
    np.testing.assert_allclose([first.series[0].low[1], first.series[0].high[1]], [exact.low, exact.high])
    timed = found["accuracy-over-time"].panels[0].series[0]
    np.testing.assert_allclose(timed.x, [7, 14])  # 10, 14 and 18 seconds
    np.testing.assert_array_equal(timed.y, first.series[0].y)
    assert second.series[0].low is None


def test_test_accuracy_stands_over_parameters_state_and_speed():
    frames = [scored("lru", seed, [0.5, 0.5], test, 10 * (1 + seed), params=70) for seed, test in enumerate([0.8, 0.9])]
    found = figures(Accuracy, *frames)
    exact = estimates.mean([80, 90])
    for name, x in (("parameters", 70), ("state", 4), ("speed", 1e-3 * (100 + 50) / 2)):
        (point,) = found[f"accuracy-over-{name}"].panels[0].series
        assert (point.x[0], point.y[0]) == (pytest.approx(x), pytest.approx(85))
        assert (point.low[0], point.high[0]) == (pytest.approx(exact.low), pytest.approx(exact.high))
    assert point.x_high[0] == pytest.approx(estimates.mean([0.1, 0.05]).high)


def test_the_pareto_front_keeps_ties_and_nothing_that_is_beaten():
    #                 cheapest, tie of it, dearer as good, best, beaten, as dear as the best but worse
    cost, score = [1, 1, 2, 3, 2.5, 3], [5, 5, 5, 9, 4, 8]
    assert pareto(cost, score).tolist() == [True, True, False, True, False, False]
    assert pareto([1], [1]).tolist() == [True]


def test_the_front_of_a_figure_is_of_models_that_kept_their_seeds():
    small, large, beaten = (
        scored(model, 0, [0.5], test, params=params)
        for model, params, test in (("small", 10, 0.5), ("large", 30, 0.8), ("beaten", 40, 0.8))
    )
    lost = [scored("lost", 0, [0.5], 0.99, params=5), scored("lost", 1, [], params=5, status="diverged")]
    (panel,) = figures(Accuracy, small, large, beaten, *lost)["accuracy-over-parameters"].panels
    front = panel.series[-1]
    assert (front.style, list(front.x), list(front.y)) == ("front", [10, 30], [50, 80])
    assert {s.name: s.note for s in panel.series[:-1]}["lost"] == "1/2 seeds"


def test_of_speed_the_front_is_of_the_fastest():
    frames = [
        scored(model, 0, [0.5], test, seconds) for model, seconds, test in
        (("fast", 1, 0.5), ("slow", 4, 0.8), ("slower", 5, 0.8))
    ]  # fmt: skip
    (panel,) = figures(Accuracy, *frames)["accuracy-over-speed"].panels
    np.testing.assert_allclose(panel.series[-1].x, [0.125, 0.5])
    np.testing.assert_allclose(panel.series[-1].y, [80, 50])


@pytest.mark.parametrize(("y", "held"), [((50, 80), "steps-post"), ((80, 50), "steps-pre")])
def test_between_two_points_a_front_has_the_score_of_the_worse(y, held):
    """Of what is cheaper, where less x is better; of what is faster, where more is."""
    series = [Series("a", [1, 2], y, style="points"), Series("front", [1, 2], y, style="front")]
    ax = drawing.draw(Figure("f", "f", [Panel("", "x", "y", series)])).axes[0]
    assert held in [line.get_drawstyle() for line in ax.lines]


def over_tasks(scores):
    """Cells of {model: {task: scores by seed}}."""
    return [scored(model, seed, [0.5], value, task=task)
            for model, tasks in scores.items() for task, values in tasks.items()
            for seed, value in enumerate(values)]  # fmt: skip


def test_models_that_lack_a_task_are_named_where_ranks_leave_them_out():
    tasks = {"t1": [0.1], "t2": [0.2]}
    found = figures(
        Accuracy, *over_tasks({"a": tasks, "b": tasks, "c": {"t1": [0.3], "t2": [0.2]}, "d": {"t1": [0.4]}})
    )
    assert found["ranks"].caption.endswith("Left out, as they lack seeds or tasks: d")


def test_ranks_over_tasks_are_demsars_with_bars_that_meet_where_models_do_not_differ():
    """Three models on 12 tasks, one always first: mean ranks 1, 2.5, 2.5; CD = 2.343 sqrt(3 x 4 / (6 x 12))."""
    tasks = {f"t{i:02}": [0.1 if i % 2 else 0.2] for i in range(12)}
    other = {name: [0.3 - value[0]] for name, value in tasks.items()}
    figure = figures(Accuracy, *over_tasks({"a": tasks, "b": {name: [0.9] for name in tasks}, "c": other}))["ranks"]
    (series,) = figure.panels[0].series
    assert list(figure.panels[0].y_names) == ["b", "a", "c"]
    np.testing.assert_allclose(series.x, [1, 2.5, 2.5])
    np.testing.assert_allclose(np.asarray(series.x_high) - series.x_low, 2.343 * np.sqrt(1 / 6), rtol=1e-3)
    assert series.x_high[0] < series.x_low[1]
    assert "nothing is told apart" not in figure.caption


def test_a_model_that_lacks_a_task_or_a_seed_has_no_rank():
    whole = {"a": {"t1": [0.1], "t2": [0.2]}, "b": {"t1": [0.3], "t2": [0.1]}}
    lost = scored("lost", 0, [], task="t1", status="diverged")
    figure = figures(Accuracy, *over_tasks(whole | {"c": {"t1": [0.9]}}), lost)["ranks"]
    assert sorted(figure.panels[0].y_names) == ["a", "b"]
    assert "nothing is told apart" in figure.caption


def test_profiles_are_shares_of_runs_from_five_seeds_on():
    scores = {"a": {"t1": [0.1, 0.3, 0.5, 0.7, 0.9], "t2": [0.5] * 5}, "b": {"t1": [0.2] * 5, "t2": [0.2] * 5}}
    (panel,) = figures(Accuracy, *over_tasks(scores))["performance-profile"].panels
    a = dict(zip(panel.series[0].x, panel.series[0].y, strict=True))
    assert [a[x] for x in (0, 40, 60, 95)] == pytest.approx([100, (60 + 100) / 2, (40 + 0) / 2, 0])
    few = {model: {task: values[:4] for task, values in tasks.items()} for model, tasks in scores.items()}
    assert "performance-profile" not in figures(Accuracy, *over_tasks(few))


def power(length, exponent):
    return steady(1e-3 * (length / 64) ** exponent, spread=0)


def test_times_have_the_slopes_and_intervals_of_the_tables():
    times = {("lru", "torch", n): power(n, 1) for n in (64, 256, 1024)}
    times |= {
        ("s4d", "torch", n): [[2e-3 * (n / 64) ** 2 * (1 + 0.1 * p)] * 8 for p in (-1, 0, 1)] for n in (64, 256, 1024)
    }
    results = given(times)
    (panel,) = figures(Throughput, results)["time-over-length"].panels
    lru, s4d = panel.series
    assert (panel.title, panel.y_label) == ("forward", "time [ms]")
    assert (lru.note, s4d.note) == ("slope 1.00", "slope 2.00")
    np.testing.assert_allclose(lru.y, [1, 4, 16])
    np.testing.assert_allclose(lru.low, [1, 4, 16])
    rows, _ = shown(results, "Time of a forward pass")
    intervals = [row["95 % interval"] for row in rows if row["model"] == "s4d"]
    assert [f"[{a:.2f}, {b:.2f}]" for a, b in [(s4d.low[0], s4d.high[0])]] == intervals[:1]


def test_a_length_that_was_not_timed_is_named_and_slopes_that_did_not_converge_are_marked():
    times = {("lru", "torch", 64): power(64, 1), ("lru", "torch", 128): power(128, 1), ("lru", "torch", 256): []}
    figure = figures(Throughput, given(times, status="unconverged"))["time-over-length"]
    assert figure.panels[0].series[0].note == "slope 1.00 *, none at 256: missing"
    assert "*: of a time" in figure.caption


def test_where_tokens_are_held_constant_time_is_that_of_a_sequence():
    results = given({("lru", "torch", n): steady(1e-3, spread=0) for n in (64, 128)})
    factors = [json.dumps(json.loads(text) | {"tokens": 256}) for text in results["factors"]]
    results = results.assign(factors=factors, batch=256 // results["length"])
    (panel,) = figures(Throughput, results)["time-over-length"].panels
    assert panel.y_label.startswith("time of a sequence")
    np.testing.assert_allclose(panel.series[0].y[1] / panel.series[0].y[0], 2)
    assert panel.series[0].note == "slope 1.00"


def test_memory_is_the_figure_that_the_report_compares_with():
    none = {"peak_system": 2.0**30, "predicted_compiler": None, "predicted_layer": None}
    peaks = {("torch", n): none | {"peak_allocator": 2.0**20 * n} for n in (64, 256)}
    peaks |= {("jax", n): none | {"peak_allocator": None} for n in (64, 256)}
    results = weighed(peaks)
    (panel,) = figures(Memory, results)["memory-over-length"].panels
    torch, jax = panel.series
    assert (torch.name, torch.note) == ("lru, torch", "allocator, slope 1.00")
    assert (jax.name, jax.note) == ("lru, jax", "system, slope 0.00")
    np.testing.assert_allclose(torch.y, [64, 256] if panel.y_label == "peak [MiB]" else [1 / 16, 1 / 4])
    growth = next(b for b in Memory().report(results, View()) if isinstance(b, Table) and b.title == "How memory grows")
    assert [row[growth.columns.index("exponent")] for row in growth.rows] == ["1.00", "0.00"]


def test_a_series_is_of_one_length():
    with pytest.raises(ValueError, match="1 values of x_low over 2 of x"):
        Series("a", [1, 2], [1, 2], x_low=[1])


def test_no_two_of_48_series_look_alike():
    looks = [drawing.look(i) for i in range(48)]
    assert len({(colour, dashes) for colour, dashes, _ in looks}) == 48
    assert len({(colour, marker) for colour, _, marker in looks}) == 48
    assert len({colour for colour, _, _ in looks[:8]}) == len({dashes for _, dashes, _ in looks[:6]}) + 2 == 8


def test_ticks_of_logarithmic_axes_are_numbers_that_people_use():
    none = np.array([])
    assert log_ticks(900, 18000, np.array([1024.0, 4096, 16384])) == [1024, 4096, 16384]
    assert log_ticks(0.8, 130, 2.0 ** np.arange(8)) == [1, 4, 16, 64]
    assert log_ticks(0.4, 30, none) == [0.5, 1, 2, 5, 10, 20]
    assert log_ticks(11_500, 48_000, none) == [20_000, 30_000, 40_000]  # steps of 8,000 would stand too near at the end
    assert log_ticks(1e-9, 1, none) == [1e-8, 1e-6, 1e-4, 1e-2, 1]
    assert log_labels([0.5, 1024]) == ["0.5", "1,024"]
    assert log_labels([1e-6, 2e-6]) == ["$10^{-6}$", r"$2\times10^{-6}$"]


def texts(drawn):
    legends = [*drawn.legends, *(ax.get_legend() for ax in drawn.axes)]
    return [[text.get_text() for text in one.get_texts()] for one in legends if one is not None]


def panels_with(*notes):
    return [
        Panel(f"p{i}", "x", "y", [Series("a", [1, 2], [1, 2], note=note), Series("$b", [1, 2], [2, 1])])
        for i, note in enumerate(notes)
    ]


def test_one_legend_says_what_all_panels_say_and_else_each_has_its_own():
    assert texts(drawing.draw(Figure("f", "t", panels_with("", "")))) == [["a", r"\$b"]]
    assert texts(drawing.draw(Figure("f", "t", panels_with("2/3 seeds", "2/3 seeds")))) == [["a (2/3 seeds)", r"\$b"]]
    assert texts(drawing.draw(Figure("f", "t", panels_with("", "2/3 seeds")))) == [["a (p1: 2/3 seeds)", r"\$b"]]
    own = texts(drawing.draw(Figure("f", "t", panels_with("slope 1", "slope 2"), caption="c")))
    assert [one for one in own if one] == [["a (slope 1)", r"\$b"], ["a (slope 2)", r"\$b"]]


def test_every_kind_is_drawn_in_every_format_without_a_warning(tmp_path):
    stability = [trained(f"model{i}[a=1,b={i}]", seed, [[1], [1.1 + seed + i], [2]]) for i in (0, 1) for seed in (0, 1)]
    stability.append(trained("s5", 0, [[1], [np.nan], [2]]))
    accuracy = [scored(f"m{i}", seed, [0.1, 0.5], 0.5 + 0.02 * seed, params=10 + i) for i in (0, 1) for seed in (0, 1)]
    times = given({("lru", "torch", n): power(n, 1) for n in (64, 256)}, mode=["forward", "train"])
    none = {"predicted_compiler": None, "predicted_layer": None, "peak_system": 2.0**30}
    peaks = weighed({("torch", n): none | {"peak_allocator": 2.0**20 * n} for n in (64, 256)})
    found = [*figures(Stability, *stability).values(), *figures(Accuracy, *accuracy).values(),
             *figures(Throughput, times).values(), *figures(Memory, peaks).values()]  # fmt: skip
    assert len(found) == 10
    assert all(figure.caption for figure in found)  # what points, bars and bands are
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = [
            file for figure, kind in zip(found, itertools.cycle(drawing.FORMATS), strict=False)
            for file in drawing.write([figure], tmp_path, [kind])
        ]  # fmt: skip
    assert {file.suffix for file in files} == {".png", ".pdf", ".svg"}
    assert all(file.stat().st_size > 2000 for file in files)


def test_what_alone_tells_groups_apart_has_a_column_in_the_tables_of_accuracy():
    def made(rate, gamma, seed):
        factors, options = json.dumps({"rate": rate, "recipe": "quick"}), json.dumps({"gamma": gamma} if gamma else {})
        return scored("lru", seed, [0.1, rate], factors=factors, options=options)

    table, *_ = Accuracy().report(together(*(made(0.1, "", seed) for seed in (0, 1))), View())
    assert table.columns[:4] == ["model", "depth", "d_model", "ok"]
    results = together(*(made(rate, "tied", seed) for rate in (0.1, 0.2) for seed in (0, 1)), made(0.1, "", 0))
    table, *_ = Accuracy().report(results, View())
    assert table.columns[3:5] == ["rate", "gamma"]
    assert [row[3:6] for row in table.rows] == [["0.1", "tied", "2/2"], ["0.2", "tied", "2/2"], ["0.1", "-", "1/1"]]
