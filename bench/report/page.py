"""Contents as one HTML file that needs nothing beside it: data travel as JSON or as escaped text, never as markup."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import ordering, writers
from bench.report.blocks import Block, Note, Table
from bench.report.contents import Contents, Section, columns_of
from bench.report.drawing import COLOURS, looks_of
from bench.report.figures import Figure, Heat, Panel
from bench.report.sheet import Sheet

WEB = Path(__file__).parent / "web"
"""Style and script of the page, and the libraries that it uses as their authors published them (vendored.json)."""
ON_LIGHT, ON_DARK = {"#F0E442": "#9C942B"}, {"#000000": "#FFFFFF"}
"""What stands for the yellow and the black of figures."""
LONG = 48
"""Letters from which on a cell's text may be broken into lines."""


def page(contents: Contents) -> str:
    """The whole file. The same contents give the same text."""
    scripts = [_library(name) for name in ("d3.min.js", "plot.umd.min.js", "tabulator.min.js")] + [_own("page.js")]
    styles = [_library("tabulator_simple.min.css"), _own("page.css"), _colours()]
    title = f"{contents.title} - linrec-bench"
    sections = [(f"suite-{i}", section) for i, section in enumerate(contents.sections)]
    links = [
        ("failures", "Failures"), *((id_, _name(section.suite)) for id_, section in sections),
        ("measured-on", "Measured on"), ("rows", "All rows"),
    ]  # fmt: skip
    return "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">', _policy(scripts),
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>", _licences(), *(f"<style>{style}</style>" for style in styles),
        "</head>", "<body>", '<a class="skip" href="#main">Skip to the results</a>',
        _header(contents), _navigation(links), '<main id="main" tabindex="-1">', _failures(contents),
        *(_section(id_, section) for id_, section in sections), _measured_on(contents), _rows(contents), "</main>",
        '<footer>Made by <code>bench report --html</code> from the store and from nothing else.</footer>',
        *(f"<script>{script}</script>" for script in scripts), "</body>", "</html>", "",
    ])  # fmt: skip


def _policy(scripts: Iterable[str]) -> str:
    """Nothing is loaded from anywhere, and no script runs but those of this file: none that data would bring."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    rules = [
        "default-src 'none'", f"script-src {allowed}", "style-src 'unsafe-inline'", "img-src data:", "base-uri 'none'",
        "form-action 'none'",
    ]  # fmt: skip
    return f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(rules)}">'


def vendored() -> list[dict[str, Any]]:
    """The libraries: name, version, licence, source, and the sha256 of each of their files."""
    return json.loads((WEB / "vendored.json").read_text(encoding="utf-8"))


def _licences() -> str:
    texts = []
    for one in vendored():
        (licence,) = [name for name in one["files"] if name.startswith("LICENSE")]
        texts.append(f"{one['name']} {one['version']} ({one['licence']})\n\n{_own(licence).strip()}")
    joined = "\n\n".join(texts)
    return f"<!--\nThis file contains:\n\n{joined.replace('--', '- -')}\n-->"


@cache
def _own(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def _library(name: str) -> str:
    """As published, without the line that names a file of its sources elsewhere."""
    lines = _own(name).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("//# sourceMappingURL", "/*# sourceMappingURL")))


def _colours() -> str:
    """Those of all figures, but what a screen's background would swallow."""
    found = []
    for start, others in (("", ON_LIGHT), ("@media screen and (prefers-color-scheme: dark)", ON_DARK)):
        named = " ".join(f"--series-{i}: {others.get(colour, colour)};" for i, colour in enumerate(COLOURS))
        rule = f":root {{ {named} }}"
        found.append(f"{start} {{ {rule} }}" if start else rule)
    return "\n".join(found)


