"""The tables of the suite `throughput`, computed from its rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pandas as pd

from bench.contract import View
from bench.measure.cost import WIDE
from bench.options import parse_name
from bench.report.blocks import Block, Note, Table
from bench.report.cells import SHOWN, WORKLOAD, Cells, Recorded
from bench.report.statistics import (
    bootstrap_medians,
    crossings,
    exponent,
    exponent_interval,
    interval,
    ratio_interval,
)
from bench.report.units import figure, time_unit
from bench.store import COMPLETE_STATUSES

TITLES = {
    "forward": "Time of a forward pass",
    "train": "Time of a training step (forward, backward, AdamW)",
    "decode": "Time of one step of decoding",
}
MANY_PROCESSES = 5
"""From so many processes on the interval says enough; below, the range of their medians stands beside it."""


class Timed(Cells):
    """The cells that differ by their seed alone: one time, from several processes."""

    counted = COMPLETE_STATUSES
    shown = (*SHOWN, "compiled", "depth")
    elsewhere = WORKLOAD

    def __init__(self, key: dict[str, Any], varying: Sequence[str], cells: pd.DataFrame, recorded: Recorded) -> None:
        super().__init__(key, varying, cells, recorded)
        samples = self.metric("time").groupby(["seed", "process"], dropna=False)["value"]
        self.processes = [values.to_numpy(float) for _, values in samples]
        self.resampled = bootstrap_medians(self.processes) if self.processes else np.array([])
        self.converged = self.ok == self.planned and bool((self.cells["status"] == "ok").all())

    @property
    def medians(self) -> np.ndarray:
        return np.array([np.median(samples) for samples in self.processes])

    @property
    def seconds(self) -> float:
        """The median over processes of their medians."""
        return float(np.median(self.medians))

    @property
    def batch(self) -> int | None:
        return self.column("batch")

    @property
    def tokens_per_second(self) -> float | None:
        """Time steps over the batch, over the time that is shown."""
        steps = 1 if self.key["mode"] == "decode" else self.key["length"]
        return self.batch * steps / self.seconds if self.batch else None

    @property
    def of_limit(self) -> float | None:
        """The least time at the rates of the fastest process over the time that is shown; None where it is unknown."""
        least = self.values("limit_time")
        return float(least.min()) / self.seconds if len(least) else None

    @property
    def mark(self) -> str:
        return "" if self.converged else " *"

    @property
    def peers(self) -> tuple:
        """What two cells must share to be compared with each other."""
        rest = tuple(str(self.key.get(name)) for name in self.varying if name != "backend")
        return (self.key["mode"], self.key["backend"], self.key["length"], self.batch, *rest)

    @property
    def held_constant(self) -> str:
        """What stays the same over lengths: the batch, or batch x length."""
        return f"{self.key['tokens']:,} tokens" if self.key.get("tokens") else f"batch {self.batch}"


def blocks(results: pd.DataFrame, view: View) -> list[Block]:
    """Speed by mode, its dependence on length, where models break even, and what starting costs."""
    groups = list(Timed.of(results))
    timed = [group for group in groups if group.processes]
    if not timed:
        return [Note("no cell was timed")]
    baseline = _baseline(timed, view)
    found: list[Block] = []
    if view.baseline not in (None, baseline, parse_name(baseline)[0]):
        found.append(Note(f"--baseline {view.baseline} was not timed: compared with {baseline}", warning=True))
    for mode in dict.fromkeys(group.key["mode"] for group in groups):
        found.append(_speed([group for group in groups if group.key["mode"] == mode], baseline))
    found += [*_scaling(timed), *_break_even(timed), _start(timed), *_machine(results)]
    return found


def _baseline(timed: list[Timed], view: View) -> str:
    """The model that the others are compared with: the first of this row's or plain name, or the first of all."""
    models = [group.key["model"] for group in timed]
    return next((model for model in models if view.baseline in (model, parse_name(model)[0])), models[0])


