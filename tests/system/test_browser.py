"""The page of `bench report --html` in a browser: Debian's chromium without a window, driven through selenium."""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
import subprocess
import time
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from made_store import NAME, cell, run_of, seeds
from programs import needs

from bench import store
from bench.report.contents import gather, rows_of
from bench.report.figures import Figure, Heat, Panel, Series
from bench.report.page import page

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = needs(
    "chromium", "chromedriver", modules=["selenium"],
    install='apt install chromium chromium-driver, and pip install "linrec-bench[browser]"',
)  # fmt: skip

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"
WIDTHS = (360, 768, 1280)
NO_DECORATION = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}


def figures():
    """A line with a band, points with their errors on logarithmic axes, a curve of theory, a heat map."""
    x = np.arange(1, 6)
    line = Series(f"a {SCRIPT}", x, x / 10, x / 10 - 0.05, x / 10 + 0.05)
    points = Series("b", x, 10.0**x, 10.0**x / 2, 10.0**x * 2, "points")
    curve = Series("b", x, 10.0**x, style="theory")
    black = [Series(name, x, x / 10 + i / 100) for i, name in enumerate("cdefgh")]
    energies = np.array([[1, 0.1, 0.01], [1, 0.2, 0.04]])
    heat = Heat("of h", "steps", "block", "gradient", ["1", "2"], ["0", "1", "2"], energies)
    panels = [
        Panel("left", "t", "y", [line, *black]),
        Panel("right", "t", "z", [points, curve], log_x=True, log_y=True),
    ]
    return [
        Figure("lines", "Lines", panels),
        Figure("heat", "Heat", [heat]),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Names and messages that would be markup, and numbers that text would sort wrongly: 85, 9, 100."""
    cells = [
        *seeds(SCRIPT, [0.85, 0.85]), *seeds(NAME, [0.09, 0.09]), *seeds("lru", [1.0, 1.0]), *seeds("s5", [0.5, 0.5]),
        cell("gru", 0, None, "error", message=f"Traceback\n  </script>\nValueError: {IMAGE}"),
    ]  # fmt: skip
    run = run_of(tmp_path_factory.mktemp("results") / "run", cells)
    found = gather(store.read_results(run), [run], warnings=["one.parquet cannot be read and is left out"])
    section = dataclasses.replace(found.sections[0], figures=figures())
    return dataclasses.replace(found, sections=[section])


@pytest.fixture(scope="module")
def file(contents, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(contents), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    words = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    for word in (*words, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def shown(browser, file):
    """The page at a width, light or dark; afterwards the console must be empty."""

    def show(width=1280, scheme="light", path=file):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        metrics = NO_DECORATION | {"width": width, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get(path.as_uri())
        until(browser, "return document.getElementById('rows-table').dataset.ready === ''")
        return browser

    browser.get_log("browser")
    browser.get_log("performance")
    yield show
    assert browser.get_log("browser") == []


def until(browser, script, *arguments, seconds=30):
    """The value of the script, once it has one."""
    end = time.monotonic() + seconds
    while not (found := browser.execute_script(script, *arguments)):
        assert time.monotonic() < end, script
        time.sleep(0.05)
    return found


def texts(browser, selector):
    """The texts of all elements, whether they are in the window or not; not of hidden rows."""
    found = "[...document.querySelectorAll(arguments[0])].filter(e => !e.closest('[hidden]'))"
    return browser.execute_script(f"return {found}.map(e => e.textContent)", selector)


def column(browser, table, i):
    """The texts of a column of a table."""
    return texts(browser, f"{table} tbody tr > :nth-child({i + 1})")


SHEET = "#suite-0-sheet"


def test_nothing_is_asked_of_the_network_and_nothing_lands_on_the_console(shown):
    browser = shown()
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_names_and_messages_stay_text(shown):
    browser = shown()
    assert SCRIPT in column(browser, SHEET, 0)
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    text = browser.execute_script("return document.querySelector('#rows-table').textContent")
    assert SCRIPT in text
    assert IMAGE in text
    legend = browser.execute_script("return document.querySelector('.legend').textContent")
    assert SCRIPT in legend
    assert browser.execute_script("return document.querySelectorAll('script').length") == 7  # 4 and the data of 3


def test_a_script_that_data_would_bring_does_not_run(shown):
    """What the policy is for: even markup that came through would do nothing."""
    browser = shown()
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', '<i onclick=\"window.ran = 1\">x</i>')")
    browser.execute_script("document.body.lastElementChild.click()")
    assert browser.execute_script("return window.ran === undefined")
    (entry,) = browser.get_log("browser")  # the policy says that it was refused
    assert "Content Security Policy" in entry["message"]


def test_tables_sort_by_click_and_by_keyboard(shown):
    from selenium.webdriver.common.keys import Keys

    browser = shown()
    before = column(browser, SHEET, 1)
    _, button = browser.find_elements("css selector", f"{SHEET} thead button")
    head = button.find_element("xpath", "..")
    button.click()
    names = column(browser, SHEET, 0)
    assert names == [NAME, "s5", SCRIPT, "lru", "gru"]  # 9, 50, 85, 100, none
    assert head.get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert column(browser, SHEET, 0) == ["lru", SCRIPT, "s5", NAME, "gru"]
    assert head.get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.SPACE)
    assert column(browser, SHEET, 1) == before
    assert head.get_attribute("aria-sort") is None


def test_tables_filter(shown):
    browser = shown()
    browser.find_element("css selector", f"{SHEET} input").send_keys("SCRIPT alert")
    assert column(browser, SHEET, 0) == [SCRIPT]
    assert browser.find_element("css selector", f"{SHEET} .count").text == "1 of 5 rows"


def test_rows_sort_and_filter(shown):
    from selenium.webdriver.common.keys import Keys

    browser = shown()
    at = texts(browser, ".tabulator-col-title").index("value")
    head = browser.find_elements("css selector", ".tabulator-col")[at]
    button = head.find_element("css selector", "button")
    button.send_keys(Keys.ENTER)
    until(browser, "return arguments[0].ariaSort === 'ascending'", head)
    numbers = [float(text) for text in texts(browser, f".tabulator-cell[tabulator-field=c{at}]") if text]
    assert numbers == sorted(numbers) == [0.09, 0.09, 0.5, 0.5, 0.85, 0.85, 1, 1]
    field = head.find_element("css selector", "input")
    field.send_keys(">=.5")
    until(browser, "return document.getElementById('rows-count').textContent === '6 of 9 rows'")
    field.clear()
    field.send_keys("0.5..0.85", Keys.ENTER)
    until(browser, "return document.getElementById('rows-count').textContent === '4 of 9 rows'")
    browser.find_element("id", "rows-filter").send_keys("s5")
    until(browser, "return document.getElementById('rows-count').textContent === '2 of 9 rows'")


NUMBERS = [2.2711150646209717, None, 0.1, 1.5e300, 123456789, -2.0, None, -1e-300]


@pytest.fixture(scope="module")
def numbers(contents, tmp_path_factory):
    """A page whose rows have numbers with many digits, large and small ones, and none."""
    frame = pd.DataFrame({
        "model": ["x10", "x9", None, "x1", "y", "z", None, "w"], "value": pd.array(NUMBERS, "Float64"),
        "params": pd.array([104858, 123456789, None, 2**53 + 1, 7, 7, 7, 7], "Int64"),
    })  # fmt: skip
    path = tmp_path_factory.mktemp("numbers") / "page.html"
    path.write_text(page(dataclasses.replace(contents, rows=rows_of(frame))), encoding="utf-8")
    return path


SHOWN = ["2.2711150646209717", "", "0.1", "1.5e+300", "123456789", "-2", "", "-1e-300"]


def test_rows_show_every_digit_and_what_is_shown_finds_its_row(shown, numbers):
    from selenium.webdriver.common.keys import Keys

    browser = shown(path=numbers)
    assert texts(browser, ".tabulator-col-title") == ["model", "value", "params"]
    assert texts(browser, ".tabulator-cell[tabulator-field=c1]") == SHOWN
    whole = texts(browser, ".tabulator-cell[tabulator-field=c2]")
    assert whole == ["104858", "123456789", "", "9007199254740993", "7", "7", "7", "7"]
    inputs = browser.find_elements("css selector", ".tabulator-header-filter input")
    found = "const cells = document.querySelectorAll(`.tabulator-cell[tabulator-field=c${arguments[0]}]`);"
    for i, words in ((1, [text for text in SHOWN if text]), (2, [whole[0], whole[1], whole[3]])):
        for word in words:
            inputs[i].clear()
            inputs[i].send_keys(word)
            until(browser, f"{found} return cells.length === 1 && cells[0].textContent === arguments[1]", i, word)
        inputs[i].clear()
        inputs[i].send_keys(Keys.BACK_SPACE)
    inputs[1].send_keys(">1e300")
    until(browser, f"{found} return cells.length === 1 && cells[0].textContent === '1.5e+300'", 1)


@pytest.mark.parametrize(("name", "ascending"), [
    ("value", ["-2", "-1e-300", "0.1", "2.2711150646209717", "123456789", "1.5e+300"]),
    ("model", ["w", "x1", "x9", "x10", "y", "z"]),
])  # fmt: skip
def test_rows_without_a_value_come_last_in_both_directions(shown, numbers, name, ascending):
    browser = shown(path=numbers)
    at = texts(browser, ".tabulator-col-title").index(name)
    head = browser.find_elements("css selector", ".tabulator-col")[at]
    for direction, expected in (("ascending", ascending), ("descending", ascending[::-1])):
        head.find_element("css selector", "button").click()
        until(browser, "return arguments[0].ariaSort === arguments[1]", head, direction)
        assert texts(browser, f".tabulator-cell[tabulator-field=c{at}]") == [*expected, "", ""]


def test_figures_show_values_by_pointer_and_by_keyboard(shown):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = shown()
    left, right, heat = browser.find_elements("css selector", ".area > svg")
    tip = "return [...arguments[0].querySelectorAll('[aria-label=tip] text')].map(t => t.textContent).join('')"
    middle = """
        const svg = arguments[0], box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
        return [scale * svg.scale('x').apply(arguments[1]) - box.width / 2,
                scale * svg.scale('y').apply(arguments[2]) - box.height / 2].map(Math.round);"""
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", right)
    ActionChains(browser).move_to_element_with_offset(right, *browser.execute_script(middle, right, 3, 1000)).perform()
    said = until(browser, tip, right)
    for text in ("b", "t: 3", "z: 1000", "[500, 2000]"):
        assert text in said
    browser.execute_script("arguments[0].focus()", left)
    left.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    key = "return arguments[0].parentElement.querySelector('.tip').textContent"
    assert browser.execute_script(key, left) == f"a {SCRIPT}\nt: 2\ny: 0.2 [0.15, 0.25]"
    left.send_keys(Keys.ARROW_DOWN)
    assert browser.execute_script(key, left) == "c\nt: 2\ny: 0.2"  # which lies on the former
    left.send_keys(Keys.ESCAPE)
    assert browser.execute_script(key, left) == ""
    browser.execute_script("arguments[0].focus()", heat)
    heat.send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(key, heat) == "steps: 0\nblock: 1\ngradient: 1"


def test_the_values_of_a_figure_are_a_table_too(shown):
    browser = shown()
    browser.find_element("css selector", "figure .values summary").click()
    script = "return [...document.querySelectorAll('figure .values tr')].map(r => [...r.cells].map(c => c.textContent))"
    rows = until(browser, f"const found = (() => {{ {script} }})(); return found.length ? found : null")
    assert [f"a {SCRIPT}", "line", "3", "0.3", "0.25", "0.35"] in rows
    assert ["b", "points", "2", "100", "50", "200"] in rows
    assert ["b", "theory", "2", "100", "–", "–"] in rows


def test_whole_numbers_of_a_figure_are_shown_whole(shown, contents, tmp_path):
    from selenium.webdriver.common.keys import Keys

    points = Series("a", [104858, 123456789], [0.12345678, 9e15], style="points")
    near = Series("a", [104858, 104862], [1048580, 1048620], style="points")
    figure = Figure("size", "Size", [Panel("", "parameters", "y", [points]), Panel("", "parameters", "y", [near])])
    section = dataclasses.replace(contents.sections[0], figures=[figure])
    path = tmp_path / "whole.html"
    path.write_text(page(dataclasses.replace(contents, sections=[section])), encoding="utf-8")
    browser = shown(path=path)
    svg, _ = browser.find_elements("css selector", ".area > svg")
    browser.execute_script("arguments[0].focus()", svg)
    svg.send_keys(Keys.ARROW_RIGHT)
    tip = "return document.querySelector('.tip').textContent"
    assert browser.execute_script(tip) == "a\nparameters: 104858\ny: 0.12346"
    svg.send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(tip) == "a\nparameters: 123456789\ny: 9000000000000000"
    browser.find_element("css selector", "figure .values summary").click()
    until(browser, "return document.querySelectorAll('figure .values tbody tr').length === 4")
    assert texts(browser, "figure .values tbody td:nth-child(3)") == ["104858", "123456789", "104858", "104862"]
    for axis in ("x", "y"):
        ticks = texts(browser, f".panel:nth-child(2) [aria-label='{axis}-axis tick label'] text")
        assert len(ticks) > 3
        assert len(set(ticks)) == len(ticks)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_text_and_no_line_vanishes_into_the_background(shown, scheme):
    """The text's contrast is WCAG's for small text; black lines are white where the page is dark."""
    browser = shown(scheme=scheme)
    style = "return getComputedStyle(arguments[0])[arguments[1]]"
    back = browser.execute_script(style, browser.find_element("tag name", "body"), "backgroundColor")
    for selector in (
        "body",
        ".note",
        "thead th",
        "nav a",
        ".counts .bad b",
        ".fine, .warning",
        ".tabulator-cell",
        ".facts dt",
    ):
        text = browser.execute_script(style, browser.find_element("css selector", selector), "color")
        assert contrast(text, back) >= 4.5, selector
    lines = browser.execute_script(
        "return [...document.querySelectorAll('.legend line')].map(l => getComputedStyle(l).stroke)"
    )
    assert [round(contrast(line, back), 1) for line in lines if contrast(line, back) < 2] == []
    assert contrast(lines[6], back) > 10  # black, or white


def contrast(one, other):
    """Of two colours as "rgb(..)": https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio."""
    light = []
    for colour in (one, other):
        parts = [int(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_width_scrolls_the_page_sideways(shown, width):
    browser = shown(width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    box = "return [...document.querySelectorAll('.area > svg')].map(e => e.getBoundingClientRect().width)"
    assert all(100 < found <= width for found in browser.execute_script(box))


@pytest.mark.parametrize("width", [360, 500])
def test_a_long_title_of_a_panel_breaks(shown, contents, tmp_path, width):
    title = "mqar[train=20000,validation=1000,test=1000,vocabulary_size=64,length=256]"
    figure = Figure("long", "Long", [Panel(title, "t", "y", [Series("a", [1, 2], [1, 2])])])
    section = dataclasses.replace(contents.sections[0], figures=[figure])
    path = tmp_path / "long.html"
    path.write_text(page(dataclasses.replace(contents, sections=[section])), encoding="utf-8")
    browser = shown(width, path=path)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_everything_is_reached_by_the_keyboard_and_has_a_name(shown):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = shown()
    ActionChains(browser).send_keys(Keys.TAB).perform()
    assert browser.switch_to.active_element.text == "Skip to the results"
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert browser.switch_to.active_element.tag_name == "main"
    levels = browser.execute_script(
        "return [...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    landmarks = browser.execute_script(
        "return ['header', 'nav', 'main', 'footer'].map(n => document.querySelectorAll(n).length)"
    )
    assert landmarks == [1, 1, 1, 1]
    unnamed = "return [...document.querySelectorAll('input')].filter(i => !i.labels.length && !i.ariaLabel).length"
    assert browser.execute_script(unnamed) == 0
    ids = browser.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_without_scripts_the_tables_are_there(shown, browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(browser.current_url)
        assert "85.0" in browser.find_element("css selector", SHEET).text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_print_leaves_out_what_paper_cannot_do(shown):
    browser = shown(scheme="dark")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    seen = "return arguments[0].map(s => getComputedStyle(document.querySelector(s)).display !== 'none')"
    assert browser.execute_script(seen, ["nav", "#rows-table", ".filter", ".printed", ".area > svg", SHEET]) == [
        False, False, False, True, True, True
    ]  # fmt: skip
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def printed(browser, folder):
    """The texts of the pages that a printer would get."""
    made = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    (folder / "page.pdf").write_bytes(base64.b64decode(made["data"]))
    done = subprocess.run(["pdftotext", "-layout", folder / "page.pdf", "-"], capture_output=True, check=True)
    return done.stdout.decode().split("\f")


@needs("pdftotext", install="apt install poppler-utils")
def test_pages_on_paper_tear_nothing_apart(shown, tmp_path):
    """Whatever height is free: a title, its legend and its figure are on one page, a table and its note on one."""
    browser = shown()
    browser.execute_script("""
        const filler = document.createElement('div');
        document.querySelector('main').prepend(filler);
        window.fill = (height) => { filler.style.height = `${height}px`; };""")
    for height in range(0, 1000, 125):
        browser.execute_script("fill(arguments[0])", height)
        pages = printed(browser, tmp_path)
        for words in (("Lines", "left", "t→"), ("Heat", "of h", "steps"), ("Test accuracy", "s5", "Mean over")):
            assert any(all(word in text for word in words) for text in pages), (height, words)


@needs("pdftotext", install="apt install poppler-utils")
def test_the_heads_of_a_long_table_are_on_each_of_its_pages(shown, tmp_path):
    run = run_of(tmp_path / "run", [cell(f"m{i}", 0, 0.5) for i in range(90)])
    path = tmp_path / "long.html"
    path.write_text(page(gather(store.read_results(run), [run])), encoding="utf-8")
    pages = [text.split() for text in printed(shown(path=path), tmp_path) if text.count("50.00") > 2]
    assert len(pages) > 1
    assert all(text.index("digits") < text.index("50.00") for text in pages)


def test_a_hundred_thousand_rows_open(shown, contents, tmp_path, record_property):
    """Every row is there and can be filtered; how long it took is noted, and judged by nobody: machines differ."""
    count = 100_000
    frame = pd.DataFrame({
        "suite": "throughput", "model": np.array(["lru", "s5", "s4d", "rotrnn"])[np.arange(count) % 4],
        "backend": np.array(["torch", "jax"])[np.arange(count) % 2], "seed": np.arange(count) % 5,
        "metric": "time", "value": np.random.default_rng(0).lognormal(size=count), "unit": "s",
        "cell_id": [f"{i // 500:016x}" for i in range(count)], "length": 2 ** (np.arange(count) % 12),
        "sample": np.arange(count), "process": np.arange(count) // 1000, "status": "ok",
    })  # fmt: skip
    path = tmp_path / "large.html"
    path.write_text(page(dataclasses.replace(contents, rows=rows_of(frame))), encoding="utf-8")
    browser = shown(path=path)
    seconds = browser.execute_script("return performance.getEntriesByName('rows-shown')[0].startTime") / 1000
    record_property("seconds_to_open_100000_rows", seconds)
    print(f"{count:,} rows, {path.stat().st_size / 1e6:.1f} MB: shown after {seconds:.2f} s")
    assert browser.execute_script("return document.querySelectorAll('.tabulator-row').length") < 200
    browser.find_element("id", "rows-filter").send_keys("rotrnn")
    until(browser, "return document.getElementById('rows-count').textContent === '25,000 of 100,000 rows'")
