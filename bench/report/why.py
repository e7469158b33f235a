"""From a number in a table's LaTeX to the cells behind it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from bench import store
from bench.contract import require
from bench.report.blocks import Block, Note, Table
from bench.report.writers import CELLS


def cells_at(place: str) -> list[str]:
    """The ids of the cells behind FILE:LINE:COLUMN, of a table or of a file of macros; LINE and COLUMN count from 1.

    ValueError: no such file or line, or no number there.
    """
    path, line_, column_ = _parts(place)
    lines = path.read_text(encoding="utf-8").splitlines()
    require(1 <= line_ <= len(lines), f"{place}: the file has {len(lines)} lines")
    text, mark, comment = lines[line_ - 1].rpartition(CELLS)
    require(bool(mark), f"{place}: this line carries no cells: point at a line of numbers")
    groups = comment.strip().split(";")
    fields = text.split(" & ")
    names = len(fields) - len(groups)
    if len(groups) == 1 and names < 1:
        return [cell for cell in groups[0].split(",") if cell]
    number, end = 0, 0
    for number, field in enumerate(fields):  # noqa: B007
        end += len(field) + len(" & ")
        if column_ <= end:
            break
    require(number >= names, f"{place}: this is the name of a row: point at a number")
    found = [cell for cell in groups[number - names].split(",") if cell]
    require(bool(found), f"{place}: nothing was planned here")
    return found


def _parts(place: str) -> tuple[Path, int, int]:
    name, *numbers = place.rsplit(":", 2)
    require(
        len(numbers) == 2 and all(number.isdecimal() for number in numbers),
        f"{place!r} should read FILE:LINE:COLUMN, e.g. table.tex:12:40",
    )
    require(Path(name).is_file(), f"{name}: there is no such file")
    return Path(name), int(numbers[0]), int(numbers[1])


def blocks(ids: list[str], results: pd.DataFrame, folders: list[Path]) -> list[Block]:
    """The cells with their status, code and machine."""
    rows = results[results["cell_id"].isin(ids)].drop_duplicates("cell_id")
    missing = [cell for cell in ids if cell not in set(rows["cell_id"])]
    found: list[Block] = []
    if len(rows):
        names = ["cell_id", "run_id", "suite", "model", "options", "backend", "device", "dtype", "task", "depth",
                 "d_model", "seed", "status", "code", "env_id", "started_at"]  # fmt: skip
        values = [["-" if pd.isna(row[name]) else str(row[name]) for name in names] for _, row in rows.iterrows()]
        found.append(Table(f"{len(rows)} cells", names, values))
        for folder in folders:
            for env in rows.loc[rows["run_id"] == folder.name, "env_id"].dropna().unique():
                path = folder / "environments" / f"{env}.json"
                content = store.load_json(path) if path.exists() else {"environment": "not kept"}
                about = ", ".join(f"{name} {value}" for name, value in sorted(content.items()) if name != "packages")
                found.append(Note(f"{env}: {about}"))
    if missing:
        found.append(Note(f"not in these runs: {', '.join(missing)}", warning=True))
    return found
