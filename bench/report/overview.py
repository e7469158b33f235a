"""What every report starts and ends with: failures, counts, machines; and the report of one or more runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from bench import registry, store
from bench.contract import View
from bench.report.blocks import Block, Note, Table
from bench.report.cells import told_apart
from bench.report.figures import Figure
from bench.report.provenance import commit

FAILURES_SHOWN = 20
WORST_FIRST = (
    "error", "crashed", "oom", "timeout", "compile_failed", "missing", "interrupted", "diverged", "unsupported",
    "unconverged",
)  # fmt: skip
WIDE_SHOWN = 3
"""So many unconverged cells have a line: they have their numbers, and a mark in their suite's tables."""


def report(
    results: pd.DataFrame, folders: list[Path], view: View | None = None, unverified: bool = False
) -> list[Block]:
    """Failures first, then what each suite says of its cells, then what it was measured on.

    Cells whose layer did not agree with the oracle before it was timed are left out, unless `unverified`.
    """
    found = failures(results)
    kept, left_out = (results, []) if unverified else verified(results)
    found += left_out
    for suite, rows in by_suite(kept):
        found += suite_blocks(suite, rows, view or View())
    return [*found, *measured_on(results, folders)]


def by_suite(results: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The suites in the order in which they come, each with its rows."""
    suites = results["suite"].unique()
    for suite in suites[~pd.isna(suites)]:
        yield suite, results if len(suites) == 1 else results[results["suite"] == suite]


def suite_blocks(suite: str, rows: pd.DataFrame, view: View) -> list[Block]:
    """What a suite says of its rows; a warning where it cannot, for one suite's fault must not hide the others."""
    try:
        cls = registry.find("suite", suite)
    except ValueError as error:
        return [Note(f"suite {suite} is not installed here, so its rows are not shown: {error}", warning=True)]
    try:
        return _with_notes(cls().report(rows, view), matches(rows))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return [Note(f"suite {suite} failed to report on its rows, {reason}", warning=True, fault=True)]


def suite_figures(suite: str, rows: pd.DataFrame, view: View) -> tuple[list[Figure], list[Note]]:
    """The figures of a suite, or none and why: one suite's fault must not hide the others' figures."""
    try:
        return registry.find("suite", suite)().figures(rows, view), []
    except Exception as error:
        text = f"suite {suite} has no figures, {type(error).__name__}: {error}"
        return [], [Note(text, warning=True, fault=True)]


def figures(results: pd.DataFrame, view: View) -> tuple[list[Figure], list[Note]]:
    """The figures of all suites that the rows are of, but for unverified cells; and what is missing."""
    results, notes = verified(results)
    found: list[Figure] = []
    for suite, rows in by_suite(results):
        drawn, missing = suite_figures(suite, rows, view)
        found, notes = found + drawn, notes + missing
    return found, notes


def verified(results: pd.DataFrame) -> tuple[pd.DataFrame, list[Note]]:
    """The rows of all cells but those of which one is marked as not verified, and a note that names these."""
    bad = unverified_cells(results)
    if not bad:
        return results, []
    cells = results.drop_duplicates("cell_id")
    names = []
    for row, apart in zip(cells.itertuples(), told_apart(cells.to_dict("records")), strict=True):
        if row.cell_id in bad:
            more = [f"{name} {value}" for name, value in apart.items() if name not in ("backend", "dtype")]
            names.append(f"{row.model} ({', '.join(map(str, [row.backend, row.dtype, *more]))})")
    names = sorted(set(names))
    others = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    count, whose = ("1 cell is", "its layer was") if len(bad) == 1 else (f"{len(bad)} cells are", "their layers were")
    text = (
        f"{count} left out of the tables, because {whose} not shown to agree with the oracle: "
        f"{', '.join(names[:NAMES_SHOWN])}{others}. `--unverified` shows {'it' if len(bad) == 1 else 'them'}."
    )
    return results[~results["cell_id"].isin(bad)], [Note(text, warning=True)]


def unverified_cells(results: pd.DataFrame) -> set[str]:
    """The ids of the cells of which a row is marked as not verified."""
    return set(results.loc[(results["verified"] == False).fillna(False), "cell_id"])  # noqa: E712


NAMES_SHOWN = 10


def matches(rows: pd.DataFrame) -> list[str]:
    """One note where sizes were matched: what each model reached, and how far that is from the target."""
    found = {}
    for row in rows.drop_duplicates("cell_id").itertuples():
        facts = json.loads(row.facts) if isinstance(row.facts, str) else {}
        if match := facts.get("match"):
            off = match["size"] / match["target"] - 1
            found[row.model] = (match["by"], f"{row.model} {match['size']:,.0f} ({off:+.1%})")
    if not found:
        return []
    by = ", ".join(sorted({by for by, _ in found.values()}))
    return [f"Sizes matched by {by}: {', '.join(text for _, text in found.values())}."]


def _with_notes(blocks: list[Block], notes: list[str]) -> list[Block]:
    return [
        dataclasses.replace(block, notes=[*block.notes, *notes]) if isinstance(block, Table) else block
        for block in blocks
    ]


def counts(results: pd.DataFrame) -> dict[str, int]:
    """Status -> number of cells."""
    return results.drop_duplicates("cell_id")["status"].value_counts().to_dict()


def failures(results: pd.DataFrame) -> list[Block]:
    """Cells that are not ok, or nothing."""
    cells = results.drop_duplicates("cell_id")
    bad = cells[cells["status"] != "ok"]
    if bad.empty:
        return []
    order = {status: i for i, status in enumerate(WORST_FIRST)}
    bad = bad.sort_values("status", key=lambda column: column.map(lambda s: order.get(s, 0)), kind="stable")
    wide = bad["status"] == "unconverged"
    shown = bad[~wide | (wide.cumsum() <= WIDE_SHOWN)].head(FAILURES_SHOWN)
    left = bad.drop(shown.index)["status"].value_counts()
    more = ", ".join(f"{n} more {status}" for status, n in left.items())
    apart = dict(zip(cells["cell_id"], told_apart(cells.to_dict("records")), strict=True))
    said = [apart[id_] for id_ in shown["cell_id"]]
    names = [name for name in said[0] if name != "backend" and any(one[name] != "-" for one in said)]
    rows = [
        [
            row.status, row.suite, row.model, row.backend, *(apart[row.cell_id][name] for name in names),
            last_line(row.message), row.cell_id,
        ]
        for row in shown.itertuples()
    ]  # fmt: skip
    return [
        Table(
            title=f"Not ok: {len(bad)} of {len(cells)} cells",
            columns=["status", "suite", "model", "backend", *names, "reason", "cell"],
            rows=rows,
            notes=[*([f"and {more}"] if more else []), *_whole_messages(bad)],
            numeric=[name for name in names if all(one[name].replace("-", "", 1).isdecimal() for one in said)],
        )
    ]


def last_line(message: object) -> str:
    """The line of a message or traceback that says what happened."""
    lines = message.strip().splitlines() if isinstance(message, str) else []
    if not lines:
        return "-"
    return lines[0] if lines[0].startswith("the worker ended") else lines[-1]


def measured_on(results: pd.DataFrame, folders: list[Path]) -> list[Block]:
    """The machines behind the rows, and how long the cells took."""
    found: list[Block] = []
    for folder in folders:
        for path in sorted((folder / "environments").glob("*.json")):
            e = store.load_json(path)
            packages = ", ".join(f"{k} {v}" for k, v in e.get("packages", {}).items() if k in ("torch", "jax", "numpy"))
            gpus = ", ".join(e.get("gpus") or []) or "no GPU"
            found.append(
                Note(
                    f"\nMeasured on: {e.get('cpu')}, {e.get('cores')} cores, {e.get('memory_gib')} GiB; {gpus}; "
                    f"Python {e.get('python')}, {packages}; {commit(e)}"
                )
            )
    cells = results.drop_duplicates("cell_id")
    threads = sorted(cells["threads"].dropna().unique())
    text = ", ".join(f"{n} {status}" for status, n in counts(results).items())
    seconds = cells["duration_s"].dropna()
    if len(seconds):
        text += f"; {seconds.median():.1f} s a cell (median), {seconds.sum():.0f} s together"
    if len(threads):
        text += f"; {' or '.join(map(str, threads))} threads a cell"
    found.append(Note(f"Cells: {text}"))
    if len(threads) > 1:
        found.append(Note("Cells ran with different numbers of threads: do not compare their times.", warning=True))
    return found


def machines(results: pd.DataFrame, folders: Sequence[Path]) -> list[str]:
    """What the cells ran on, by name: GPUs, or the CPU; the kind of device where no environment was kept."""
    cells = results.drop_duplicates("cell_id")
    kept = cells[cells["env_id"].notna()]  # what was interrupted has recorded nothing of where it ran
    cells = kept if len(kept) else cells
    found = []
    for run, env, device in cells[["run_id", "env_id", "device"]].drop_duplicates().itertuples(index=False):
        files = [folder / "environments" / f"{env}.json" for folder in folders if folder.name == run]
        about = store.load_json(files[0]) if files and files[0].exists() else {}
        named = about.get("cpu") if device == "cpu" else ", ".join(about.get("gpus") or [])
        found.append(str(named or device))
    return list(dict.fromkeys(found))


def _whole_messages(bad: pd.DataFrame) -> list[str]:
    """The full text of the first message of each kind that is longer than a line."""
    texts = [m for m in bad["message"].dropna().unique() if "\n" in m.strip()]
    return texts[:3]
