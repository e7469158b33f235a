"""The tidy store: one parquet file a cell, one fixed schema, one row a value."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA_VERSION = 1

STATUSES = (
    "ok", "diverged", "unconverged", "oom", "timeout", "error",
    "compile_failed", "crashed", "unsupported", "missing", "interrupted",
)  # fmt: skip
GOOD_STATUSES = ("ok", "diverged", "unconverged", "unsupported")
"""Statuses that leave the exit code at 0."""

_TEXT, _INT, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
CELL_COLUMNS = {
    "schema_version": _INT, "run_id": _TEXT, "cell_id": _TEXT, "env_id": _TEXT, "suite": _TEXT, "suite_version": _INT,
    "model": _TEXT, "options": _TEXT, "backend": _TEXT, "device": _TEXT, "dtype": _TEXT, "kernel": _TEXT,
    "compiled": _FLAG, "task": _TEXT, "recipe": _TEXT, "depth": _INT, "d_model": _INT, "d_state": _INT,
    "state_reals": _INT, "params": _INT, "batch": _INT, "length": _INT, "mode": _TEXT, "seed": _INT, "factors": _TEXT,
}  # fmt: skip
ROW_COLUMNS = {
    "step": _INT, "epoch": _INT, "layer": _INT, "head": _INT, "t": _INT, "split": _TEXT, "process": _INT,
    "sample": _INT, "metric": _TEXT, "value": _REAL, "unit": _TEXT, "verified": _FLAG,
}  # fmt: skip
END_COLUMNS = {
    "status": _TEXT, "message": _TEXT, "code": _TEXT, "threads": _INT, "facts": _TEXT, "started_at": _TEXT,
    "duration_s": _REAL,
}  # fmt: skip
SCHEMA = pa.schema(list((CELL_COLUMNS | ROW_COLUMNS | END_COLUMNS).items()))


def to_float(value: Any) -> float | None:
    """A finite Python float from any framework's scalar, or None."""
    number = float(value)
    return number if np.isfinite(number) else None


def table(cell: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows of one cell as an arrow table: what `cell` holds is repeated in each, a row's own message wins."""
    rows = list(rows) or [{}]
    columns = {}
    for field in SCHEMA:
        values = [row.get(field.name, cell.get(field.name)) for row in rows]
        if field.name == "message":
            values = [row.get("message") or cell.get("message") for row in rows]
        columns[field.name] = pa.array(values, field.type)
    return pa.table(columns, schema=SCHEMA)


def write(path: Path, content: pa.Table) -> None:
    """Writes the file under another name, syncs it, and renames it: a reader sees the old file or the new one."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as part:
        try:
            pq.write_table(content, part, compression="zstd")
            part.flush()
            os.fsync(part.fileno())
            os.replace(part.name, path)
        except BaseException:
            os.unlink(part.name)
            raise


def write_text(path: Path, text: str) -> None:
    """The same for a small text file."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", suffix=".part", delete=False) as part:
        part.write(text)
        part.flush()
        os.fsync(part.fileno())
    os.replace(part.name, path)


def status(folder: Path, cell_id: str) -> str | None:
    """The status of a cell that has a file in the run folder, else None."""
    return _first(folder, cell_id, "status", damaged="interrupted")


def duration(folder: Path, cell_id: str) -> float | None:
    """How many seconds a cell took that ended ok, else None."""
    ok = status(folder, cell_id) == "ok"
    return _first(folder, cell_id, "duration_s", damaged=None) if ok else None


def _first(folder: Path, cell_id: str, column: str, damaged: Any) -> Any:
    path = folder / "cells" / f"{cell_id}.parquet"
    if not path.exists():
        return None
    try:
        return pq.read_table(path, columns=[column])[column][0].as_py()
    except (pa.ArrowException, OSError, IndexError, KeyError):
        return damaged


class IncompleteResults(UserWarning):
    """Part of what was asked for could not be read."""


