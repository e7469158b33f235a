"""The page of `bench report --html`: data stay data, and its numbers are those of the terminal's report."""

import hashlib
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from made_store import NAME, cell, id_of, invoke, run_of, seeds

from bench import store
from bench.report import ordering, overview, tables
from bench.report.blocks import Table
from bench.report.contents import columns_of, gather, rows_of
from bench.report.figures import Figure, Heat, Panel, Series
from bench.report.page import WEB, data, figure_data, page, vendored
from suites.accuracy.suite import Accuracy

SCRIPT = "<script>alert(1)</script>"
TRACEBACK = "Traceback\n  <!-- </script>\nValueError: </script><img src=x onerror=alert(2)>"
VOID = {"meta", "input", "br", "img", "link"}


class Parsed(HTMLParser):
    """What a browser would make of the file: tables, texts of elements, JSON, and every tag that there is."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.titles: list[str] = []
        self.ranks: list[list[list[int | None]]] = []
        self.json: list[object] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.kind = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in VOID:
            self.open.append(tag)
        if "data-ranks" in found:
            self.ranks.append(json.loads(found["data-ranks"]))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "h3":
            self.titles.append("")
        self.kind = found.get("type", "") if tag == "script" else ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        within = self.open[-1] if self.open else ""
        if within == "script":
            if self.kind == "application/json":
                self.json.append(json.loads(text))
        elif within != "style":
            self.text.append(text)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += text
        if "h3" in self.open:
            self.titles[-1] += text


@pytest.fixture
def messy(tmp_path):
    """Two runs with one cell in both, names full of signs, a file that was cut, one of an older schema, failures."""
    cells = [
        *seeds(SCRIPT, [0.8, 0.9, 0.85]), *seeds(NAME, [0.7, 0.72, 0.75]), *seeds("lru", [0.91, 0.92, 0.9]),
        cell("s5", 0, 0.8), cell("s5", 1, None, "diverged", message="not finite at step 12"),
        cell("s5", 2, None, "error", message=TRACEBACK), cell("gru", 0, None, "interrupted"),
    ]  # fmt: skip
    one = run_of(tmp_path / "one", cells)
    two = run_of(tmp_path / "two", [cell("lru", 0, 0.95, started=3)])
    broken = one / "cells" / f"{id_of('lru', 'digits', 1)}.parquet"
    broken.write_bytes(broken.read_bytes()[:200])
    old = one / "cells" / f"{id_of('lru', 'digits', 2)}.parquet"
    pq.write_table(pq.read_table(old).drop_columns(["compiled", "facts"]), old)
    return [one, two]


@pytest.fixture
def results(messy):
    with pytest.warns(store.IncompleteResults, match="cannot be read"):
        return store.read_results(*messy)


def made_of(results, folders):
    return page(gather(results, folders, warnings=["a.parquet cannot be read"]))


def test_names_and_messages_stay_text(results, messy):
    text = made_of(results, messy)
    found = Parsed(text)
    assert SCRIPT not in text
    assert "<img" not in text
    assert "onerror=" not in {name for _, attributes in found.tags for name in attributes}
    assert [attributes.get("type") for tag, attributes in found.tags if tag == "script"] == [
        "application/json", None, None, None, None
    ]  # fmt: skip
    assert any(SCRIPT in row for table in found.tables for row in table)
    assert any(NAME in row for table in found.tables for row in table)
    assert TRACEBACK in "".join(found.text)
    (columns,) = found.json
    texts = {column["name"]: column["values"] for column in columns}
    assert {SCRIPT, NAME} <= set(texts["model"])
    assert TRACEBACK in texts["message"]


def test_data_in_a_script_close_no_element_and_open_no_comment():
    value = {"a": "</script><!-- &amp; \u2028\u2029", "b": [1.5, None]}
    text = data(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_the_page_loads_nothing_and_runs_its_own_scripts_alone(results, messy):
    text = made_of(results, messy)
    found = Parsed(text)
    assert not [tag for tag, attributes in found.tags if {"src", "srcset"} & set(attributes) or tag == "link"]
    assert all(a["href"].startswith("#") for _, a in found.tags if "href" in a)
    (policy,) = [a["content"] for tag, a in found.tags if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.partition("style-src")[0]
    assert "sourceMappingURL" not in text
    assert len(re.findall("'sha256-", policy)) == 4
    assert "url(" not in re.sub(r"url\(#|url\(data:", "", "".join(re.findall("<style>(.*?)</style>", text, re.DOTALL)))


def test_the_page_shows_the_numbers_of_the_report_and_of_the_table(results, messy):
    found = Parsed(made_of(results, messy))
    blocks = [block for block in overview.report(results, messy) if isinstance(block, Table)]
    shown = dict(zip(found.titles, found.tables, strict=True))
    assert blocks
    for block in blocks:
        assert shown[block.title] == [list(block.columns), *map(list, block.rows)]
    sheet = tables.build(results)
    notes = {row[0]: "".join(map(str, fields[0].notes)) for row, fields in sheet.rows}
    rows = [[*row, *(f"{f.value} ± {f.half}" if f.half else f.value for f in fields)] for row, fields in sheet.rows]
    marked = [[*row[:1], *(f"{text} ({i})" if (i := notes.get(row[0])) else text for text in row[1:])] for row in rows]
    assert shown[sheet.title][1:] == marked


def test_failures_come_first_with_what_could_not_be_read(results, messy):
    text = made_of(results, messy)
    assert text.index('id="failures"') < text.index('id="suite-0"')
    failures = text[text.index('id="failures"') : text.index('id="suite-0"')]
    for words in (
        "Not ok: 4 of 13 cells",
        "not finite at step 12",
        "its result file cannot be read",
        "a.parquet cannot",
    ):
        assert words in failures


def test_the_newest_of_two_results_of_a_cell_is_shown(results, messy):
    rows = rows_of(results).varying
    (value,) = rows.loc[rows["cell_id"] == id_of("lru", "digits", 0), "value"]
    assert value == 0.95


def test_the_same_store_gives_the_same_bytes(results, messy):
    with pytest.warns(store.IncompleteResults):
        again = store.read_results(*messy)
    assert made_of(results, messy) == made_of(again, messy)


def test_a_suite_that_fails_to_report_or_to_draw_hides_nothing_else(tmp_path, monkeypatch, own_registry):
    class Failing:
        measures = {}

        def report(self, rows, view):
            raise KeyError("no such column")

        def figures(self, rows, view):
            raise ZeroDivisionError("by zero")

    found = own_registry.find
    monkeypatch.setattr(own_registry, "find", lambda kind, name: Failing if name == "failing" else found(kind, name))
    run = run_of(tmp_path / "run", [*seeds("a", [0.8, 0.9]), cell("b", 0, 0.1, suite="failing"),
                                    cell("c", 0, 0.1, suite="unheard_of")])  # fmt: skip
    results = store.read_results(run)
    contents = gather(results, [run])
    assert contents.blocks() == overview.report(results, [run])
    assert len(contents.faults()) >= 2
    text = page(contents)
    failures = text[text.index('id="failures"') : text.index('id="suite-0"')]
    assert "suite failing failed to report on its rows, KeyError: &#x27;no such column&#x27;" in failures
    assert "suite failing has no figures, ZeroDivisionError: by zero" in failures
    assert "suite unheard_of is not installed here" in text
    assert ">85" in text


def test_a_suite_that_cannot_draw_is_named_by_bench_plot_and_the_others_are_drawn(tmp_path, monkeypatch):
    def failing(self, rows, view):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(Accuracy, "figures", failing)
    timed = [
        (cell("lru", length, suite="throughput", task=None, length=length, batch=1,
              factors=json.dumps({"length": length, "mode": "forward", "tokens": None}))[0] | {"seed": 0},
         [{"metric": "time", "value": 1e-3 * length, "process": 0, "sample": i} for i in range(3)])
        for length in (64, 256)
    ]  # fmt: skip
    run = run_of(tmp_path / "run", [cell("a", 0, 0.8), *timed])
    refused = invoke("plot", run, "--out", tmp_path / "figures", "--baseline", "lrv")
    assert (refused.exit_code, (tmp_path / "figures").exists()) == (2, False)
    assert "unknown model in --baseline 'lrv'" in refused.stderr
    done = invoke("plot", run, "--out", tmp_path / "figures", "--formats", "svg")
    assert done.exit_code == 1
    assert "bench: suite accuracy has no figures, ZeroDivisionError: by zero" in done.stderr
    assert [file.name for file in (tmp_path / "figures").iterdir()] == ["time-over-length.svg"]


# Order.


@pytest.mark.parametrize("ascending", [
    ["-", "-3.5", "-0.1 ± 2", "0.057", "+0.06", ".5", "98.1 ± .6", "1,234", "22,410", "∞"],
    ["0%", "4%", "12 %", "100%"],
    ["0/3 [0.00, 0.56]", "1/3 [0.06, 0.79]", "2/2"],
    ["[3.50, 5.13]", "[13.3, 16.1]"],
    ["2.9e-06", "0.0012", "1", "1.0e+08", "3e9 *"],
    ["1.9 of 48", "2.8 of 96", "> 1,024"],
    ["512 KiB", "1.5 MiB", "1.2 GiB"],
    ["900 µs", "2 ms", "0.5 s"],
    ["9", "10", "1f", "grows", "lru[n=9]", "lru[n=10]", "None"],
])  # fmt: skip
def test_columns_are_sorted_by_their_numbers_and_names_by_theirs(ascending):
    texts = [text for text in ascending if text != "-"]
    assert ordering.ranks(texts) == list(range(len(texts)))
    assert ordering.ranks(["-", *reversed(texts), ""]) == [None, *reversed(range(len(texts))), None]


def test_equal_values_have_one_place_and_hashes_are_no_numbers():
    assert ordering.ranks(["2", "1", "2.0", "1 *"]) == [1, 0, 1, 0]
    assert ordering.key("5e3a9c") == (1, 0.0, ordering.key("5e3a9c")[2])
    assert ordering.key("9" * 5000 + "x")[0] == 1


def test_a_table_carries_the_order_of_its_columns(results, messy):
    found = Parsed(made_of(results, messy))
    for title, table, ranks in zip(found.titles, found.tables, found.ranks, strict=True):
        assert len(ranks) == len(table[0]), title
        if title != "Test accuracy [%]":  # whose notes stand beside the numbers
            assert ranks == [ordering.ranks(column) for column in zip(*table[1:], strict=True)], title
    sheet = tables.build(results)
    assert found.ranks[found.titles.index(sheet.title)][1] == ordering.ranks([f[0].value for _, f in sheet.rows])


# Figures and rows.


def test_figures_carry_their_series_and_no_value_that_is_not_finite():
    line = Series("a<b>", np.array([1, 2, 3]), [0.5, np.nan, 2], [0.4, np.nan, -np.inf], [0.6, np.nan, np.inf])
    panel = Panel("p", "x", "y", [line, Series("t", [1.0], [2.0], style="theory")], log_y=True)
    heat = Heat("h", "x", "y", "v", ["r"], ["c", "d"], np.array([[1.0, np.inf]]))
    found = figure_data(Figure("f", "F", [panel, heat]))
    assert found["looks"] == {"a<b>": 0, "t": 1}
    first, second = found["panels"][0]["series"]
    assert (first["x"], first["y"], first["low"], first["high"]) == (
        [1, 2, 3], [0.5, None, 2], [0.4, None, None], [0.6, None, None]
    )  # fmt: skip
    assert (second["look"], second["style"], second["low"]) == (1, "theory", None)
    assert found["panels"][1]["values"] == [[1.0, None]]
    assert found["panels"][0]["log_y"]


def spread(column):
    if "runs" not in column:
        return column["values"]
    pairs = zip(column["runs"][::2], column["runs"][1::2], strict=True)
    return [column["values"][which] for which, count in pairs for _ in range(count)]


def test_rows_come_through_as_they_are_in_the_store():
    frame = pd.DataFrame({
        "text": ["a", "a", None, "b", "a"], "whole": pd.array([1, 1, None, 2, 1], "Int64"),
        "flag": pd.array([True, None, False, True, True], "boolean"), "real": [0.1, np.nan, np.inf, 1e-300, -np.inf],
        "same": [2.0] * 5, "large": [2**53 + 1] * 5,
    })  # fmt: skip
    found = {column["name"]: column for column in columns_of(frame)}
    assert spread(found["text"]) == ["a", "a", None, "b", "a"]
    assert spread(found["whole"]) == [1, 1, None, 2, 1]
    assert spread(found["flag"]) == ["true", None, "false", "true", "true"]
    assert spread(found["real"]) == [0.1, None, None, 1e-300, None]
    assert found["same"]["runs"] == [0, 5]
    assert spread(found["large"]) == ["9007199254740993"] * 5  # of which a double is 9007199254740992
    assert [found[name]["numeric"] for name in frame] == [False, True, False, True, True, False]


def test_only_columns_that_vary_are_shown_and_the_rest_is_said_once(results):
    rows = rows_of(results)
    assert {"model", "value", "metric", "status"} <= set(rows.varying)
    assert dict(rows.constant)["suite"] == "accuracy"
    assert not set(dict(rows.constant)) & set(rows.varying)
    assert "recipe" not in rows.varying
    assert "head" not in rows.varying
    assert len(rows_of(results, most=3).varying) == 3
    assert rows_of(results, most=3).total == len(results)


# The files and the command.


def test_the_libraries_are_as_their_authors_published_them():
    listed = {file: sha for one in vendored() for file, sha in one["files"].items()}
    there = {path.name for path in WEB.iterdir()}
    assert there == set(listed) | {"page.js", "page.css", "vendored.json"}
    for file, sha in listed.items():
        assert hashlib.sha256((WEB / file).read_bytes()).hexdigest() == sha, file


def test_the_page_without_data_is_small_and_carries_the_licences(tmp_path):
    run = run_of(tmp_path / "run", seeds("a", [0.8]))
    text = page(gather(store.read_results(run), [run]))
    assert len(text.encode()) < 1_500_000
    for one in vendored():
        (licence,) = [name for name in one["files"] if name.startswith("LICENSE")]
        assert (WEB / licence).read_text().strip() in text


@pytest.mark.filterwarnings("default::bench.store.IncompleteResults")
def test_the_command_writes_the_file_and_prints_its_name(tmp_path, messy):
    file = tmp_path / "page.html"
    done = invoke("report", *messy, "--html", file)
    assert (done.exit_code, done.stdout) == (1, f"{file}\n")  # 1: a file of the store cannot be read
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "page.html", "two"]
    plain = invoke("report", *messy, "--json")
    both = invoke("report", *messy, "--json", "--html", file)
    assert both.stdout == plain.stdout
    assert str(file) in both.stderr


def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    for path, says in ((tmp_path, "this is a folder"), (tmp_path / "none" / "page.html", "there is no folder")):
        done = invoke("report", tmp_path / "no run", "--html", path)
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert says in done.stderr


def test_no_folder_of_a_machine_is_told(tmp_path):
    run = run_of(tmp_path / "run", seeds("a", [0.8]))
    content = json.loads((run / "run.json").read_text()) | {"command": ["run", "--data", "/home/someone/sets"]}
    (run / "run.json").write_text(json.dumps(content))
    text = page(gather(store.read_results(run), [run]))
    assert "someone" not in text
    assert "bench run --data '…/sets'" in html.unescape(text)


def test_the_tables_of_the_page_count_cells_that_the_oracle_contradicts(tmp_path):
    cells = [(made, [rows[0] | {"verified": made["seed"] > 0}]) for made, rows in seeds("a", [0.9, 0.8, 0.7])]
    run = run_of(tmp_path / "run", [*cells, *seeds("b", [0.6, 0.7, 0.65])])
    results = store.read_results(run)
    for unverified, n, notes in ((False, 2, ["1 of 3 unverified; the mean is over the others"]), (True, 3, [])):
        (section,) = gather(results, [run], unverified=unverified).sections
        assert section.sheet.rows[0][1][0].n == n
        assert section.sheet.footnotes == notes
