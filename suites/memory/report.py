"""The tables of the suite `memory`, computed from its rows."""

from __future__ import annotations

import pandas as pd

from bench.contract import View
from bench.measure.memory import RESOLVED
from bench.report.blocks import Block, Note, Table
from bench.report.cells import SHOWN, WORKLOAD, Cells
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
NAMES = FIGURES | {"bytes_per_token": "bytes a token"}
UNRESOLVED = f"below {RESOLVED // 2**20} MiB"


class Held(Cells):
    """The cells that differ by their seed alone: the memory of one of them."""

    shown = (*SHOWN, "depth")
    elsewhere = WORKLOAD

    def bytes(self, name: str) -> float | None:
        """The largest over seeds of a figure; None where it could not be had."""
        found = self.values(name)
        return float(found.max()) if len(found) else None

    @property
    def source(self) -> str | None:
        """The figure that others are compared with and slopes are taken from: the allocator's, or else the system's
        where that is resolved; None where there is neither."""
        if self.bytes("peak_allocator") is not None:
            return "peak_allocator"
        return "peak_system" if (self.bytes("peak_system") or 0) >= RESOLVED else None

    @property
    def measured(self) -> float | None:
        return self.bytes(self.source) if self.source else None


def blocks(results: pd.DataFrame, view: View) -> list[Block]:
    """Peaks by mode, measured and predicted, and how they grow with length, batch and depth."""
    groups = list(Held.of(results))
    if not any(group.ok for group in groups):
        return [Note("no cell's memory was measured")]
    found: list[Block] = []
    for mode in dict.fromkeys(group.key["mode"] for group in groups):
        found.append(_peaks([group for group in groups if group.key["mode"] == mode]))
    return [*found, *_slopes([group for group in groups if group.ok]), *_reasons(results)]


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
        rows.append(
            [
                *start, f"{group.column('batch'):,}",
                *(figure(None if (size := group.bytes(name)) is None else size / scale) for name in FIGURES),
                figure(float(per_token.max()) if len(per_token) else None), _differing(group),
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
            "and their cotangents. differs: figures further than 20 % from the allocator's, or else the system's.",
            *([NOT_COMPARED] if any(group.ok and group.source is None for group in groups) else []),
        ],
        numeric=columns[1 + len(varying) : -2] + columns[-1:],
    )


NOT_COMPARED = (
    f"{UNRESOLVED}: not compared: there is no allocator's figure, and below that the system's is mostly what a first "
    "call brings with it."
)


def _differing(group: Held) -> str:
    """Which figures are far from the measured one, and how far; or that there is none to compare with."""
    if group.source is None:
        return "not compared" if group.bytes("peak_system") is None else f"{UNRESOLVED}: not compared"
    found = [
        f"{FIGURES[name]} {group.metric(name)['message'].dropna().iloc[0].split(' the ')[0]}"
        for name in FIGURES
        if group.bytes(name) is not None and group.metric(name)["message"].notna().any()
    ]
    return ", ".join(found) or "-"


def curves(groups: list[Held], axis: str) -> list[list[Held]]:
    """Cells that differ by their length, batch or depth alone, at least two values of it."""
    found: dict[tuple, list[Held]] = {}
    for group in groups:
        others = [(name, group.column(name)) for name in ("length", "batch", "depth") if name != axis]
        if axis == "length" and group.key.get("tokens"):
            others = [pair for pair in others if pair[0] != "batch"] + [("tokens", group.key["tokens"])]
        label = [group.key["model"], *(str(group.key.get(n, "-")) for n in group.varying if n != axis)]
        found.setdefault((*label, group.key["mode"], *others), []).append(group)
    return [planned for planned in found.values() if len({group.column(axis) for group in planned}) > 1]


def by_source(curve: list[Held]) -> list[tuple[str, list[Held]]]:
    """The cells of a curve by the figure that was measured: what two sources say is no growth."""
    sources = dict.fromkeys(group.source for group in curve if group.source)
    return [(source, [group for group in curve if group.source == source]) for source in sources]


def _slopes(groups: list[Held]) -> list[Block]:
    """Exponents of the measured peak over length, batch and depth, everything else equal."""
    rows = []
    unresolved: list[str] = []
    for axis in ("length", "batch", "depth"):
        for planned in curves(groups, axis):
            unresolved += [_named(group) for group in planned if group.measured is None]
            for source, curve in by_source(planned):
                at = [group.column(axis) for group in curve]
                peaks = [peak for group in curve if (peak := group.measured)]
                slope = exponent(at, peaks)
                if slope is None:
                    continue
                growth = (max(peaks) - min(peaks)) / (max(at) - min(at))
                start = [*curve[0].label(), curve[0].key["mode"], FIGURES[source], axis]
                rows.append([*start, f"{min(at):,} - {max(at):,}", f"{slope:.2f}", figure(growth / 1024)])
    unresolved = list(dict.fromkeys(unresolved))
    more = f" and {len(unresolved) - LEFT_OUT_SHOWN} more" if len(unresolved) > LEFT_OUT_SHOWN else ""
    reason = f"no allocator's figure, and the system's is {UNRESOLVED}: {', '.join(unresolved[:LEFT_OUT_SHOWN])}{more}."
    if not rows:
        return [Note(f"How memory grows: nothing to take it from, {reason}")] if unresolved else []
    varying = groups[0].varying
    note = "Slope of log(figure) over log(length, batch or depth), everything else equal. figure: which of those above."
    return [
        Table(
            title="How memory grows",
            columns=["model", *varying, "mode", "figure", "over", "from - to", "exponent", "KiB for one more"],
            rows=rows,
            notes=[note, *([f"Left out, {reason}"] if unresolved else [])],
            numeric=["exponent", "KiB for one more"],
        )
    ]


LEFT_OUT_SHOWN = 6


def _named(group: Held) -> str:
    named = [f"{name} {group.key.get(name)}" if name != "backend" else str(group.key[name]) for name in group.varying]
    return " ".join([group.key["model"], *named, group.key["mode"], f"length {group.key['length']:,}"])


def _reasons(results: pd.DataFrame) -> list[Block]:
    """Why figures are missing, once each."""
    figures = results[results["metric"].isin(list(NAMES))]
    planned = figures.groupby(["backend", "metric"])["cell_id"].nunique()
    missing = figures[figures["value"].isna()]
    found: list[Block] = []
    for (backend, metric, message), rows in missing.groupby(["backend", "metric", "message"], sort=False):
        cells, all_ = rows["cell_id"].nunique(), planned[backend, metric]
        part = "" if cells == all_ else f" in {cells} of {all_} cells"
        found.append(Note(f"{backend}, {NAMES[metric]}: not measured{part}, {message}."))
    return found