def runs(path: Path) -> list[Path]:
    """The run folders that a path means: itself, or those in it but for `asv` and `reference`; oldest first."""
    if (path / "run.json").is_file():
        return [path]
    found = [p.parent for p in path.glob("*/run.json") if p.parent.name not in ("asv", "reference")]
    return sorted(found, key=lambda p: (load_json(p / "run.json").get("created", ""), p.name))


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; one that is damaged reads as empty, with a warning."""
    try:
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError) as error:
        warnings.warn(f"{path.name} of {path.parent.name} cannot be read: {error}", IncompleteResults, stacklevel=2)
        return {}


def read_results(*paths: str | Path) -> pd.DataFrame:
    """All rows of run folders, of folders of runs, or of single parquet files, as a pandas frame.

    Whole numbers stay whole (nullable Int64). A planned cell without a file is one row with status `interrupted`. Of
    two files for the same cell the newest counts. Files that cannot be read are left out, each with a warning of
    category `IncompleteResults`. Raises FileNotFoundError where there is nothing to read.
    """
    tables: list[pa.Table] = []
    for path in map(Path, paths or ("results",)):
        if path.is_file():
            tables += _read(path)
            continue
        folders = runs(path)
        if not folders:
            raise FileNotFoundError(f"no run in {path}")
        for folder in folders:
            tables += _read_run(folder)
    if not tables:
        return SCHEMA.empty_table().to_pandas(types_mapper=_nullable)
    frame = pa.concat_tables(tables, promote_options="default").to_pandas(types_mapper=_nullable)
    return _newest(frame)


def _read_run(folder: Path) -> list[pa.Table]:
    found: list[pa.Table] = []
    present = set()
    planned = load_json(folder / "run.json").get("cells", [])
    place = {cell["id"]: i for i, cell in enumerate(planned)}
    paths = (folder / "cells").glob("*.parquet")
    for path in sorted(paths, key=lambda p: (place.get(p.stem, len(place)), p.stem)):  # in the order of the plan
        content = _read(path)
        found += content
        if content:
            present.add(path.stem)
    for cell in planned:
        if cell["id"] not in present:
            columns = cell["columns"] | {"run_id": folder.name, "status": "interrupted", "message": "no result file"}
            found.append(table(columns, []))
    return found


def _read(path: Path) -> list[pa.Table]:
    try:
        content = pq.read_table(path)
        versions = set(content["schema_version"].to_pylist())
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"{path.name} cannot be read and is left out: {reason}", IncompleteResults, stacklevel=3)
        return []
    if any(version and version > SCHEMA_VERSION for version in versions):
        newest = max(v for v in versions if v)
        text = f"{path.name} has schema version {newest}, newer than {SCHEMA_VERSION}, and is left out"
        warnings.warn(text, IncompleteResults, stacklevel=3)
        return []
    return [content.replace_schema_metadata()]


def _newest(frame: pd.DataFrame) -> pd.DataFrame:
    """Of rows of one cell from several runs, those that started last; one without a file never wins."""
    keys = frame[["cell_id", "run_id", "started_at", "code"]].drop_duplicates()
    repeated = keys[keys.duplicated("cell_id", keep=False)]
    if repeated.empty:
        return frame
    order = repeated.sort_values("started_at", na_position="first")
    winners = order.drop_duplicates("cell_id", keep="last")
    if (repeated.groupby("cell_id")["code"].nunique() > 1).any():
        text = f"{len(winners)} cells were measured more than once, under different code: the newest counts"
        warnings.warn(text, stacklevel=3)
    lost = frame["cell_id"].isin(winners["cell_id"])
    kept = frame[["cell_id", "run_id", "started_at"]].merge(
        winners[["cell_id", "run_id", "started_at"]].assign(kept=True), how="left"
    )
    return frame[~lost.to_numpy() | kept["kept"].notna().to_numpy()].reset_index(drop=True)


def _nullable(kind: pa.DataType) -> Any:
    return {_INT: pd.Int64Dtype(), _FLAG: pd.BooleanDtype()}.get(kind)
