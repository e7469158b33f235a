"""Lays the results of two commits against each other, and says what has become worse."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bench.contract import require
from bench.report.blocks import Block, Note, Table
from bench.report.units import BYTES, TIMES, figure
from bench.tracking.results import DIRTY, Config, Figure, Name, Stored, git, stored


@dataclasses.dataclass(frozen=True)
class Rule:
    """By how much a figure may grow: by a share of what it was, and by so much at least, whatever it was."""

    share: float = 0.0
    least: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.share:.0%}"] * bool(self.share) + [f"{self.least:,.10g}"] * bool(self.least)
        return " and ".join(parts)


RULES = {
    "s": Rule(share=0.15),
    "B": Rule(share=0.1, least=4 * 2**20),
    "of the largest": Rule(least=2e-5),
    "log2": Rule(least=0.01),
}
"""By unit. Times: the 99 % intervals must be apart as well. Memory: a process gains and loses 2 MiB by itself. Errors:
a tenth of what float32 is allowed. Drift, by its size: rounding moves it by 1e-5, and a model that trains differently
by more than a hundredth of a doubling."""

OTHER = Rule(share=0.1)


@dataclasses.dataclass(frozen=True)
class Change:
    """One figure of two commits. `mark`: worse, better, or nothing; failed; or why there is nothing to compare."""

    name: Name
    unit: str
    before: Figure | None
    after: Figure | None
    mark: str

    @property
    def fault(self) -> bool:
        return self.mark in ("WORSE", "FAILED")


def choose(config: Config, first: str | None, second: str | None) -> list[tuple[Stored, Stored]]:
    """Which results are compared, one pair a machine: those of two commits, by default the two newest.

    A commit is the beginning of its hash, with "-dirty" for a changed tree, or any name that git knows. With one commit
    given, it is compared with the newest. ValueError: an unknown commit, or no results.
    """
    found = stored(config.results) if config.results.is_dir() else []
    require(bool(found), f"no results in {config.results}: make some with `make track`")
    names = list(dict.fromkeys(one.name for one in reversed(found)))
    if first is None:
        require(len(names) > 1, f"only {names[0]} has results in {config.results}: there is nothing to compare it with")
        after, before = names[:2]
    else:
        before = _resolve(config, first, names)
        after = names[0] if second is None else _resolve(config, second, names)
    require(before != after, f"{before} and {after} are the same results")
    pairs = []
    for machine in sorted({one.machine for one in found}):
        of = {one.name: one for one in found if one.machine == machine}  # the last one measured
        if before in of and after in of:
            pairs.append((of[before], of[after]))
    require(bool(pairs), f"{before} and {after} were measured on different machines: nothing to compare")
    return pairs


def _resolve(config: Config, text: str, names: list[str]) -> str:
    """The name of stored results that a text means."""
    plain, dirty = text.removesuffix(DIRTY), text.endswith(DIRTY)
    known = [name for name in names if name.endswith(DIRTY) == dirty]
    matching = [name for name in known if len(plain) >= 4 and plain.startswith(name.removesuffix(DIRTY)[: len(plain)])]
    if not matching and (commit := git(config, "rev-parse", "--verify", "--quiet", f"{plain}^{{commit}}")):
        matching = [name for name in known if commit.startswith(name.removesuffix(DIRTY))]
    if len(matching) == 1:
        return matching[0]
    problem = "means more than one" if matching else "has no results"
    raise ValueError(f"{text} {problem}: known are {', '.join(matching or names)}")


def compare(before: Stored, after: Stored, unit: Mapping[str, str]) -> list[Change]:
    """Every figure of either, the faults first."""
    found = []
    for name in sorted(before.figures.keys() | after.figures.keys()):
        one, two = before.figures.get(name), after.figures.get(name)
        found.append(Change(name, unit.get(name[0], ""), one, two, judge(one, two, unit.get(name[0], ""))))
    return sorted(found, key=lambda change: (not change.fault, change.mark == ""))


def judge(before: Figure | None, after: Figure | None, unit: str) -> str:
    """The mark of a figure. A null on either side is a failure."""
    if (before and before.value is None) or (after and after.value is None):
        return "FAILED"
    if before is None or after is None:
        return "new" if before is None else "gone"
    if before.value is None or after.value is None or not before.measured or not after.measured:
        return "skipped"
    if before.version != after.version:
        return "measured differently"
    rule = RULES.get(unit, OTHER)
    one, two = (abs(x) if unit == "log2" else x for x in (before.value, after.value))
    if before.interval and after.interval:
        (low, high), (later_low, later_high) = before.interval, after.interval
        if later_low <= high and low <= later_high:
            return ""
    if two - one > max(rule.share * abs(one), rule.least):
        return "WORSE"
    return "better" if one - two > max(rule.share * abs(two), rule.least) else ""


def compare_blocks(before: Stored, after: Stored, changes: list[Change]) -> list[Block]:
    """A table of all figures, and a line that says what matters."""
    rows = []
    for change in changes:
        (one, two), kind = _texts(change), change.name
        ratio = "-"
        if change.before and change.after and change.before.measured and change.after.measured and change.before.value:
            ratio = figure((change.after.value or 0.0) / change.before.value)
        rows.append([change.mark, kind[0], ", ".join(kind[1]), one, two, ratio])
    used = {change.unit: RULES.get(change.unit, OTHER) for change in changes}
    limits = "; ".join(f"{unit or 'others'} {rule}" for unit, rule in sorted(used.items()))
    table = Table(
        title=f"{before.name} against {after.name} on {after.machine}",
        columns=["", "benchmark", "at", before.name, after.name, "ratio"],
        rows=rows,
        notes=[f"WORSE: grown by more than {limits}; times with 99 % intervals apart, log2 by its size."],
        numeric=[before.name, after.name, "ratio"],
    )
    worse, failed = (sum(change.mark == mark for change in changes) for mark in ("WORSE", "FAILED"))
    text = f"{worse} worse, {failed} failed, of {len(changes)} figures"
    return [table, Note(text, warning=bool(worse or failed))]


def _texts(change: Change) -> list[str]:
    """Both values in one unit."""
    values = [one.value for one in (change.before, change.after) if one and one.measured and one.value is not None]
    factor, unit = 1.0, change.unit
    if change.unit == "s" and values:
        factor, unit = next((t for t in TIMES if min(values) >= t[0]), TIMES[-1])
    elif change.unit == "B" and values:
        factor, unit = next((b for b in BYTES if max(values) >= 2 * b[0]), BYTES[-1])
    return [_text(one, factor, unit) for one in (change.before, change.after)]


def _text(found: Figure | None, factor: float, unit: str) -> str:
    if found is None:
        return "-"
    if found.value is None:
        return "failed"
    if not found.measured:
        return "skipped"
    value = found.value / factor
    number = f"{value:.2e}" if 0 < abs(value) < 1e-3 else figure(value)
    return f"{number} {unit}" if unit in ("s", "ms", "µs", "B", "KiB", "MiB", "GiB") else number
