"""The tidy store: one parquet file a cell, one fixed schema, one row a value."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:  # only what reads needs pandas: a worker starts without it
    import pandas as pd

SCHEMA_VERSION = 1

STATUSES = (
    "ok", "diverged", "unconverged", "oom", "timeout", "error",
    "compile_failed", "crashed", "unsupported", "missing", "interrupted",
)  # fmt: skip
GOOD_STATUSES = ("ok", "diverged", "unconverged", "unsupported")
"""Statuses that leave the exit code at 0."""
MEASURED_STATUSES = ("ok", "diverged", "unconverged")
"""Statuses of cells that have numbers."""
COMPLETE_STATUSES = ("ok", "unconverged")
"""Statuses of a round after which the next one is worth its time."""

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
    number = float(value.item() if hasattr(value, "item") else value)
    return number if np.isfinite(number) else None


def checked(column: str, value: Any) -> Any:
    """A value for a column as plain Python, from numpy's or a framework's scalar; ValueError where it does not fit.

    Called when a value is recorded, so that a wrong one is that cell's error and does not surface after the work.
    """
    if value is None:
        return None
    plain = value.item() if hasattr(value, "item") else value
    try:
        return pa.scalar(plain, SCHEMA.field(column).type).as_py()
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"{value!r} does not fit into the column {column}") from error


def table(cell: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows of one cell as an arrow table: what `cell` holds is repeated in each.

    A cell's message, which says why it failed, stands in every row, after the row's own.
    """
    rows = list(rows) or [{}]
    columns = {}
    for field in SCHEMA:
        values = [row.get(field.name, cell.get(field.name)) for row in rows]
        if field.name == "message":
            values = [_both(row.get("message"), cell.get("message")) for row in rows]
        columns[field.name] = pa.array(values, field.type)
    return pa.table(columns, schema=SCHEMA)


def _both(own: str | None, cell: str | None) -> str | None:
    """A row's own reason and then its cell's, where it has one."""
    if own and cell and cell not in own:
        return f"{own}; {cell}"
    return own or cell


def write(path: Path, content: pa.Table) -> None:
    """Writes a table so that a reader sees the old file or the new one, whenever this process ends."""
    with _replacing(path) as part:
        pq.write_table(content, part, compression="zstd", write_page_checksum=True)


def write_text(path: Path, text: str) -> None:
    """The same for a small text file."""
    with _replacing(path) as part:
        part.write(text.encode())


def write_text_once(path: Path, text: str) -> bool:
    """The same, unless the file is there already; of several processes exactly one is told True."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    with _replacing(part) as file:
        file.write(text.encode())
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: then two processes at the same moment are both told True
        if path.exists():
            return False
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file under another name, which is synced and gets its own name when all went well."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def part(folder: Path, cell_id: str, round: int) -> Path:
    """The file of one round of a cell that is measured in several."""
    return folder / "parts" / f"{cell_id}.{round}.parquet"


def parts(folder: Path, cell_id: str) -> list[pa.Table]:
    """What the rounds of a cell have found so far, in their order."""
    found = (folder / "parts").glob(f"{cell_id}.*.parquet")
    return [_load(path) for path in sorted(found, key=lambda path: int(path.suffixes[0][1:]))]


def remove_parts(folder: Path, cell_id: str) -> None:
    """Takes away what the rounds of a cell have left."""
    for path in (folder / "parts").glob(f"{cell_id}.*.parquet"):
        path.unlink(missing_ok=True)


def remove_parts_folder(folder: Path) -> None:
    """Takes away what rounds were kept in, unless another process still has some there."""
    with contextlib.suppress(OSError):
        (folder / "parts").rmdir()


def joined(rounds: list[pa.Table]) -> pa.Table:
    """The rows of all rounds of one cell. Its status and message are the last that is not ok's; it took as long as all.

    Facts that differ between rounds become lists with one entry a round.
    """
    firsts = [{name: table[name][0].as_py() for name in table.column_names} for table in rounds]
    facts = [json.loads(first["facts"] or "{}") for first in firsts]
    names = dict.fromkeys(name for found in facts for name in found)
    merged = {}
    for name in names:
        values = [found.get(name) for found in facts]
        merged[name] = values[0] if all(value == values[0] for value in values) else values
    bad = [first for first in firsts if first["status"] != "ok"]
    end = {
        "status": bad[-1]["status"] if bad else "ok",
        "facts": json.dumps(merged, sort_keys=True),
        "started_at": firsts[0]["started_at"],
        "duration_s": sum(first["duration_s"] for first in firsts),
    } | ({"message": bad[-1]["message"]} if bad else {})
    whole = pa.concat_tables(rounds)
    for name, value in end.items():
        values = [value] * len(whole)
        if name == "message":
            values = [_both(own, value) for own in whole["message"].to_pylist()]
        column = pa.array(values, SCHEMA.field(name).type)
        whole = whole.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), column)
    return whole


def stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written anew; None without a file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def status(folder: Path, cell_id: str) -> str:
    """The status of a cell of a run; `interrupted` where it has no file, or one that cannot be read."""
    return first(folder, cell_id, "status") or "interrupted"


def duration(folder: Path, cell_id: str) -> float | None:
    """How many seconds a cell took that ended ok, else None."""
    return first(folder, cell_id, "duration_s") if status(folder, cell_id) == "ok" else None


def file(folder: Path, cell_id: str) -> Path:
    """The file of a cell of a run."""
    return folder / "cells" / f"{cell_id}.parquet"


def first(folder: Path, cell_id: str, column: str) -> Any:
    """What a column holds in the first row of a cell's file; None without a file, or where it cannot be read."""
    try:
        return _load(file(folder, cell_id), [column])[column][0].as_py()
    except (pa.ArrowException, OSError, IndexError, KeyError):
        return None