def _speed(groups: list[Timed], baseline: str) -> Table:
    timed = [group for group in groups if group.processes]
    scale, unit = time_unit([group.seconds for group in timed])
    peers = {group.peers: group for group in timed if group.key["model"] == baseline}
    few = any(len(group.processes) < MANY_PROCESSES for group in timed)
    varying = groups[0].varying
    rows = []
    for group in groups:
        length = group.key["length"]
        start = [*group.label(), f"{length:,}"]
        if not group.processes:
            status = " ".join(sorted(set(group.cells["status"])))
            rows.append([*start, "-", "-", status, *["-"] * (6 + few)])
            continue
        low, high = (value / scale for value in interval(group.resampled))
        medians = group.medians / scale
        spread = [f"{figure(medians.min())} - {figure(medians.max())}" if len(medians) > 1 else "-"] if few else []
        of_limit = group.of_limit
        rows.append(
            [
                *start, f"{group.batch:,}", group.column("kernel") or "-",
                figure(group.seconds / scale) + group.mark,
                f"[{figure(low)}, {figure(high)}]", *spread, str(len(group.processes)),
                figure(None if (rate := group.tokens_per_second) is None else rate / 1e3),
                _ratio(peers.get(group.peers), group), "-" if of_limit is None else f"{of_limit:.0%}",
                f"{group.column('state_reals'):,}",
            ]
        )  # fmt: skip
    notes = [
        f"time: median over processes of their medians; interval: 95 % bootstrap over processes and repeats; tokens/s: "
        f"from that time; speed: against {baseline}, above 1 is faster; of limit: the least time that the layer's own "
        "operations and traffic would take at the best rates reached here, over that time."
    ]
    if alone := list(dict.fromkeys(_place(group) for group in timed if group.peers not in peers)):
        more = f" and {len(alone) - PLACES_SHOWN} more" if len(alone) > PLACES_SHOWN else ""
        places = ", ".join(alone[:PLACES_SHOWN]) + more
        notes.append(f"speed: - where there is no time of {baseline} to compare with: {places}.")
    if few:
        notes.append(f"Fewer than {MANY_PROCESSES} processes: the range of their medians stands beside the interval.")
    if not all(group.converged for group in timed):
        notes.append("*: the interval inside a process was still wider than asked when its budget was spent.")
    if len({group.column("state_reals") for group in timed}) > 1:
        notes.append("Models carry different numbers of reals from step to step (state reals).")
    if len({group.column("kernel") for group in timed if group.key["backend"] == timed[0].key["backend"]}) > 1:
        notes.append("kernel: the algorithm that ran. Rows of different kernels are different programs.")
    key = groups[0].key
    fixed = groups[0].fixed()
    if key.get("part") and "part" not in varying:
        fixed.append("bare layers" if key["part"] == "layer" else "whole networks")
    if "compiled" not in varying and any(group.key["compiled"] and group.key["backend"] == "torch" for group in groups):
        fixed.append("torch.compile")
    columns = ["model", *varying, "length", "batch", "kernel", f"time [{unit}]", "95 % interval"]
    columns += [*(["medians"] if few else []), "processes", "thousand tokens/s", "speed", "of limit", "state reals"]
    return Table(
        title=f"{TITLES.get(key['mode'], key['mode'])} ({', '.join(fixed)})",
        columns=columns,
        rows=rows,
        notes=notes,
        numeric=[*columns[1 + len(varying) : 3 + len(varying)], *columns[4 + len(varying) :]],
    )


PLACES_SHOWN = 6


def _place(group: Timed) -> str:
    """What a cell must share with the one that it is compared with, for a reader."""
    named = [(name, group.key.get(name)) for name in group.varying] + [("length", f"{group.key['length']:,}")]
    return " ".join(
        str(value) if name in ("backend", "device", "dtype") else f"{name} {value}" for name, value in named
    )


def _ratio(baseline: Timed | None, group: Timed) -> str:
    """How many times as fast as the baseline, with the interval of both on the log scale."""
    if baseline is None:
        return "-"
    if baseline is group:
        return "1"
    low, high = ratio_interval(baseline.resampled, group.resampled)
    return f"{figure(baseline.seconds / group.seconds)} [{figure(low)}, {figure(high)}]"


def curves(timed: list[Timed]) -> Iterable[tuple[tuple, list[Timed]]]:
    """Cells that differ by their length alone, at least two lengths, shortest first.

    Decoding at a constant number of tokens is left out: there the batch shrinks as the position grows.
    """
    found: dict[tuple, list[Timed]] = {}
    for group in timed:
        mode, backend, _, _, *rest = group.peers
        if not (mode == "decode" and group.key.get("tokens")):
            key = (mode, backend, group.held_constant, *rest, group.key["model"])
            found.setdefault(key, []).append(group)
    for key, groups in found.items():
        if len({group.key["length"] for group in groups}) > 1:
            yield key, sorted(groups, key=lambda group: group.key["length"])


