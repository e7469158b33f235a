"""The tables of the suite `stability`, computed from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from bench.report.blocks import Block, Note, Table
from bench.report.cells import SHOWN, Cells, Recorded
from bench.report.statistics import sparkline, spread, wilson

OWN_METRICS = {
    "accuracy", "drift", "gradient_norm", "largest_drift", "largest_modulus", "loss", "norm_mean", "norm_paper",
    "norm_rms", "probe_examples", "settling_step", "state_rms", "white_noise_energy", "white_noise_error",
    "white_noise_expected",
}  # fmt: skip

NOISE = ["white_noise_energy", "white_noise_error", "white_noise_expected"]

DRIFT_NOTE = (
    "drift: log2 of a layer's rms state norm per real number against step 0, at the last evaluation; largest: the same "
    "where it was farthest. Mean over layers, then mean ± sd over seeds."
)
PAPER_NOTE = (
    "mean norm: plain mean over time, heads and examples, as the RotRNN authors measured it; it is per head where a "
    "model has heads and of the whole state where not, so levels do not compare between models, drifts do."
)


def blocks(results: pd.DataFrame) -> list[Block]:
    """The summary, norms along the sequence, and measured against expected energy under white noise."""
    groups = list(Group.of(results))
    if not groups:
        return [Note("no cells")]
    measured = [group for group in groups if group.ok]
    found: list[Block] = [_summary(groups)]
    if measured:
        found += [_levels(measured), _along(measured), _noise(measured), *_diagnostics(measured)]
    return found


class Group(Cells):
    """The cells that differ by their seed alone."""

    def __init__(self, key: dict[str, Any], varying: Sequence[str], cells: pd.DataFrame, recorded: Recorded) -> None:
        super().__init__(key, varying, cells, recorded)
        self.diverged = int((self.cells["status"] == "diverged").sum())

    def label(self) -> list[str]:
        return [self.key["model"], str(self.key["depth"]), *(str(self.key.get(name, "-")) for name in self.varying)]

    def heads(self) -> list[str]:
        return ["model", "depth", *self.varying]

    def by_seed(self, name: str, **where: Any) -> np.ndarray:
        """Mean over layers, for each seed."""
        return self.metric(name, ["seed", "value"], **where).groupby("seed")["value"].mean().dropna().to_numpy(float)

    @cached_property
    def last_step(self) -> int:
        return int(self.recorded.rows(columns=["step"])["step"].max())

    @cached_property
    def rms(self) -> pd.DataFrame:
        """rms per real number, evaluations x (seed, layer)."""
        found = self.metric("state_rms", ["step", "seed", "layer", "value"], t=None)
        return found.pivot(index="step", columns=["seed", "layer"], values="value").astype(float)

    def course(self) -> np.ndarray:
        """Mean drift over seeds and layers at every evaluation."""
        return np.log2(self.rms / self.rms.iloc[0]).mean(axis=1).to_numpy(float)


def _summary(groups: list[Group]) -> Table:
    courses = {id(group): group.course() for group in groups if group.ok}
    everything = np.concatenate([*courses.values(), [0.0]])
    low, high = float(everything.min()), float(everything.max())
    rows = []
    for group in groups:
        start = [*group.label(), f"{group.ok}/{group.planned}"]
        ended = group.ok + group.diverged  # a cell that timed out says nothing about divergence
        rate = wilson(group.diverged, ended) if ended else None
        end = f"{group.diverged}/{ended} [{rate[0]:.2f}, {rate[1]:.2f}]" if rate else "-"
        if not group.ok:
            rows.append([*start, *["-"] * 6, end])
            continue
        levels = np.log2(group.rms.iloc[-1]).unstack("layer")  # seeds x layers
        ranges = (levels.max(axis=1) - levels.min(axis=1)).mean() if levels.shape[1] > 1 else None
        rows.append(
            [
                *start,
                sparkline(courses[id(group)], low, high),
                _mean_sd(group.by_seed("drift")),
                _mean_sd(group.by_seed("largest_drift")),
                _settling(group.metric("settling_step", ["value"])["value"].to_numpy(float)),
                _number(ranges),
                _number(spread(levels.mean(axis=1).to_numpy(float))),
                end,
            ]
        )
    key = groups[0].key
    fixed = ", ".join(str(key[c]) for c in SHOWN[:-1] if c not in groups[0].varying)
    steps = " or ".join(sorted({str(group.key.get("steps", "?")) for group in groups}))
    return Table(
        title=f"Stability of the hidden state over {steps} training steps ({fixed})",
        columns=[
            *groups[0].heads(),
            "ok",
            "norm over training",
            "drift [log2]",
            "largest [log2]",
            "settles at step",
            "range over layers",
            "sd over seeds",
            "diverged [95 %]",
        ],
        rows=rows,
        numeric=["depth", "ok", "drift [log2]", "largest [log2]", "range over layers", "sd over seeds"],
        notes=[
            DRIFT_NOTE,
            f"norm over training: mean drift at each evaluation, bars from {low:+.2f} to {high:+.2f} log2. "
            "ok: seeds measured / planned; means are over these.",
            "settles: first evaluation from which a layer's norm stays within 10 % of its last value, median over "
            "layers and seeds (how many of them settled before the end). range, sd: of log2 of the last norms.",
        ],
    )


def _levels(groups: list[Group]) -> Table:
    rows = []
    for group in groups:
        last = group.last_step
        reals, params = group.column("state_reals"), group.column("params")
        row = [*group.label(), f"{params:,}", f"{reals:,}"]
        for name in ("state_rms", "norm_paper"):
            start, end = (group.by_seed(name, step=step, t=None) for step in (0, last))
            row += [_mean(start), _mean(end)]
        row += [
            _mean(group.by_seed("largest_modulus", step=last)),
            _mean(group.by_seed("gradient_norm", step=last)),
            " ".join(_mean(group.by_seed("loss", step=step, split="probe")) for step in (0, last)),
        ]
        rows.append(row)
    heads = [
        "parameters", "state reals", "rms start", "rms end", "mean norm start", "mean norm end", "max |Lambda|",
        "gradient norm", "loss start, end",
    ]  # fmt: skip
    return Table(
        title="Levels: rms state norm per real number, mean norm, and what goes with them",
        columns=[*groups[0].heads(), *heads],
        rows=rows,
        numeric=["depth", *heads],
        notes=[
            "state reals: real numbers that a sequence carries from step to step in one layer.",
            PAPER_NOTE,
            "max |Lambda|, gradient norm (of one layer's parameters): at the last step; means over layers and seeds.",
        ],
    )


def _along(groups: list[Group]) -> Table:
    columns = ["step", "t", "seed", "value"]
    found = [group.metric("state_rms", columns).dropna(subset=["t", "value"]) for group in groups]
    times = sorted(map(int, pd.concat(found)["t"].unique()))
    rows = []
    for group, of_group in zip(groups, found, strict=True):
        each = of_group.groupby(["step", "t", "seed"])["value"].mean()
        means = each.groupby(level=["step", "t"]).mean()
        for when, step in (("start", 0), ("end", group.last_step)):
            values = [_figure(means.get((step, t))) for t in times]
            rows.append([*group.label(), when, *values])
    heads = [f"t={t}" for t in times]
    return Table(
        title="Along the sequence: rms state norm per real number at time t, mean over layers and seeds",
        columns=[*groups[0].heads(), "training", *heads],
        rows=rows,
        numeric=["depth", *heads],
        notes=["Only examples that are at least t long count, so late columns rest on few."],
    )


def _noise(groups: list[Group]) -> Table:
    rows = []
    for group in groups:
        for when, step in (("start", 0), ("end", group.last_step)):
            found = group.wide(NOISE, ["seed", "layer", "t"], step=step).dropna(subset=NOISE[0])
            if found.empty:
                continue
            energy, error, expected = (found[name] for name in NOISE)
            last = energy.index.get_level_values("t").max()
            ratio = (energy / expected).xs(last, level="t")
            z = ((energy - expected) / error).dropna()
            rows.append(
                [
                    *group.label(), when, f"{energy.xs(last, level='t').mean():#.4g}",
                    f"{expected.xs(last, level='t').mean():#.4g}", f"{ratio.mean():.3f}",
                    f"{np.abs(z).max():.1f} of {len(z)}" if len(z) else "-",
                    f"{np.sqrt((z**2).mean()):.2f}" if len(z) else "-",
                ]
            )  # fmt: skip
    heads = ["measured", "expected", "ratio", "largest |z|", "rms z"]
    return Table(
        title="White noise fed to each layer: energy of the state at the last t against its exact expectation",
        columns=[*groups[0].heads(), "training", *heads],
        rows=rows,
        numeric=["depth", *heads],
        notes=[
            "expected: sum_j |b_j|^2 (1 - |lambda_j|^(2t)) / (1 - |lambda_j|^2) from each layer's own system; z: over "
            "all t, layers and seeds, in units of the sampling error (rms z is near 1 where theory and layer agree). "
            "Times and layers share their noise, so z are correlated; with few sequences (`noise`) the error is rough.",
        ],
    )


def _diagnostics(groups: list[Group]) -> list[Block]:
    """What the layers themselves find worth watching: metrics that the suite has no name for."""
    rows = []
    for group in groups:
        for name in sorted(set(group.recorded.metrics) - OWN_METRICS):
            found = group.metric(name, ["step", "value"]).groupby("step")["value"].max()
            rows.append([*group.label(), name, *(f"{x:.2g}" for x in (found.iloc[0], found.iloc[-1], found.max()))])
    heads = ["start", "end", "largest"]
    if not rows:
        return []
    title = "Diagnostics of the layers themselves, the largest over layers and seeds"
    return [Table(title, [*groups[0].heads(), "diagnostic", *heads], rows, numeric=["depth", *heads])]


def _mean_sd(values: np.ndarray) -> str:
    if not len(values):
        return "-"
    sd = spread(values)
    return f"{values.mean():+.3f} ± " + ("-" if sd is None else f"{sd:.3f}")


def _number(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.3f}"


def _mean(values: np.ndarray) -> str:
    return _figure(values.mean() if len(values) else None)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:#.3g}"


def _settling(values: np.ndarray) -> str:
    settled = values[np.isfinite(values)]
    return f"{np.median(settled):.0f} ({len(settled)}/{len(values)})" if len(settled) else f"never (0/{len(values)})"
