"""Tables as a real TeX sets them: every one compiles, and the page shows what the table says."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from made_store import cell, run_of, seeds, timed
from programs import needs

from bench import store
from bench.report import tables, writers

pytestmark = needs(
    "pdflatex", "pdftotext", "pdffonts",
    install="apt install texlive-latex-recommended texlive-science poppler-utils",
)  # fmt: skip

DOCUMENT = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs,siunitx}
\begin{document}
\input{numbers}
\input{table}
Here: %s.
\end{document}
"""


@pytest.fixture
def compiled(tmp_path):
    """What a page shows as text, the fonts on it, and what TeX complained of."""

    def run(sheet, inline=""):
        (tmp_path / "table.tex").write_text(writers.latex(sheet), encoding="utf-8")
        (tmp_path / "numbers.tex").write_text(writers.macros(sheet), encoding="utf-8")
        (tmp_path / "page.tex").write_text(DOCUMENT % inline, encoding="utf-8")
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, done.stdout[-2000:]
        text = subprocess.run(["pdftotext", "-layout", "page.pdf", "-"], cwd=tmp_path, capture_output=True, text=True,
                              check=True).stdout  # fmt: skip
        fonts = subprocess.run(
            ["pdffonts", "page.pdf"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        return " ".join(text.split()), fonts, re.findall(r"^(?:! |LaTeX Warning: ).*", done.stdout, re.M)

    return run


def results(tmp_path, cells):
    return store.read_results(run_of(tmp_path / "run", cells))


def test_a_messy_store_compiles_and_names_are_as_they_were(tmp_path, compiled):
    name = r"a_b&c%d#e[x=1]{y}~^\$<|>"
    cells = [
        *seeds(name, [0.8, 0.9, 0.83]), *seeds("tie", [0.8, 0.9, 0.83]), *seeds("one", [0.31]),
        cell("lost", 0, 0.7), cell("lost", 1, None, "diverged"), cell("lost", 2, None, "interrupted"),
    ]  # fmt: skip
    sheet = tables.build(results(tmp_path, cells))
    text, fonts, complaints = compiled(sheet, r"\TestAccuracyTieDigits")
    assert complaints == []
    assert name in text
    values = {row[0]: fields[0] for row, fields in sheet.rows}
    assert f"tie {values['tie'].value} ± {values['tie'].half}" in text
    assert f"Here: {values['tie'].value} ± {values['tie'].half}." in text
    assert "1 of 3 diverged, 1 of 3 interrupted; the mean is over the others." in text
    assert "CMBX" in fonts, fonts  # the best stands out


def test_differences_keep_their_signs_and_ratios_their_bounds(tmp_path, compiled):
    up = tables.build(results(tmp_path, [*seeds("a", [0.5, 0.6]), *seeds("b", [0.7, 0.9])]), baseline="a")
    text, _, complaints = compiled(up)
    assert complaints == []
    (field,) = up.rows[0][1]
    assert field.value.startswith("+")
    assert f"b {field.value} ± {field.half}" in text

    times = [timed("a", [[1e-3], [2e-3], [4e-3]]), timed("b", [[2e-3], [8e-3], [8e-3]])]
    ratio = tables.build(results(tmp_path / "times", times), baseline="a")
    text, _, complaints = compiled(ratio)
    assert complaints == []
    assert f"b {ratio.rows[0][1][0].text}" in text


def test_published_rows_and_all_columns_together_compile(tmp_path, compiled):
    def on(task):
        return {"facts": json.dumps({"published": ["LRA", task]}), "task": task.lower()}

    cells = [one for task in ("ListOps", "Text") for model, values in (("lru", [0.5, 0.6]), ("s5", [0.4, 0.5]))
             for one in seeds(model, values, **on(task))]  # fmt: skip
    sheet = tables.build(results(tmp_path, cells), published=True, overall=True)
    text, _, complaints = compiled(sheet)
    assert complaints == []
    assert "model listops text all 2 mean rank" in text
    assert "published" in text
    names = [row[0] for row, _ in sheet.published if "fi" not in row[0]]  # a ligature is another letter
    assert [name for name in names if name not in text] == []
