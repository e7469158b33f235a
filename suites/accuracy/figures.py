"""The figures of the suite `accuracy`, computed from its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from bench.report import estimates
from bench.report.cells import legend, seeds_left
from bench.report.figures import Figure, Panel, Series
from bench.report.ranking import ranking
from bench.report.statistics import pareto
from suites.accuracy.report import Group

BAND = "mean over seeds; bands: its 95 % interval, none of a single seed"
NAMED = 10
"""So many models that are left out have their names in a caption."""

FRONT = "Pareto front of the means"
FRONT_NOTE = "ringed: no other model's mean is better in one and no worse in both"
PERCENT = (0.0, 100.0)

Place = tuple[float, float | None, float | None]
"""Where a group lies on an axis, and its interval."""


def figures(results: pd.DataFrame) -> list[Figure]:
    """Those that the rows have numbers for."""
    groups = [group for group in Group.of(results) if group.ok]
    if not groups:
        return []
    named = list(zip(groups, legend(groups, ("task",)), strict=True))
    bars = f"test accuracy of the step that validation chose, mean over seeds with 95 % interval; {FRONT_NOTE}"
    found = [
        Figure("accuracy-over-steps", "Validation accuracy over training",
               _courses(named, "training step", _steps), BAND),
        Figure("accuracy-over-time", "Validation accuracy over training time",
               _courses(named, "training time [s]", _seconds),
               f"time of each evaluation: mean over seeds, evaluations included; accuracy: {BAND}"),
        Figure("accuracy-over-parameters", "Test accuracy against parameters",
               _scatter(named, "parameters", _parameters), bars),
        Figure("accuracy-over-state", "Test accuracy against the size of the state",
               _scatter(named, "state reals a layer", _state), bars),
        Figure("accuracy-over-speed", "Test accuracy against speed of training",
               _scatter(named, "thousand tokens/s", _speed, higher=True),
               f"speed: tokens trained on over the whole time of training, evaluations included; {bars}"),
        *_over_tasks(named),
    ]  # fmt: skip
    return [figure for figure in found if figure.panels]


def _by_task(named: Sequence[tuple[Group, str]]) -> dict[str, list[tuple[Group, str]]]:
    found: dict[str, list[tuple[Group, str]]] = {}
    for group, name in named:
        found.setdefault(group.key["task"], []).append((group, name))
    return found


def _courses(
    named: Sequence[tuple[Group, str]], x_label: str, at: Callable[[Group, pd.Index], np.ndarray]
) -> list[Panel]:
    """Validation accuracy at each evaluation, a panel a task."""
    panels = []
    for task, groups in _by_task(named).items():
        series = []
        for group, name in groups:
            rows = group.metric("accuracy", split="validation")
            percent = 100 * rows.pivot(index="step", columns="seed", values="value").astype(float)
            found = estimates.course(percent.to_numpy())
            x = at(group, percent.index)
            if found.n and np.isfinite(x).any():
                note = seeds_left(found.n, group.planned)
                series.append(Series(name, x, found.value, found.low, found.high, note=note))
        if series:
            panels.append(Panel(task, x_label, "validation accuracy [%]", series, bounds=PERCENT))
    return panels


def _steps(_: Group, steps: pd.Index) -> np.ndarray:
    return steps.to_numpy(float)


def _seconds(group: Group, steps: pd.Index) -> np.ndarray:
    """Mean over seeds of the time at each evaluation, so that no accuracy is interpolated between them."""
    rows = group.metric("seconds").pivot(index="step", columns="seed", values="value")
    return rows.astype(float).mean(axis=1, skipna=False).reindex(steps).to_numpy()


def _scatter(
    named: Sequence[tuple[Group, str]], x_label: str, place: Callable[[Group], Place | None], higher: bool = False
) -> list[Panel]:
    """Test accuracy of each group, a panel a task. `higher`: more of x is better.

    As in tables, a group that lost seeds is not among the best.
    """
    panels = []
    for task, groups in _by_task(named).items():
        series, best = [], []
        for group, name in groups:
            score, x = estimates.mean(100 * group.best("test")), place(group)
            if score.value is None or x is None:
                continue
            low, high = (None if bound is None else [bound] for bound in (score.low, score.high))
            left, right = (None if bound is None else [bound] for bound in x[1:])
            note = seeds_left(score.n, group.planned)
            series.append(Series(name, [x[0]], [score.value], low, high, "points", left, right, note))
            if not note:
                best.append((x[0], score.value))
        if len(best) > 1:
            series.append(_front(np.array(best), higher))
        if series:
            panels.append(Panel(task, x_label, "test accuracy [%]", series, log_x=True, bounds=PERCENT))
    return panels


def _over_tasks(named: Sequence[tuple[Group, str]]) -> list[Figure]:
    """Who is better over several tasks, of those that lack nothing on any of them."""
    by_task = _by_task(named)
    scores: dict[str, list[np.ndarray]] = {}
    for group, name in named:
        if len(best := group.best("test")) == group.planned:
            scores.setdefault(name, []).append(100 * best)
    scores = {name: found for name, found in scores.items() if len(found) == len(by_task)}
    if len(by_task) < 2 or len(scores) < 2:
        return []
    without = list(dict.fromkeys(name for _, name in named if name not in scores))
    more = f" and {len(without) - NAMED} more" if len(without) > NAMED else ""
    left_out = f". Left out, as they lack seeds or tasks: {', '.join(without[:NAMED])}{more}" if without else ""
    return [*_ranks(scores, len(by_task), left_out), *_profiles(scores, left_out)]


def _ranks(scores: Mapping[str, Sequence[np.ndarray]], tasks: int, left_out: str) -> list[Figure]:
    found = ranking(np.array([[one.mean() for one in each] for each in scores.values()]).T)
    if found.mean_ranks is None or found.critical_difference is None or found.p is None:
        return []
    order = np.argsort(found.mean_ranks, kind="stable")
    ranks, half = np.array(found.mean_ranks)[order], found.critical_difference / 2
    names = [list(scores)[i] for i in order]
    place = np.arange(len(names))
    series = Series("mean rank", ranks, place, style="points", x_low=ranks - half, x_high=ranks + half)
    told = f"Friedman's test: p = {found.p:.2g}" + (
        "" if found.p <= found.alpha else ", so nothing is told apart, whatever bars show"
    )
    return [Figure(
        "ranks", f"Mean rank of test accuracy over {tasks} tasks",
        [Panel("", "mean rank, 1 is best", "", [series], y_names=names)],
        f"bars: half of Nemenyi's critical difference at {found.alpha:g} to either side; models whose bars do not meet "
        f"differ. {told}{left_out}",
    )]  # fmt: skip


def _profiles(scores: Mapping[str, Sequence[np.ndarray]], left_out: str) -> list[Figure]:
    """Needs seeds enough for a distribution."""
    thresholds = np.linspace(*PERCENT, 101)
    series = []
    for name, each in scores.items():
        if (found := estimates.performance_profile(estimates.side_by_side(each), thresholds)) is not None:
            series.append(Series(name, thresholds, 100 * found.share, 100 * found.low, 100 * found.high))
    if not series:
        return []
    panel = Panel("", "test accuracy [%]", "runs above [%]", series, bounds=PERCENT)
    caption = "share of runs above an accuracy, mean over tasks; bands: 95 % interval over seeds within tasks"
    return [Figure("performance-profile", "Performance profile", [panel], caption + left_out)]


def _front(points: np.ndarray, higher: bool) -> Series:
    """Those of points (groups, (x, accuracy)) that no other beats."""
    x, y = np.unique(points[pareto(-points[:, 0] if higher else points[:, 0], points[:, 1])], axis=0).T
    return Series(FRONT, x, y, style="front")


def _parameters(group: Group) -> Place | None:
    return _exactly(group.column("params"))


def _state(group: Group) -> Place | None:
    return _exactly(group.column("state_reals"))


def _exactly(value: int | None) -> Place | None:
    return None if value is None else (float(value), None, None)


def _speed(group: Group) -> Place | None:
    """Thousand tokens a second of the whole training, mean over seeds."""
    tokens, seconds = (
        group.metric(name).groupby("cell_id")["value"].max().astype(float) for name in ("tokens", "seconds")
    )
    found = estimates.mean(1e-3 * (tokens / seconds).to_numpy())
    return None if found.value is None else (found.value, found.low, found.high)