def _load(path: Path, columns: list[str] | None = None, encoded: Sequence[str] = ()) -> pa.Table:
    """The file as it is, but for texts that stay `encoded` as numbers into a list of them, which takes less room.

    `pq.read_table` would add columns for folders that are named like `seed=3`.
    """
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=list(encoded)) as file:
        return file.read(columns=columns, use_threads=False)  # a cell's file is small


class IncompleteResults(UserWarning):
    """Part of what was asked for could not be read."""


def runs(path: Path) -> list[Path]:
    """The run folders that a path means: itself, or those in it but for `asv` and `reference`; oldest first."""
    if (path / "run.json").is_file():
        return [path]
    found = [p.parent for p in path.glob("*/run.json") if p.parent.name not in ("asv", "reference")]
    return sorted(found, key=lambda p: (str(load_json(p / "run.json").get("created", "")), p.name))


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; one that is damaged reads as empty, with a warning."""
    try:
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
        reason = "it holds no object"
    except (OSError, ValueError) as error:
        reason = str(error)
    warnings.warn(f"{path.name} of {path.parent.name} cannot be read: {reason}", IncompleteResults, stacklevel=2)
    return {}


def read_results(*paths: str | Path) -> pd.DataFrame:
    """All rows of run folders, of folders of runs, or of single parquet files, as a pandas frame.

    Every column of the schema is there, and whole numbers stay whole (nullable Int64). A planned cell without a file
    is one row with status `interrupted`. `run_id` is what the run's folder is called now. Of several results for the
    same cell the newest counts, with a warning where the code differs. Files that cannot be read are left out, each
    with a warning of category `IncompleteResults`. Raises FileNotFoundError where there is nothing to read.
    """
    files: list[_File] = []
    for path in map(Path, paths or ("results",)):
        if path.is_file():
            files.append(_File(path))
            continue
        folders = runs(path)
        if not folders:
            raise FileNotFoundError(f"no run in {path}")
        for folder in folders:
            files += _files(folder)
    rows: list[int] = []

    def tables() -> Iterator[pa.Table]:
        for file, content in zip(files, _loading([file.path for file in files]), strict=True):
            found = None if content is None else _checked(file.path, content)
            if found is None and file.planned is not None:
                reason = "no result file" if content is None else "its result file cannot be read"
                found = table(file.planned | {"status": "interrupted", "message": reason}, [])
            rows.append(0 if found is None else len(found))
            if found is not None:
                yield found if file.run is None else _named(found, file.run)

    with _returning_memory():
        whole = frame(tables())
    return _newest(whole, np.repeat(np.arange(len(rows)), rows))


def frame(tables: Iterable[pa.Table]) -> pd.DataFrame:
    """Tables as one pandas frame, with the columns and types that `read_results` gives."""
    from bench.frame import joined

    return joined(SCHEMA, map(_encoded, tables))


@contextlib.contextmanager
def _returning_memory() -> Iterator[None]:
    """What arrow takes inside goes back to the system as it is given up; arrow's own allocator keeps it."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


READERS = 2
"""Threads that read files; more of them wait for one another, as reading a small file is mostly the interpreter's."""

AHEAD = 8
"""Files that are read before their turn."""