def _per_sequence(groups: list[Timed]) -> list[float]:
    return [group.seconds / group.batch for group in groups if group.batch]


UNCONVERGED = "*: of a time that is marked so above."


def _scaling(timed: list[Timed]) -> list[Block]:
    rows = []
    for key, groups in curves(timed):
        lengths = [group.key["length"] for group in groups]
        found, span, mark = slope(groups)
        neighbours = (slope(groups[i : i + 2]) for i in range(len(groups) - 1))
        local = "-" if len(groups) == 2 else ", ".join(f"{x} {of}{starred}" for x, of, starred in neighbours)
        rows.append(
            [
                *groups[0].label(), groups[0].held_constant,
                key[0], f"{lengths[0]:,} - {lengths[-1]:,}", found + mark, span, local,
            ]
        )  # fmt: skip
    if not rows:
        return []
    text = (
        "Slope of log(time / batch) over log(length): 1 is linear, 0 independent of length. Intervals: 95 % bootstrap "
    )
    notes = [text + "over processes and repeats, each length by itself."]
    return [
        Table(
            title="Exponent of time over length",
            columns=[
                "model", *timed[0].varying, "constant", "mode", "lengths", "exponent", "95 % interval",
                "between neighbours",
            ],
            rows=rows,
            notes=[*notes, UNCONVERGED] if any(" *" in text for row in rows for text in row) else notes,
            numeric=["exponent", "95 % interval"],
        )
    ]  # fmt: skip


def slope(groups: list[Timed]) -> tuple[str, str, str]:
    """The exponent over these lengths, its interval, and the mark of a time that did not converge."""
    lengths = [group.key["length"] for group in groups]
    low, high = exponent_interval(lengths, [group.resampled / group.batch for group in groups if group.batch])
    mark = next((group.mark for group in groups if group.mark), "")
    found = exponent(lengths, _per_sequence(groups)) or 0.0
    shown, low, high = (round(x, 2) + 0.0 for x in (found, low, high))  # never -0.00
    return f"{shown:.2f}", f"[{low:.2f}, {high:.2f}]", mark


UNRESOLVED = "not resolved"


def _break_even(timed: list[Timed]) -> list[Block]:
    lines = dict(curves(timed))
    rows = []
    for first, second in combinations(lines, 2):
        if first[:-1] != second[:-1] or first[0] == "decode":
            continue
        a, b = ({g.key["length"]: g for g in lines[key]} for key in (first, second))
        lengths = sorted(a.keys() & b.keys())
        if len(lengths) < 2:
            continue
        pairs = [(a[length], b[length]) for length in lengths]
        ahead = [_faster(*pair) for pair in pairs]
        where = a[lengths[0]].label()[1:]
        mark = next((group.mark for pair in pairs for group in pair if group.mark), "")
        text = _met(lengths, pairs, ahead) + mark
        ends = (ahead[0] or UNRESOLVED, ahead[-1] or UNRESOLVED)
        rows.append([f"{first[-1]}, {second[-1]}", *where, first[2], first[0], text, *ends])
    if not rows:
        return []
    text = "Between the measured lengths, on straight lines through neighbouring times on log-log axes. "
    notes = [f"{text}{UNRESOLVED}: the 95 % interval of the ratio of times holds 1 at a length that decides."]
    return [
        Table(
            title="Lengths at which models break even",
            columns=["models", *timed[0].varying, "constant", "mode", "length", "faster below", "faster above"],
            rows=rows,
            notes=[*notes, UNCONVERGED] if any(" *" in text for row in rows for text in row) else notes,
        )
    ]


def _faster(one: Timed, other: Timed) -> str | None:
    """The model that is faster, None where the interval of their ratio holds 1."""
    low, high = ratio_interval(one.resampled, other.resampled)
    if low <= 1 <= high:
        return None
    return (one if high < 1 else other).key["model"]


