"""The tables of the suite `memory`, computed from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from bench.contract import View
from bench.report.blocks import Block, Note, Table
from bench.report.cells import SHOWN, Cells
from bench.report.statistics import exponent
from bench.report.units import byte_unit, figure

TITLES = {
    "forward": "Memory of a forward pass",
    "train": "Memory of a training step (forward, backward, AdamW)",
    "decode": "Memory of one step of decoding",
}
FIGURES = {
    "peak_system": "system",
    "peak_allocator": "allocator",
    "predicted_compiler": "compiler",
    "predicted_layer": "layer's model",
}
MEASURED = ("peak_allocator", "peak_system")
"""What slopes are taken from: the first that is there."""
HIDDEN = ("mode", "length", "batch", "tokens")
"""Factors that have a place of their own in every table."""


class Held(Cells):
    """The cells that differ by their seed alone: the memory of one of them."""

    shown = (*SHOWN, "depth")

    def __init__(self, key: dict[str, Any], varying: Sequence[str], rows: pd.DataFrame) -> None:
        super().__init__(key, [name for name in varying if name not in HIDDEN], rows)

    def bytes(self, name: str) -> float | None:
        """The largest over seeds of a figure; None where it could not be had."""
        found = self.values(name)
        return float(found.max()) if len(found) else None

    @property
    def measured(self) -> float | None:
        return next((size for name in MEASURED if (size := self.bytes(name)) is not None), None)


def blocks(results: pd.DataFrame, view: View) -> list[Block]:
    """Peaks by mode, measured and predicted, and how they grow with length, batch and depth."""
    groups = list(Held.of(results))
    if not any(group.ok for group in groups):
        return [Note("no cell's memory was measured")]
    found: list[Block] = []
    for mode in dict.fromkeys(group.key["mode"] for group in groups):
        found.append(_peaks([group for group in groups if group.key["mode"] == mode]))
    return [*found, *_slopes([group for group in groups if group.measured]), *_reasons(results)]


def _peaks(groups: list[Held]) -> Table:
    sizes = [size for group in groups for name in FIGURES if (size := group.bytes(name)) is not None]
    scale, unit = byte_unit(sizes)
    rows = []
    for group in groups:
        start = [*group.label(), f"{group.key['length']:,}"]
        if not group.ok:
            rows.append([*start, "-", *["-"] * len(FIGURES), "-", " ".join(sorted(set(group.cells["status"]))), "-"])
            continue
        per_token = group.values("bytes_per_token")
        differing = [
            f"{FIGURES[name]} {group.metric(name)['message'].dropna().iloc[0].split(' the ')[0]}"
            for name in FIGURES
            if group.bytes(name) is not None and group.metric(name)["message"].notna().any()
        ]
        rows.append(
            [
                *start, f"{group.column('batch'):,}",
                *(figure(None if (size := group.bytes(name)) is None else size / scale) for name in FIGURES),
                figure(float(per_token.max()) if len(per_token) else None), ", ".join(differing) or "-",
                f"{group.column('state_reals'):,}",
            ]
        )  # fmt: skip
    key, varying = groups[0].key, groups[0].varying
    fixed = groups[0].fixed()
    columns = ["model", *varying, "length", "batch", *FIGURES.values(), "bytes a token", "differs", "state reals"]
    return Table(
        title=f"{TITLES.get(key['mode'], key['mode'])} in {unit} ({', '.join(fixed)})",
        columns=columns,
        rows=rows,
        notes=[
            "Above what the process held before weights and inputs were made, at the worst moment of one call. system: "
            "the operating system's high-water mark; allocator: the framework's own; compiler: XLA's temporaries, "
            "arguments and outputs less aliases; layer's model: parameters, their gradients and moments, u, y, states "
            "and their cotangents. differs: figures further than 20 % from the allocator's, or else the system's."
        ],
        numeric=columns[1 + len(varying) : -2] + columns[-1:],
    )


def _slopes(groups: list[Held]) -> list[Block]:
    """Exponents of the measured peak over length, batch and depth, everything else equal."""
    rows = []
    for axis in ("length", "batch", "depth"):
        curves: dict[tuple, list[Held]] = {}
        for group in groups:
            others = [(name, group.column(name)) for name in ("length", "batch", "depth") if name != axis]
            if axis == "length" and group.key.get("tokens"):
                others = [pair for pair in others if pair[0] != "batch"] + [("tokens", group.key["tokens"])]
            label = [group.key["model"], *(str(group.key.get(n, "-")) for n in group.varying if n != axis)]
            curves.setdefault((*label, group.key["mode"], *others), []).append(group)
        for curve in curves.values():
            at = [group.column(axis) for group in curve]
            peaks = [group.measured for group in curve]
            slope = exponent(at, [peak for peak in peaks if peak])
            if slope is None:
                continue
            first, last = min(at), max(at)
            growth = (max(p for p in peaks if p) - min(p for p in peaks if p)) / (last - first)
            start = [*curve[0].label(), curve[0].key["mode"], axis]
            rows.append([*start, f"{first:,} - {last:,}", f"{slope:.2f}", figure(growth / 1024)])
    if not rows:
        return []
    varying = groups[0].varying
    return [
        Table(
            title="How memory grows",
            columns=["model", *varying, "mode", "over", "from - to", "exponent", "KiB for one more"],
            rows=rows,
            notes=["Slope of log(measured peak) over log(length, batch or depth), everything else equal."],
            numeric=["exponent", "KiB for one more"],
        )
    ]


def _reasons(results: pd.DataFrame) -> list[Block]:
    """Why figures are missing, once each."""
    missing = results[results["metric"].isin(list(FIGURES)) & results["value"].isna()]
    found = missing[["backend", "metric", "message"]].drop_duplicates()
    return [Note(f"{row.backend}, {FIGURES[row.metric]}: not measured, {row.message}.") for row in found.itertuples()]
