"""A sheet as LaTeX, Markdown, CSV, HTML, or for the terminal. Numbers come finished; nothing is computed here."""

from __future__ import annotations

import csv
import html as markup
import io
import re
import unicodedata
from collections.abc import Callable, Sequence

from bench.report.blocks import Table
from bench.report.sheet import Field, Sheet

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[": "{[}", "]": "{]}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "→": r"$\to$", "∞": r"$\infty$", "√": r"$\surd$",
}  # fmt: skip
CELLS = "% cells: "
"""What a line's comment starts with: for each column its cells, columns apart by ;"""
RAISED = "<sup> ({})</sup>"
"""A footnote's mark in HTML: apart from its number where the text is copied, too."""


def latex(sheet: Sheet) -> str:
    r"""A fragment for \input: needs booktabs and siunitx 3. Each line of numbers ends with the ids of their cells."""
    heads = [*map(_tex, sheet.row_heads), *(f"{{{_tex(name)}}}" for name in sheet.columns)]
    lines = [
        r"\begin{table}", r"\centering", rf"\sisetup{{{NUMBERS}}}",
        rf"\caption{{{_tex(sheet.title)}. {_tex(' '.join(sheet.caption))}}}", r"\medskip",
        rf"\begin{{tabular}}{{{'l' * len(sheet.row_heads)}{'c' * len(sheet.columns)}}}", r"\toprule",
        " & ".join(heads) + r" \\", r"\midrule",
    ]  # fmt: skip
    lines += [_tex_row(row, fields) for row, fields in sheet.rows]
    if sheet.published:
        lines += [r"\midrule", rf"\multicolumn{{{len(heads)}}}{{l}}{{\emph{{published}}}} \\"]
        lines += [_tex_row(row, fields) for row, fields in sheet.published]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if sheet.footnotes:
        lines += [r"\par\smallskip\footnotesize"]
        lines += [rf"\textsuperscript{{{i}}}~{_tex(text)}.\par" for i, text in enumerate(sheet.footnotes, 1)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


PAGE = 100
"""So many characters of a line in 10 pt are about as wide as a page's text."""


def too_wide(sheet: Sheet) -> str:
    """What is said of a table whose lines are longer than a page is wide; nothing of others."""
    texts = [
        [*sheet.row_heads, *sheet.columns],
        *([*row, *(field.text for field in fields)] for row, fields in sheet.rows),
    ]
    width = sum(max(map(len, column)) + 2 for column in zip(*texts, strict=True))
    if width <= PAGE:
        return ""
    return (
        f"lines of about {width} characters are wider than a page ({PAGE}): exchange --rows and --columns, or choose "
        "cells with --where"
    )


NUMBERS = "separate-uncertainty=true, retain-explicit-plus=true, reset-text-series=false, text-series-to-math=true"
"""How siunitx sets them: with ± and their signs, and bold where the text is."""


def macros(sheet: Sheet) -> str:
    r"""One \newcommand a number, for figures in the text, named by title, row and column in letters alone."""
    lines, taken = [], set()
    for row, fields in sheet.rows:
        for column, field in zip(sheet.columns, fields, strict=True):
            if field.number is None:
                continue
            name = "\\" + "".join(map(_letters, [re.sub(r" \[[^]]*\]", "", sheet.title), *row, column]))
            while name in taken:
                name += "x"
            taken.add(name)
            number = rf"{{\sisetup{{{NUMBERS}}}{_tex_number(field)}}}"
            lines.append(rf"\newcommand{{{name}}}{{{number}}} {CELLS}{','.join(field.cells)}")
    return "\n".join(lines) + "\n"


def markdown(sheet: Sheet) -> str:
    """A pipe table, with its caption before it and footnotes after it."""

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    heads = [*sheet.row_heads, *sheet.columns]
    rule = ["---"] * len(sheet.row_heads) + ["---:"] * len(sheet.columns)
    lines = [f"**{sheet.title}.** {' '.join(sheet.caption)}", "", line(heads), line(rule)]
    for published, rows in ((False, sheet.rows), (True, sheet.published)):
        for row, fields in rows:
            names = [*row[:-1], f"{row[-1]} (published)"] if published else list(row)
            lines.append(line([*names, *(_marked(field, "**{}**", "<u>{}</u>", RAISED) for field in fields)]))
    lines += ["", *(f"({i}) {text}" for i, text in enumerate(sheet.footnotes, 1))] if sheet.footnotes else []
    return "\n".join(lines) + "\n"


def comma_separated(sheet: Sheet) -> str:
    """One line a number, tidy: names of row and column, value, interval, counts, mark, footnotes, test, cells."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    own = ["column", "value", "low", "high", "n", "planned", "mark", "published", "notes"]
    tested = ["against", "p", "effect_size", "correlation", "more_seeds"]
    writer.writerow([*sheet.row_heads, *own, *tested, "cells"])
    for published, rows in ((False, sheet.rows), (True, sheet.published)):
        for row, fields in rows:
            for column, field in zip(sheet.columns, fields, strict=True):
                notes = "; ".join(sheet.footnotes[i - 1] for i in field.notes)
                numbers = [field.number, field.low, field.high]
                shown = ["" if number is None else repr(number) for number in numbers]
                if published:
                    shown[0] = "" if field.value == "-" else field.value
                test = field.compared
                found = (None,) * 3 if test is None else (test.effect_size, test.correlation, field.more_seeds)
                against = "" if test is None else field.against
                numbers = [field.p, *found]
                writer.writerow([*row, column, *shown, field.n, field.planned, field.mark, "yes" if published else "",
                                 notes, against, *("" if number is None else repr(number) for number in numbers),
                                 " ".join(field.cells)])  # fmt: skip
    return out.getvalue()


def hypertext(sheet: Sheet) -> str:
    """A <table> with caption and footnotes; all texts are escaped."""
    escape = markup.escape
    names = (escape(name).replace(",", ",<wbr>") for name in (*sheet.row_heads, *sheet.columns))
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = []
    for published, rows in ((False, sheet.rows), (True, sheet.published)):
        for row, fields in rows:
            labels = "".join(f'<th scope="row">{escape(name)}</th>' for name in row)
            numbers = "".join(
                f'<td data-cells="{escape(" ".join(field.cells))}">'
                + _marked(field, "<b>{}</b>", "<u>{}</u>", RAISED, escape) + "</td>"
                for field in fields
            )  # fmt: skip
            body.append(f"<tr{' class=published' if published else ''}>{labels}{numbers}</tr>")
    notes = "".join(f"<li>{escape(text)}</li>" for text in sheet.footnotes)
    caption = f"<b>{escape(sheet.title)}.</b> {escape(' '.join(sheet.caption))}"
    return (
        f"<table><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        + (f"<ol>{notes}</ol>" if notes else "")
    ) + "\n"


def block(sheet: Sheet) -> Table:
    """For the terminal: * stands for bold, + for the second."""
    rows = [[*row, *(_marked(field, "{} *", "{} +", " ({})") for field in fields)] for row, fields in sheet.rows]
    rows += [
        [*row[:-1], f"{row[-1]} (published)", *(_marked(field, "{}", "{}", " ({})") for field in fields)]
        for row, fields in sheet.published
    ]
    caption = [text.replace("Bold", "*").replace("underlined", "+") for text in sheet.caption]
    notes = [*caption, *(f"({i}) {text}." for i, text in enumerate(sheet.footnotes, 1))]
    return Table(sheet.title, [*sheet.row_heads, *sheet.columns], rows, notes, numeric=list(sheet.columns))


def details(sheet: Sheet) -> Table:
    """Every test behind a sheet, one a line; without a row where nothing was compared."""
    rows = []
    for row, fields in sheet.rows:
        for column, field in zip(sheet.columns, fields, strict=True):
            if (test := field.compared) is None:
                continue
            numbers = (field.p, test.effect_size, test.correlation)
            rows.append([*row, column, field.against, f"{test.n}", field.text,
                         *("-" if number is None else f"{number:.2g}" for number in numbers),
                         "-" if field.more_seeds is None else f"{field.more_seeds:,}"])  # fmt: skip
    columns = [*sheet.row_heads, "column", "against", "pairs", "shown", "p", "effect size",
               "correlation", "more seeds"]  # fmt: skip
    notes = [
        "p: corrected over the table. effect size: mean difference over its standard deviation, positive is better. "
        "correlation: over pairs, what pairing used. more seeds: for a paired t test of power 0.8 at this effect size, "
        "taken for the true one, and at least as many as a mark in this table takes."
    ]
    return Table("Tests", columns, rows, notes, numeric=columns[-6:])


FORMATS: dict[str, Callable[[Sheet], str]] = {
    "latex": latex, "markdown": markdown, "csv": comma_separated, "html": hypertext,
}  # fmt: skip


def _marked(field: Field, best: str, second: str, note: str, escape: Callable[[str], str] = str) -> str:
    text = escape(field.text)
    text = {"best": best, "better": best, "second": second, "worse": second}.get(field.mark, "{}").format(text)
    return text + "".join(note.format(i) for i in field.notes)


def _tex_row(row: tuple[str, ...], fields: Sequence[Field]) -> str:
    cells = ";".join(",".join(field.cells) for field in fields)
    return " & ".join([*map(_tex, row), *map(_tex_field, fields)]) + rf" \\ {CELLS}{cells}"


def _tex_field(field: Field) -> str:
    look = {"best": r"{{\bfseries {}}}", "second": r"\underline{{{}}}"}
    look |= {"better": look["best"], "worse": look["second"]}
    text = look.get(field.mark, "{}").format(_tex_number(field))
    return text + "".join(rf"\textsuperscript{{{i}}}" for i in field.notes)


def _tex_number(field: Field) -> str:
    r"""By siunitx, which sets signs and the space of a \pm; what is no number as it stands."""
    if field.number is None:
        return _tex(field.value)
    if field.bounds:
        low, high = field.bounds
        return rf"\num{{{field.value}}} [\num{{{low}}}, \num{{{high}}}]"
    uncertain = f"{field.value} +- {field.half}" if field.half else field.value
    return rf"\num{{{uncertain}}}"


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character) or _typeset(character) for character in text)


def _typeset(character: str) -> str:
    r"""As LaTeX has it without packages: accents and ligatures as they are, Greek in math; of others the code point."""
    if character.isascii() or character in "ßæÆœŒøØłŁ":
        return character
    parts = unicodedata.normalize("NFD", character)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS:
        return character
    kind, _, name = unicodedata.name(character, "").lower().replace("lamda", "lambda").rpartition(" ")
    if kind == "greek small letter" and name in _GREEK:
        return rf"$\{name}$"
    if kind == "greek capital letter" and name in _GREEK_CAPITALS:
        return rf"$\{name.capitalize()}$"
    return f"U+{ord(character):04X}"


_ACCENTS = "\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0327"
_GREEK_CAPITALS = {"gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega"}
_GREEK = _GREEK_CAPITALS | {
    "alpha", "beta", "epsilon", "zeta", "eta", "iota", "kappa", "mu", "nu", "rho", "tau", "chi",
}  # fmt: skip


def _letters(text: str) -> str:
    """A name's part of a macro: letters alone, digits spelled out."""
    digits = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
    spelled = re.sub(r"\d", lambda found: f" {digits[int(found[0])]} ", text)
    return "".join(word[:1].upper() + word[1:] for word in re.findall(r"[A-Za-z]+", spelled))