def _met(lengths: list[int], pairs: list[tuple[Timed, Timed]], ahead: list[str | None]) -> str:
    """Where the faster one changes from one length at which that is resolved to the next such length."""
    resolved = [i for i, name in enumerate(ahead) if name is not None]
    found = []
    for i, j in pairwise(resolved):
        if ahead[i] == ahead[j]:
            continue
        if j == i + 1:
            times = [_per_sequence(list(curve)) for curve in zip(*pairs[i : j + 1], strict=True)]
            found += [f"{x:,.0f}" for x in crossings(lengths[i : j + 1], *times)]
        else:
            found.append(f"between {lengths[i]:,} and {lengths[j]:,}")
    unclear = [f"{length:,}" for length, name in zip(lengths, ahead, strict=True) if name is None]
    doubt = f"{UNRESOLVED} at {', '.join(unclear)}"
    if found:
        return ", ".join(found) + (f" ({doubt})" if unclear else "")
    if not unclear:
        return f"none: {ahead[0]} is faster throughout"
    return f"{doubt}; else {ahead[resolved[0]]} is faster" if resolved else UNRESOLVED


def _start(timed: list[Timed]) -> Table:
    """One row for cells that differ by their length alone: the longest's first call and counts, the worst errors."""
    alike: dict[tuple, list[Timed]] = {}
    for group in timed:
        alike.setdefault((*group.label(), group.key["mode"], group.held_constant), []).append(group)
    rows = []
    for groups in alike.values():
        groups.sort(key=lambda group: group.key["length"])
        longest, lengths = groups[-1], [f"{group.key['length']:,}" for group in (groups[0], groups[-1])]
        compiled = [seconds for group in groups for seconds in group.values("compile_time")]
        errors = [[x for group in groups for x in group.values(name)] for name in ("output_error", "gradient_error")]
        rows.append(
            [
                *longest.label(), longest.key["mode"], " - ".join(dict.fromkeys(lengths)),
                figure(max(compiled) if compiled else None), figure(_median(longest.values("first_call"))),
                f"{sum(group.values('compilations_while_timed').sum() for group in groups):.0f}",
                *map(_scientific, errors), *(_scientific(longest.values(name)) for name in ("flops", "bytes")),
            ]
        )  # fmt: skip
    columns = ["model", *timed[0].varying, "mode", "lengths", "compiling [s]", "first call [s]", "compiled anew",
               "output error", "gradient error", "operations", "bytes"]  # fmt: skip
    return Table(
        title="Before the steady state: compiling, the first call, and agreement with the oracle",
        columns=columns,
        rows=rows,
        notes=[
            "compiling: ahead of the first call, the longest, - where nothing is; first call, operations and bytes: at "
            "the largest length, the latter as the layer's own model counts them; compiled anew: compilations while it "
            "was timed; errors: of the largest entry, against the float64 loop, the worst over lengths."
        ],
        numeric=columns[2 + len(timed[0].varying) :],
    )


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None


def _scientific(values: Sequence[float] | np.ndarray) -> str:
    return f"{np.max(values):.1e}" if len(values) else "-"


def _machine(results: pd.DataFrame) -> list[Block]:
    """Whether the machine had other work, and what it can do at best."""
    found: list[Block] = []
    states = []
    for text in results["facts"].dropna().unique():
        state = json.loads(text).get("machine", [])
        states += state if isinstance(state, list) else [state]
    states = [state for state in states if state]
    others = [state["other"] for state in states if state.get("other") is not None]
    throttled = sorted({reason for state in states for reason in state.get("throttled", [])})
    if throttled:
        blocks = sum(bool(state.get("throttled")) for state in states)
        text = f"{blocks} of {len(states)} blocks stayed throttled after two repeats: {', '.join(throttled)}."
        found.append(Note(text, warning=True))
    if others and max(others) > 0.1:
        text = (
            f"Other processes took up to {max(others):.0%} of the processors while cells were timed "
            f"(median {np.median(others):.0%}): absolute times are too long, ratios less so."
        )
        found.append(Note(text, warning=True))
    reached = results[results["metric"].isin(["limit_flops", "limit_bandwidth"])]
    for (backend, dtype), rows in reached.groupby(["backend", "dtype"]):
        best = rows.groupby("metric")["value"].max()
        wide = f" (the faster of {dtype} and {WIDE[dtype]})" if dtype in WIDE else ""
        found.append(
            Note(
                f"This machine with {backend} in {dtype}: {best['limit_flops'] / 1e9:,.0f} Gflop/s in matrix products"
                f"{wide}, {best['limit_bandwidth'] / 1e9:,.1f} GB/s in copies from memory (best of all processes)."
            )
        )
    return found
