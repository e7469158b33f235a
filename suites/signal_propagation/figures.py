"""The figures of the suite `signal_propagation`, computed from its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bench.report.figures import Figure, Heat, Panel, Series
from suites.signal_propagation import theory
from suites.signal_propagation.report import Group, groups, widest

FINE = 200
"""Points of a theory curve."""


def figures(results: pd.DataFrame) -> list[Figure]:
    """Those that the rows have numbers for."""
    dense, diagonal, constant = groups(results)
    found = []
    tied = [group for group in dense if group.tied]
    untied = [group for group in dense if not group.tied]
    if tied:
        panels = [_energies(model, of) for model, of in _by_model(tied).items()]
        found.append(Figure("energy-over-c", "Energy of dense recurrences, Monte Carlo and exact", panels, SAMPLED))
    if untied:
        panels = [_energies(model, of) for model, of in _by_model(untied).items()]
        found.append(Figure("energy-untied", "Energy with fresh weights at each step", panels, SAMPLED))
    if diagonal:
        found.append(Figure("layers-energy", "State energy under white noise", [_layers(widest(diagonal))],
                            "points: measured, mean over seeds and blocks; bars: one standard error of the noise; "
                            "lines: exact expectation from each layer's own system"))  # fmt: skip
        heats = [_heat(group) for group in widest(diagonal)]
        found.append(Figure("gradients-depth-time", "Gradient of the last output", heats,
                            "rms of the gradient of a random projection of the last output, per feature, before each "
                            "block"))  # fmt: skip
    if constant:
        found.append(Figure("constant-norm", "Norm of the state under a constant input", [_norms(constant)],
                            "points: measured; lines: exact, in diagonal coordinates"))  # fmt: skip
    return found


SAMPLED = "points: mean over samples, bars: one standard error; thin lines: exact where it is known"


def _by_model(groups: Sequence[Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(", ".join([group.key["model"], *group.beside_width()]), []).append(group)
    return found


def _energies(model: str, groups: Sequence[Group]) -> Panel:
    """Estimates with a standard error, a colour a width; exact curves where they are known; the limit."""
    series, last = [], 0.0
    lru = groups[0].recurrence == "lru"
    for group in groups:
        points = group.points()
        root = math.sqrt(group.n)
        c, unit = points["t"].to_numpy(float) / root, root if lru else 1.0
        mean, error = (points[name].to_numpy(float) / unit for name in ("energy", "energy_error"))
        series.append(Series(f"n = {group.n}", c, mean, mean - error, mean + error, "points"))
        last = max(last, c.max())
        if group.tied and group.linear and group.complex:
            exact = np.exp(theory.log_energies(group.n, int(points["t"].max()), group.recurrence)) / unit
            series.append(Series(f"n = {group.n}", np.arange(len(exact)) / root, exact, style="theory"))
        elif (known := points["energy_expected"].notna()).any():
            exact = points.loc[known, "energy_expected"].to_numpy(float) / unit
            series.append(Series(f"n = {group.n}", c[known.to_numpy()], exact, style="theory"))
    if groups[0].tied and groups[0].linear:
        fine = np.linspace(0, last, FINE)
        limit = [theory.critical_lru(c) if lru else theory.critical_rnn(c) for c in fine]
        series.append(Series("n → ∞" if groups[0].complex else "n → ∞, complex", fine, limit, style="theory"))
    axis = ("t" if lru else "k") + " / √n"
    return Panel(model, axis, "S / √n" if lru else "Q", series, log_y=groups[0].tied)


def _layers(groups: Sequence[Group]) -> Panel:
    series = []
    for group in groups:
        found = group.beside("white_noise").groupby("t").mean()
        name = ", ".join([group.key["model"], f"n = {group.n}", *group.beside_width()])
        t, mean, error = (np.asarray(x, float) for x in (found.index, found["energy"], found["error"]))
        series.append(Series(name, t, mean, mean - error, mean + error, "points"))
        series.append(Series(name, t, found["expected"].to_numpy(float), style="theory"))
    return Panel("measured (points), exact (lines)", "t", "energy an entry", series, log_x=True, log_y=True)


def _norms(groups: Sequence[Group]) -> Panel:
    series = []
    for group in groups:
        name = ", ".join([group.key["model"], *group.beside_width()])
        norms, exact = (group.metric(metric).groupby("t")["value"].mean().astype(float) for metric in
                        ("constant_norm", "constant_norm_expected"))  # fmt: skip
        series.append(Series(name, norms.index.to_numpy(float), norms.to_numpy(), style="points"))
        series.append(Series(name, exact.index.to_numpy(float), exact.to_numpy(), style="theory"))
    return Panel("", "t", "Euclidean norm", series, log_x=True, log_y=True)


def _heat(group: Group) -> Heat:
    table = group.metric("jacobian_energy").pivot_table(index="layer", columns="t", values="value")
    return Heat(
        ", ".join([group.key["model"], *group.beside_width()]), "steps back", "block", "rms gradient",
        [str(int(i) + 1) for i in table.index[:-1]],
        [str(int(t) - 1) for t in table.columns], np.sqrt(table.to_numpy(float)[:-1]),
    )  # fmt: skip
