"""The tables of the suite `signal_propagation`, computed from its rows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from bench.report.blocks import Block, Note, Table
from bench.report.cells import Cells
from suites.signal_propagation import theory
from suites.signal_propagation.layers import LARGEST
from suites.signal_propagation.monte_carlo import JUDGED_FROM

WITHIN = 0.1
"""From this relative distance on an energy has left that of infinite width."""
ALPHA = 0.01
"""Level of the Bonferroni limit over all z-scores of a table."""

MANY = 1000
"""From here on a z-score has no decimals that anybody reads."""

ROUNDING = 1e-6
"""Of an energy: a standard error below has no spread of samples in it."""

DENSE_NOTE = (
    f"energy: of the state, in energies of an input, mean ± standard error over samples. z: (energy - exact) / error, "
    f"judged where the effective sample size (sum e)^2 / sum e^2 is at least {JUDGED_FROM}; with fewer the sample has "
    "not seen the tail that carries the mean: (tail not sampled). A dash: too large for the dtype, or not known."
)


def blocks(results: pd.DataFrame) -> list[Block]:
    """Dense recurrences against theory, then the layers beside one another."""
    if not len(results):
        return [Note("no cells")]
    found: list[Block] = []
    dense, diagonal, constant = groups(results)
    if constant:
        found.append(_constant(constant))
    if dense:
        found += [_agreement(dense), _energies(dense), *_real_above_complex(dense)]
    if diagonal or any(group.recurrence == "lru" and group.complex for group in dense):
        found.append(_regimes(dense, diagonal))
    if diagonal:
        found += [_check(diagonal), *_task(diagonal), *_depth(diagonal)]
    return found or [Note("nothing was measured")]


def groups(results: pd.DataFrame) -> tuple[list[Group], list[Group], list[Group]]:
    """What was measured of dense recurrences, of diagonal layers, and of these under a constant input alone."""
    is_dense = results["cell_id"].isin(set(results.loc[results["metric"] == "effective_samples", "cell_id"]))
    parts = ([*Group.of(rows)] if len(rows) else [] for rows in (results[is_dense], results[~is_dense]))
    dense, diagonal = ([group for group in part if group.ok] for part in parts)
    constant = [group for group in diagonal if len(group.metric("constant_norm"))]
    return dense, [group for group in diagonal if group not in constant], constant


class Group(Cells):
    """The cells that differ by their seed alone."""

    shown = ("backend", "device", "dtype", "depth", "task")

    @property
    def n(self) -> int:
        """The width: of a trained network that of its layer."""
        return int(self.key["n"] or self.column("d_state") or self.key["d_model"])

    @cached_property
    def facts(self) -> dict[str, Any]:
        return json.loads(self.column("facts"))

    @property
    def tied(self) -> bool:
        return not self.facts["fresh"]

    @property
    def linear(self) -> bool:
        return self.facts["linear"]

    @property
    def complex(self) -> bool:
        return self.facts["ensemble"] == "complex"

    @property
    def recurrence(self) -> theory.Recurrence:
        return self.facts["recurrence"]

    def heads(self) -> list[str]:
        return ["model", "n", *(name for name in self.varying if name != "n")]

    def label(self) -> list[str]:
        return self.named(self.heads())

    def beside_width(self) -> list[str]:
        """What tells groups apart, beside the model and its width."""
        return self.named([name for name in self.varying if name not in ("n", "d_model")])

    def named(self, heads: Sequence[str]) -> list[str]:
        """The label under these heads."""
        found = [self.key.get(name) for name in heads]
        return ["-" if value is None else str(value) for value in found]

    def points(self) -> pd.DataFrame:
        """The dense estimates, one row a seed and t: energy, energy_error, ..., z, judged."""
        rows = self.recorded.rows(columns=["seed", "t", "metric", "value"])
        wide = rows[rows["t"].notna()].pivot_table(index=["seed", "t"], columns="metric", values="value")
        wide = wide.reindex(columns=[*wide.columns, *({"energy_expected"} - set(wide.columns))]).reset_index()
        seen = wide["energy_error"] > ROUNDING * wide["energy"]
        wide["z"] = ((wide["energy"] - wide["energy_expected"]) / wide["energy_error"]).where(seen)
        wide["judged"] = seen & (wide["effective_samples"] >= JUDGED_FROM)
        return wide

    def beside(self, kind: str) -> pd.DataFrame:
        """Measured and expected energies of a kind of input, a row a seed, block and t: energy, error, expected."""
        names = {f"{kind}_{what}": what for what in ("energy", "error", "expected")}
        return self.wide(list(names), ["seed", "layer", "t"]).rename(columns=names)

    def at(self, name: str, t: int) -> float | None:
        """Mean over seeds and blocks at a time."""
        values = self.values(name, t=t)
        return float(values.mean()) if len(values) else None

    def mean(self, name: str) -> float | None:
        values = self.values(name)
        return float(values.mean()) if len(values) else None


def _agreement(groups: Sequence[Group]) -> Table:
    """How far the estimates are from theory, a line a model and width."""
    rows = []
    for group in groups:
        points = group.points()
        z = points.loc[points["judged"], "z"].dropna()
        rows.append([
            *group.label(), f"{group.ok}/{group.planned}", str(len(points)), str(len(z)),
            f"{z.abs().max():.2f}" if len(z) else "-", f"{math.sqrt((z**2).mean()):.2f}" if len(z) else "-",
        ])  # fmt: skip
    columns = [*groups[0].heads(), "ok", "lengths", "judged", "largest |z|", "rms z"]
    return Table("Monte Carlo against theory", columns, rows, [], numeric=columns[-4:])


def _energies(groups: Sequence[Group]) -> Table:
    """Every length at the largest width of each model."""
    rows = []
    several = any(group.ok > 1 for group in groups)
    for group in widest(groups):
        for _, point in group.points().iterrows():
            t, exact, z = int(point["t"]), point["energy_expected"], point["z"]
            tail = " (tail not sampled)" if not math.isnan(z) and not point["judged"] else ""
            rows.append([
                *group.label(), *([f"{point['seed']:.0f}"] if several else []), f"{t / math.sqrt(group.n):.2f}", str(t),
                f"{_number(point['energy'])} ± {_number(point['energy_error'], 2)}",
                _number(point["energy_median_of_means"]), _number(exact),
                _score(z) + tail, f"{point['effective_samples']:.0f}",
            ])  # fmt: skip
    heads = groups[0].heads()
    columns = [
        *heads,
        *(["seed"] if several else []),
        "c",
        "t",
        "energy",
        "median of means",
        "exact",
        "z",
        "effective samples",
    ]
    title = "Energy of dense recurrences at the largest width"
    return Table(title, columns, rows, [DENSE_NOTE], numeric=columns[len(heads):])  # fmt: skip


def _real_above_complex(groups: Sequence[Group]) -> Iterable[Block]:
    """Whether real weights keep at least the energy that complex ones keep, which is exact."""
    lowest: list[float] = []
    for group in groups:
        if group.complex or not group.tied or not group.linear:
            continue
        points = group.points()
        points = points[points["judged"]]
        floor = np.exp(theory.log_energies(group.n, int(points["t"].max()), group.recurrence)) if len(points) else []
        for _, point in points.iterrows():
            lowest.append((point["energy"] - floor[int(point["t"])]) / point["energy_error"])
    if lowest:
        yield Note(
            f"Real weights against the exact complex energy, which theirs is never below: z from {min(lowest):+.2f} to "
            f"{max(lowest):+.2f} over {len(lowest)} judged lengths."
        )


def _regimes(dense: Sequence[Group], diagonal: Sequence[Group]) -> Table:
    """What becomes of the energy of the state, a line a model and width."""
    rows: list[list[str]] = []
    heads = list(dict.fromkeys(name for group in (*dense, *diagonal) for name in group.heads()))
    for group in dense:
        if group.recurrence != "lru" or not group.complex:
            continue
        leaves = theory.longest(group.n, WITHIN) + 1
        overflow = [theory.first_above(group.n, 2 * math.log(limit)) for limit in LARGEST.values()]
        last = int(group.recorded.rows(columns=["t"])["t"].max())
        rows.append([
            *group.named(heads), "1", _number(theory.energy_lru(group.n, last)), str(last), "grows", "-", f"{leaves:,}",
            "-", "-", "-", *(f"{step:,}" for step in overflow),
        ])  # fmt: skip
    for group in diagonal:
        last = int(group.metric("white_noise_expected", ["t"])["t"].max())
        spread = group.metric("draw_spread").groupby("t")["value"].mean()
        near = spread[spread <= WITHIN]
        after = spread.index[spread.index > near.index[-1]] if len(near) else spread.index
        leaves_at = "-" if spread.empty else f"{int(after[0]):,}" if len(after) else f"> {last:,}"
        rate = group.mean("memory_rate")
        rows.append([
            *group.named(heads), _number(group.at("white_noise_expected", 1)),
            _number(group.at("white_noise_expected", last)), f"{last:,}",
            _number(group.mean("stationary_energy")), _percent(spread.get(last)), leaves_at,
            _number(group.mean("half_life")), _number(-1 / rate if rate is not None and rate < 0 else None),
            _number(group.mean("float16_headroom")), *(_steps(group, name) for name in LARGEST),
        ])  # fmt: skip
    columns = [*heads, "energy at 1", "at the end", "end", "stationary", "spread of draws", "leaves at", "half-life",
               "memory", "float16 head-room", "float16 overflow", "bfloat16 overflow"]  # fmt: skip
    notes = [
        "White input of unit variance; energies per entry of the state, by the exact formula of each system. leaves "
        f"at: the t from which on one initialisation is more than {WITHIN:.0%} from infinite width: for dense-lru the "
        "exact mean against t + 1, for layers the sd over draws (spread of draws, at the end).",
        "half-life: steps, of an impulse's energy. memory: steps over which the energy of dL/du falls to 1/e, by a fit "
        "(a dash: it does not fall). "
        "head-room: bits between the largest entry's rms at the end and the largest finite number. overflow: the t at "
        "which that rms passes it.",
    ]
    return Table("Signal propagation of the layers", columns, rows, notes, numeric=columns[len(heads):])  # fmt: skip


def _check(groups: Sequence[Group]) -> Table:
    """Measured energies against exact ones."""
    white = [group.beside("white_noise") for group in groups]
    z = [(wide["energy"] - wide["expected"]) / wide["error"] for wide in white]
    total = sum(map(len, z))
    rows = []
    for group, values in zip(groups, z, strict=True):
        limit = float(stats.t.ppf(1 - ALPHA / (2 * total), int(group.key["noise"]) - 1))
        rounding = []
        for name in ("constant", "impulse", "memory"):
            wide = group.beside(name)
            rounding.append(float((wide["energy"] - wide["expected"]).abs().max() / wide["expected"].max()))
        rows.append([
            *group.label(), f"{values.abs().max():.2f} of {len(values)}", f"{limit:.2f}",
            f"{math.sqrt((values**2).mean()):.2f}", *(f"{value:.1e}" for value in rounding),
        ])  # fmt: skip
    heads = groups[0].heads()
    columns = [*heads, "white: largest |z|", "limit", "rms z", "constant", "impulse", "memory"]
    note = (
        f"white: z of the state's energy under white noise. limit: the two-sided Bonferroni limit at {ALPHA:.0%} over "
        f"the {total} values of this table, by Student's t with noise - 1 degrees of freedom. It holds where many "
        "modes carry the energy: that of a single mode is skewed, and z of 64 sequences passes a limit of 1 in 10,000 "
        "at 1 in 600. constant, impulse, memory: largest difference over largest energy; nothing there is left to "
        "chance, it is rounding."
    )
    title = "Measured energies against their exact expectation"
    return Table(title, columns, rows, [note], numeric=columns[len(heads) :])


def _constant(groups: Sequence[Group]) -> Table:
    """Norms under a constant input, over time."""
    rows = []
    for group in groups:
        norms = group.metric("constant_norm").groupby("t")["value"].mean()
        last = int(norms.index[-1])
        heads, exact = group.at("constant_norm_head", last), group.at("constant_norm_expected", last)
        settled = norms.index[(norms / norms.iloc[-1] - 1).abs() > WITHIN]
        rows.append([
            *group.label(), _number(norms.iloc[0]), _number(norms.iloc[-1]), _number(exact), _number(heads),
            f"{int(settled[-1]):,}" if len(settled) else "0",
        ])  # fmt: skip
    named = groups[0].heads()
    columns = [*named, "norm at 1", "at the end", "exact", "mean over heads", "moves until"]
    note = (
        "Euclidean norm of the whole state, and its mean over heads where there are any. exact: in diagonal "
        f"coordinates. moves until: the last t = 1, 2, 4, .. at which it is more than {WITHIN:.0%} from where it ends."
    )
    return Table("Norm of the state under a constant input", columns, rows, [note], numeric=columns[len(named) :])


def _task(groups: Sequence[Group]) -> Iterable[Block]:
    """Energies under the inputs of a task, where there was one."""
    found = {group: group.metric("task_energy").dropna(subset="value").groupby("t")["value"].mean() for group in groups}
    times = sorted({int(t) for energies in found.values() for t in energies.index})
    if times:
        heads = groups[0].heads()
        rows = [[*group.label(), *(_number(energies.get(t)) for t in times)] for group, energies in found.items()]
        columns = [*heads, *(f"t = {t:,}" for t in times)]
        note = "Mean over blocks, and over the validation examples that are so long; per entry of the state."
        yield Table("Energy of the state on a task", columns, rows, [note], numeric=columns[len(heads) :])


def _depth(groups: Sequence[Group]) -> Iterable[Block]:
    """Depth by lag: how large the gradient of the last position is, at the largest width of each model."""
    rows, lags = [], []
    for group in widest(groups):
        gradient = group.metric("jacobian_energy").pivot_table(index="layer", columns="t", values="value")
        signal = group.metric("signal_energy").pivot_table(index="layer", columns="t", values="value")
        lags = [int(t) for t in gradient.columns]
        for level in range(len(gradient) - 1):
            gain = math.sqrt(signal.loc[level + 1, lags[-1]] / signal.loc[level, lags[-1]])
            values = [_number(math.sqrt(gradient.loc[level, t]), 2) for t in lags]
            rows.append([*group.label(), str(level + 1), _number(gain), *values])
    heads = groups[0].heads()
    columns = [*heads, "block", "gain", *(f"{t - 1:,}" for t in lags)]
    note = (
        "gain: rms after the block over rms before it, at the last position. Columns of numbers: steps back from the "
        "last position; there, before the block, the rms of the gradient of a random projection of the last output, "
        "per feature."
    )
    yield Table("Gradients over depth and time", columns, rows, [note], numeric=columns[len(heads) + 1 :])


def widest(groups: Sequence[Group]) -> list[Group]:
    """Of those that differ by their width alone, the widest."""
    found: dict[tuple[str, ...], Group] = {}
    for group in groups:
        key = tuple(
            text for name, text in zip(group.heads(), group.label(), strict=True) if name not in ("n", "d_model")
        )
        if key not in found or group.n > found[key].n:
            found[key] = group
    return list(found.values())


def _steps(group: Group, name: str) -> str:
    """The step of an overflow, the earliest over seeds; never where there is none."""
    steps = group.values(f"{name}_overflow")
    return f"{int(steps.min()):,}" if len(steps) else "never"


def _score(z: float) -> str:
    return "-" if math.isnan(z) else f"{z:+.2f}" if abs(z) < MANY else f"{z:+.1e}"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.{digits}g}"


def _percent(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{100 * value:.1f}%"
