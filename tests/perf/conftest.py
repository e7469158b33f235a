"""What is saved, compared and shown of the measurements of speed; by whom they are refused."""

from __future__ import annotations

import json
import operator
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError('pytest-benchmark is not installed or switched off: pip install "linrec-bench[test]"')
    workers = getattr(config.option, "numprocesses", None) or getattr(config.option, "dist", "no") != "no"
    if workers or hasattr(config, "workerinput"):
        raise pytest.UsageError("speed is not measured in parallel: leave out -n and --dist")
    config.stash[FIGURES] = []
    config.stash[BASELINE] = _last_saved(config)
    config.option.benchmark_compare = config.stash[BASELINE][0] is not None
    config.option.benchmark_columns = ["median", "rounds"]


FIGURES = pytest.StashKey[list]()
BASELINE = pytest.StashKey[tuple]()


def _last_saved(config):
    """The path and figures, (line, column) -> value, of what was last saved for this system and Python."""
    from pytest_benchmark.utils import get_machine_id

    folder = Path(config.rootpath, ".benchmarks", get_machine_id())
    found = sorted(folder.glob("*.json"))
    if not found:
        return None, {}
    saved = json.loads(found[-1].read_text())["benchmarks"]
    return found[-1], {tuple(row[:2]): row[2] for one in saved for row in one["extra_info"].get("figures", [])}


@pytest.fixture
def figure(request, benchmark):
    """figure(line, column, value, bar): notes a value for the table and for what is saved.

    `bar` is text like ">= 4"; when all values of a test are noted, they are held against it.
    """
    missed = []

    def note(line, column, value, bar=""):
        row = (line, column, float(value), bar)
        request.config.stash[FIGURES].append(row)
        benchmark.extra_info.setdefault("figures", []).append(row)
        sign, _, limit = bar.partition(" ")
        if bar and not {">=": operator.ge, "<=": operator.le}[sign](value, float(limit)):
            missed.append(f"{line}: {column} is {value:.3g}, asked is {bar}")

    yield note
    assert not missed, "; ".join(missed)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash.get(FIGURES, [])
    if not rows:
        return
    path, before = config.stash[BASELINE]
    terminalreporter.section("figures of speed")
    wide = [max(len(str(row[i])) for row in rows) for i in (0, 1)]
    for line, column, value, bar in rows:
        old = before.get((line, column))
        compared = "" if old is None else f"before {old:.3g}"
        terminalreporter.line(f"{line:<{wide[0]}}  {column:<{wide[1]}}  {value:>9.3g}  {bar:<8} {compared}".rstrip())
    said = f"before: {path}" if path else "no baseline: nothing was saved for this system and Python yet"
    terminalreporter.line(said)