def data(value: Any) -> str:
    """JSON that no parser of HTML takes for anything but text."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _name(suite: str) -> str:
    return suite.replace("_", " ").capitalize()


def _header(contents: Contents) -> str:
    total = sum(contents.counts.values())
    counts = "".join(
        f'<li class="status {"good" if status == "ok" else "bad"}"><b>{count:,}</b> {escape(status)}</li>'
        for status, count in contents.counts.items()
    )
    facts = "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(text)}</dd></div>" for term, text in contents.facts)
    return (
        f'<header><p class="kicker">linrec-bench report</p><h1>{escape(contents.title)}</h1>'
        f'<ul class="counts" aria-label="Cells by status"><li><b>{total:,}</b> {"cell" if total == 1 else "cells"}</li>'
        f"{counts}</ul>"
        f'<dl class="facts">{facts}</dl></header>'
    )


def _navigation(links: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li><a href="#{id_}">{escape(name)}</a></li>' for id_, name in links)
    return f'<nav aria-label="Sections"><ul>{items}</ul></nav>'


def _titled(id_: str, title: str, inside: str) -> str:
    return (
        f'<section id="{id_}" aria-labelledby="{id_}-title"><h2 id="{id_}-title">{escape(title)}</h2>{inside}</section>'
    )


def _failures(contents: Contents) -> str:
    bad = sum(contents.counts.values()) - contents.counts.get("ok", 0)
    inside = "".join(map(_note, [*contents.faults(), *contents.warnings])) + _blocks("failures", contents.failures)
    if not bad:
        inside = '<p class="fine">Every planned cell ended ok.</p>' + inside
    return _titled("failures", "Failures", inside)


def _section(id_: str, section: Section) -> str:
    parts = [_sheet(f"{id_}-sheet", section.sheet)] if section.sheet else []
    parts += [_note(note) for note in section.notes if not note.fault]
    parts += [_figure(f"{id_}-figure-{i}", figure) for i, figure in enumerate(section.figures)]
    parts.append(_blocks(id_, [block for block in section.blocks if not _faulty(block)]))
    return _titled(id_, _name(section.suite), "".join(parts))


def _faulty(block: Block) -> bool:
    """Whether it stands among the failures already."""
    return isinstance(block, Note) and block.fault


def _measured_on(contents: Contents) -> str:
    inside = _blocks("measured-on", [*contents.measured_on, *contents.provenance])
    return _titled("measured-on", "Measured on", inside)


def _blocks(prefix: str, blocks: Sequence[Block]) -> str:
    return "".join(
        _note(block) if isinstance(block, Note) else _table(f"{prefix}-{i}", block) for i, block in enumerate(blocks)
    )


def _note(note: Note) -> str:
    kind = "warning" if note.warning or note.fault else "note"
    return f'<p class="{kind}">{escape(note.text.strip())}</p>'


def _table(id_: str, table: Table) -> str:
    """With a place for each row in the order of each column, for the script to sort by."""
    numeric = [head in table.numeric for head in table.columns]
    heads = "".join(
        f'<th scope="col"{_kind(number)}>{escape(head)}</th>'
        for head, number in zip(table.columns, numeric, strict=True)
    )
    body = []
    for row in table.rows:
        cells = [f"{_kind(number, text)}>{escape(text)}" for text, number in zip(row, numeric, strict=True)]
        body.append(f'<tr><th scope="row"{cells[0]}</th>{"".join(f"<td{cell}</td>" for cell in cells[1:])}</tr>')
    ranks = [ordering.ranks([row[i] for row in table.rows]) for i in range(len(table.columns))]
    markup = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return _framed(id_, table.title, markup, ranks, "".join(map(_remark, table.notes)))


def _kind(number: bool, text: str = "") -> str:
    names = [name for name, holds in (("number", number), ("long", len(text) > LONG)) if holds]
    return f' class="{" ".join(names)}"' if names else ""


def _remark(text: str) -> str:
    """A note under a table; one of several lines, as a traceback, is folded."""
    lines = text.strip().split("\n")
    if len(lines) == 1:
        return f'<p class="note">{escape(text)}</p>'
    return f"<details><summary>{escape(lines[-1])}</summary><pre>{escape(text.strip())}</pre></details>"


def _framed(
    id_: str, title: str, markup: str, ranks: Sequence[Sequence[int | None]], under: str = "", kind: str = "table"
) -> str:
    return (
        f'<div class="{kind}" id="{id_}" data-ranks="{escape(json.dumps(ranks, separators=(",", ":")))}">'
        f'<div class="head"><h3 id="{id_}-title">{escape(title)}</h3></div>'
        f'<div class="scroll" role="region" aria-labelledby="{id_}-title" tabindex="0">{markup}</div>{under}</div>'
    )


def _sheet(id_: str, sheet: Sheet) -> str:
    """The table of `bench table`, as its own writer has it."""
    rows = [*sheet.rows, *sheet.published]
    ranks = [ordering.ranks([row[i] for row, _ in rows]) for i in range(len(sheet.row_heads))]
    ranks += [ordering.ranks([fields[i].value for _, fields in rows]) for i in range(len(sheet.columns))]
    return _framed(id_, sheet.title, writers.hypertext(sheet), ranks, "").replace(
        'class="table"', 'class="table sheet"', 1
    )


def _figure(id_: str, figure: Figure) -> str:
    return (
        f'<figure id="{id_}" aria-labelledby="{id_}-title">'
        f'<figcaption id="{id_}-title">{escape(figure.title)}</figcaption>'
        '<div class="legend"></div><div class="panels"></div>'
        + (f'<p class="note">{escape(figure.caption)}</p>' if figure.caption else "")
        + f'<details class="values"><summary>Values of this figure</summary></details>'
        f'<script type="application/json" class="figure-data">{data(figure_data(figure))}</script>'
        "<noscript><p>Figures are drawn by a script; without one, the tables hold the numbers.</p></noscript></figure>"
    )


def figure_data(figure: Figure) -> dict[str, Any]:
    """A figure as the script draws it: what is not finite is null."""
    looks = looks_of(figure)
    return {
        "name": figure.name, "title": figure.title, "looks": looks,
        "panels": [_heat(panel) if isinstance(panel, Heat) else _lines(panel, looks) for panel in figure.panels],
    }  # fmt: skip


def _lines(panel: Panel, looks: dict[str, int]) -> dict[str, Any]:
    series = [
        {"name": one.name, "note": one.note, "look": looks.get(one.name), "style": one.style}
        | {name: None if (values := getattr(one, name)) is None else _finite(values)
           for name in ("x", "y", "low", "high", "x_low", "x_high")}
        for one in panel.series
    ]  # fmt: skip
    return {
        "kind": "lines", "title": panel.title, "x_label": panel.x_label, "y_label": panel.y_label,
        "log_x": panel.log_x, "log_y": panel.log_y, "bounds": panel.bounds,
        "y_names": list(panel.y_names), "series": series,
    }  # fmt: skip


def _heat(panel: Heat) -> dict[str, Any]:
    return {
        "kind": "heat", "title": panel.title, "x_label": panel.x_label, "y_label": panel.y_label,
        "value_label": panel.value_label, "rows": list(panel.rows), "columns": list(panel.columns),
        "values": [_finite(row) for row in panel.values],
    }  # fmt: skip


def _finite(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def _rows(contents: Contents) -> str:
    rows = contents.rows
    shown = len(rows.varying)
    said = f"{shown:,} rows" if shown == rows.total else f"the first {shown:,} of {rows.total:,} rows"
    same = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in rows.constant)
    inside = (
        f'<p class="note">The store as it is, {said}. Filters take words; in columns of numbers also '
        "<code>&gt;0.5</code>, <code>&lt;=2</code> or <code>3..5</code>.</p>"
        f'<details><summary>What all rows have in common</summary><dl class="facts">{same}</dl></details>'
        '<div class="filter"><label for="rows-filter">Filter all columns</label><input id="rows-filter" type="search">'
        '<span id="rows-count" role="status"></span></div><div id="rows-table"></div>'
        '<p class="printed note">Rows are not printed.</p>'
        "<noscript><p>Rows are shown by a script.</p></noscript>"
        f'<script type="application/json" id="rows-data">{data(columns_of(rows.varying))}</script>'
    )
    return _titled("rows", "All rows", inside)
