"""The figures of the suite `stability`, computed from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.report import estimates
from bench.report.cells import legend, seeds_left
from bench.report.figures import Figure, Panel, Series
from suites.stability.report import NOISE, Group

PANELS = ("task", "depth")
BAND = "mean over layers and seeds; bands: 95 % interval of the mean over seeds, none of a single seed"


def figures(results: pd.DataFrame) -> list[Figure]:
    """Those that the rows have numbers for."""
    groups = [group for group in Group.of(results) if group.ok]
    if not groups:
        return []
    named = list(zip(groups, legend(groups, PANELS), strict=True))
    drift = _panels(named, _drift, {"": None}, x_label="training step", y_label="drift of the rms norm [log2]")
    when = {"start": 0, "end": -1}
    doubling: dict[str, Any] = {"x_label": "t", "log_x": True, "log_y": True}
    norm = _panels(named, _norm, when, y_label="rms norm per real", **doubling)
    noise = _panels(named, _noise, when, y_label="state energy", **doubling)
    found = [
        Figure("norm-over-training", "Norm of the hidden state over training", drift, share_y=True,
               caption=f"log2 against step 0: 1 is a doubling; {BAND}"),
        Figure("norm-over-t", "Norm of the hidden state along the sequence", norm, share_y=True, columns=2,
               caption=f"before and after training, of examples that are at least t long; {BAND}"),
        Figure("norm-over-t-noise", "State energy under white noise, measured and exact", noise, share_y=True,
               columns=2, caption="points: measured, mean over layers and seeds, bars: one standard error of the "
               "noise; lines: exact expectation from each layer's own system"),
    ]  # fmt: skip
    return [figure for figure in found if figure.panels]


def _panels(
    named: Sequence[tuple[Group, str]], of: Callable[[Group, str, Any], list[Series]], when: dict[str, Any], **axes: Any
) -> list[Panel]:
    """A panel for each task, depth and moment that there are series of."""
    tasks = {group.key["task"] for group, _ in named}
    places = dict.fromkeys(tuple(group.key[name] for name in PANELS) for group, _ in named)
    found = []
    for place in places:
        here = [(group, name) for group, name in named if tuple(group.key[n] for n in PANELS) == place]
        for moment, step in when.items():
            series = [one for group, name in here for one in of(group, name, step)]
            title = ", ".join(
                [*([place[0]] if len(tasks) > 1 else []), f"depth {place[1]}", *([moment] if moment else [])]
            )
            if series:
                found.append(Panel(title, series=series, **axes))
    return found


def _drift(group: Group, name: str, _: None) -> list[Series]:
    """log2 of the rms norm against step 0: the course in the report's table, with its interval."""
    rms = group.rms
    if rms.empty:
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.log2(rms / rms.iloc[0])
    return _over_seeds(group, name, moved)


def _norm(group: Group, name: str, step: int) -> list[Series]:
    rows = group.metric("state_rms", step=step if step >= 0 else group.last_step)
    rms = rows[rows["t"].notna()].pivot(index="t", columns=["seed", "layer"], values="value")
    return [] if rms.empty else _over_seeds(group, name, rms.astype(float))


def _over_seeds(group: Group, name: str, values: pd.DataFrame) -> list[Series]:
    """One series of values (points, (seed, layer)): mean over layers, where all have one, then over seeds."""
    by_seed = [values[seed].mean(axis=1, skipna=False) for seed in values.columns.unique("seed")]
    found = estimates.course(np.stack(by_seed, axis=1))
    if not found.n:
        return []
    x = values.index.to_numpy(float)
    return [Series(name, x, found.value, found.low, found.high, note=seeds_left(found.n, group.planned))]


def _noise(group: Group, name: str, step: int) -> list[Series]:
    """Measured energies and the exact expectation, means over layers and seeds.

    The bars are an upper bound: layers of a seed share their noise, so their errors count as one; seeds do not.
    """
    step = step if step >= 0 else group.last_step
    found = group.wide(NOISE, ["t", "seed", "layer"], step=step)
    if found.empty:
        return []
    energy, error, expected = (found[name].unstack(["seed", "layer"]) for name in NOISE)
    seeds = energy.columns.unique("seed")
    bars = np.sqrt(sum(error[seed].mean(axis=1, skipna=False) ** 2 for seed in seeds)) / len(seeds)
    t, mean, exact = (
        energy.index.to_numpy(float),
        energy.mean(axis=1, skipna=False),
        expected.mean(axis=1, skipna=False),
    )
    left = seeds_left(len(seeds), group.planned)
    points = Series(name, t, mean.to_numpy(), (mean - bars).to_numpy(), (mean + bars).to_numpy(), "points", note=left)
    return [points, Series(name, t, exact.to_numpy(), style="theory", note=left)]
