"""One pandas frame from many small arrow tables, with little more memory than the frame takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa


class Texts(NamedTuple):
    """A piece of a column of texts: row i has texts[which[i]], where None stands last; without `which` texts[0]."""

    length: int
    texts: list[str | None]
    which: np.ndarray | None


def joined(schema: pa.Schema, tables: Iterable[pa.Table]) -> pd.DataFrame:
    """The rows of all tables in their order, none of which is kept longer than it takes to copy its columns.

    A table has each column of the schema, texts as dictionaries. Texts become objects, equal ones the same object in
    memory; whole numbers and truth values pandas' nullable types. Real numbers that are empty or not finite are NaN.
    Columns that the schema does not know are kept, empty for tables that lack them, as texts where tables disagree
    about their type.
    """
    pieces: dict[str, list[pa.Array | Texts]] = {name: [] for name in schema.names}
    others: list[pa.Table] = []
    length, known = 0, dict[str, str]()
    for some in _together(tables):
        whole = pa.concat_tables([table.select(schema.names) for table in some]).unify_dictionaries().combine_chunks()
        for batch in whole.to_batches():
            for name, column in zip(schema.names, batch.columns, strict=True):
                pieces[name].append(_texts(column, known) if pa.types.is_dictionary(column.type) else column)
        others += [table.select([name for name in table.column_names if name not in pieces]) for table in some]
        length += len(whole)
    found = {field.name: _column(field.type, pieces.pop(field.name), length) for field in schema}
    if any(table.column_names for table in others):
        nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
        for name in dict.fromkeys(name for table in others for name in table.column_names):
            column = _whole([table.select([name] if name in table.column_names else []) for table in others], name)
            found[name] = column.to_pandas(types_mapper=nullable.get)
    return pd.DataFrame(found, copy=False)


def _whole(tables: Sequence[pa.Table], name: str) -> pa.ChunkedArray:
    """One column of all tables, of the type that holds what each has."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")[name]
    except pa.ArrowException:
        text = pa.schema([(name, pa.string())])
        texts = [table.cast(text) if table.column_names else table for table in tables]
        return pa.concat_tables(texts, promote_options="permissive")[name]


TOGETHER = 50_000
"""So many rows of small tables are converted at once; each call takes as long as hundreds of rows."""


def _together(tables: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    some: list[pa.Table] = []
    rows = 0
    for table in tables:
        some.append(table)
        rows += len(table)
        if rows >= TOGETHER:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _texts(column: pa.DictionaryArray, known: dict[str, str]) -> Texts:
    texts = [known.setdefault(text, text) for text in column.dictionary.to_pylist()]
    if column.null_count == len(column):
        return Texts(len(column), [None], None)
    if column.null_count == 0 and len(texts) == 1:
        return Texts(len(column), [texts[0]], None)
    which = column.indices.fill_null(len(texts)) if column.null_count else column.indices
    return Texts(len(column), [*texts, None], which.to_numpy())


def _column(kind: pa.DataType, pieces: list[pa.Array | Texts], length: int) -> pd.Series:
    """A column from its pieces, which have `length` rows together."""
    values = np.empty(length, np.object_ if kind == pa.string() else kind.to_pandas_dtype())
    empty = None if kind in (pa.string(), pa.float64()) else np.zeros(length, np.bool_)
    end = 0
    for piece in pieces:
        rows = slice(end, end := end + (piece.length if isinstance(piece, Texts) else len(piece)))
        if isinstance(piece, Texts):
            values[rows] = piece.texts[0] if piece.which is None else np.array(piece.texts, np.object_)[piece.which]
        elif empty is not None and piece.null_count:
            empty[rows] = piece.is_null().to_numpy(zero_copy_only=False)
            values[rows] = piece.fill_null(values.dtype.type(0).item()).to_numpy(zero_copy_only=False)
        else:
            values[rows] = piece.to_numpy(zero_copy_only=False)
    if kind == pa.float64():
        values[np.isinf(values)] = np.nan
    if empty is None:
        return pd.Series(values, dtype=values.dtype, copy=False)
    masked = pd.arrays.BooleanArray if kind == pa.bool_() else pd.arrays.IntegerArray
    return pd.Series(masked(values, empty), copy=False)
