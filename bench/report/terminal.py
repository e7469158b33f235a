"""Draws blocks on a terminal, or as plain text where the output is a pipe. Nothing is ever cut."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from bench.report.blocks import Block, Note, Table


def show(blocks: Iterable[Block], file: TextIO | None = None) -> None:
    """Prints the blocks: as tables where they fit into the window or into a pipe, else one line a value."""
    file = file or sys.stdout
    console = Console(file=file, highlight=False, emoji=False)
    console.soft_wrap = not console.is_terminal  # a pipe takes lines of any length; a window gets them between words
    for block in blocks:
        if isinstance(block, Note):
            console.print(escape(block.text), style="bold red" if block.warning else None)
        elif not console.is_terminal:
            file.write("\n" + _plain(block) + "\n")
        elif _width(block) <= console.width:
            console.print(f"\n[bold]{escape(block.title)}[/bold]")
            console.print(_rich(block))
        else:
            console.print(_stacked(block))
        if isinstance(block, Table) and block.notes:
            console.print("\n".join(escape(note) for note in block.notes), style="dim")


def as_json(blocks: Iterable[Block]) -> str:
    """The same blocks for a program."""
    content = [
        {"title": block.title, "columns": list(block.columns), "rows": [list(r) for r in block.rows],
         "notes": list(block.notes)}
        if isinstance(block, Table) else {"note": block.text, "warning": block.warning}
        for block in blocks
    ]  # fmt: skip
    return json.dumps(content, ensure_ascii=False, indent=1)


def _widths(table: Table) -> list[int]:
    return [
        max([cell_len(line) for text in (head, *(row[i] for row in table.rows)) for line in text.split("\n")])
        for i, head in enumerate(table.columns)
    ]


def _width(table: Table) -> int:
    return sum(_widths(table)) + 3 * (len(table.columns) - 1)


def _rich(table: Table) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for head in table.columns:
        drawn.add_column(escape(head), justify="right" if head in table.numeric else "left", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    return drawn


def _stacked(table: Table) -> str:
    """For a window that is too narrow: the first column as a heading, below it a line for each of the others."""
    head = max(cell_len(column) for column in table.columns)
    lines = [f"\n[bold]{escape(table.title)}[/bold]"]
    for row in table.rows:
        lines.append(f"[bold]{escape(row[0])}[/bold]")
        lines += [
            f"  {escape(column.ljust(head))}  {escape(text)}"
            for column, text in zip(table.columns[1:], row[1:], strict=True)
        ]
    return "\n".join(lines)


def _plain(table: Table) -> str:
    """Aligned text of whatever width it takes: no colours, no lines, no control codes."""
    widths = _widths(table)

    def line(cells: Iterable[str]) -> str:
        padded = []
        for column, text, width in zip(table.columns, cells, widths, strict=True):
            gap = " " * (width - cell_len(text))
            padded.append(gap + text if column in table.numeric else text + gap)
        return "  ".join(padded).rstrip()

    rows = [line(cell.replace("\n", " ") for cell in row) for row in table.rows]
    return "\n".join([table.title, line(table.columns), *rows])