def _loading(paths: Sequence[Path]) -> Iterator[pa.Table | Exception | None]:
    """What is in each file, in their order; None where there is none."""
    with ThreadPoolExecutor(READERS) as pool:
        begun: deque[Future[pa.Table | Exception | None]] = deque()
        for path in paths:
            begun.append(pool.submit(_loaded, path))
            if len(begun) > AHEAD:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


class _File(NamedTuple):
    """A file, the name of the run that it lies in, and what the run's plan says of its cell."""

    path: Path
    run: str | None = None
    planned: dict[str, Any] | None = None


def _files(folder: Path) -> list[_File]:
    """The files that a run has or should have, in the order of its plan."""
    planned = load_json(folder / "run.json").get("cells", [])
    names = {cell["id"] for cell in planned}
    others = sorted(path for path in (folder / "cells").glob("*.parquet") if path.stem not in names)
    found = [_File(file(folder, cell["id"]), folder.name, cell["columns"]) for cell in planned]
    return found + [_File(path, folder.name) for path in others]


TEXTS = [field.name for field in SCHEMA if field.type == _TEXT]
_AS_NUMBERS = pa.dictionary(pa.int32(), _TEXT)
_ENCODED = pa.schema([field.with_type(_AS_NUMBERS) if field.name in TEXTS else field for field in SCHEMA])


def _loaded(path: Path) -> pa.Table | Exception | None:
    try:
        try:
            return _load(path, encoded=TEXTS)
        except KeyError:  # an older file lacks some of these columns
            return _load(path)
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError) as error:
        return error


def _checked(path: Path, content: pa.Table | Exception) -> pa.Table | None:
    """The rows of a file with every column of the schema, and with those of its own; None where it cannot be read."""
    try:
        if isinstance(content, Exception):
            raise content
        versions = set(content["schema_version"].cast(_INT).unique().to_pylist()) - {None}
        if versions and max(versions) > SCHEMA_VERSION:
            text = f"{path.name} has schema version {max(versions)}, newer than {SCHEMA_VERSION}, and is left out"
            warnings.warn(text, IncompleteResults, stacklevel=3)
            return None
        if not len(content):
            raise ValueError("it holds no row")
        if content["cell_id"].null_count:
            raise ValueError("rows of it name no cell")
        return _encoded(content)
    except (ValueError, pa.ArrowException, OSError, KeyError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        warnings.warn(f"{path.name} cannot be read and is left out: {reason}", IncompleteResults, stacklevel=3)
        return None


def _encoded(content: pa.Table) -> pa.Table:
    """Every column of the schema, texts as numbers into a list of them, and what other columns there are."""
    if content.schema.equals(_ENCODED):
        return content
    columns = {name: content[name] for name in content.column_names}
    for plain, field in zip(SCHEMA, _ENCODED, strict=True):
        known = columns.get(field.name, pa.nulls(len(content)))
        columns[field.name] = known if known.type == field.type else known.cast(plain.type).cast(field.type)
    return pa.table(columns)


def _named(content: pa.Table, run_id: str) -> pa.Table:
    """The rows under the name of the run's folder, which may have been renamed or copied since."""
    if content["run_id"].unique().to_pylist() in ([run_id], []):
        return content
    where = content.schema.get_field_index("run_id")
    return content.set_column(where, "run_id", pa.array([run_id] * len(content)))


def _newest(frame: pd.DataFrame, source: np.ndarray) -> pd.DataFrame:
    """Of several results for one cell the one that started last; one without a file never wins.

    `source` (rows,) numbers the files.
    """
    cell = frame["cell_id"].to_numpy()
    first = np.ones(len(frame), bool)  # of rows that lie together
    first[1:] = (source[1:] != source[:-1]) | (cell[1:] != cell[:-1])
    which = ["cell_id", "run_id", "started_at"]
    found = frame.loc[first, [*which, "code"]].assign(source=source[first]).drop_duplicates()
    repeated = found[found.duplicated("cell_id", keep=False)]
    if repeated.empty:
        return frame
    other = repeated.dropna(subset=["code"]).groupby("cell_id")["code"].nunique() > 1
    if other.any():
        text = f"{other.sum()} cells were measured more than once, under different code: the newest counts"
        warnings.warn(text, stacklevel=3)
    in_time = found.sort_values("started_at", na_position="first", kind="stable")
    winners = in_time.drop_duplicates("cell_id", keep="last").drop(columns="code").assign(kept=True)
    kept = frame[which].assign(source=source).merge(winners, how="left")["kept"].notna()
    return frame[kept.to_numpy()].reset_index(drop=True)
