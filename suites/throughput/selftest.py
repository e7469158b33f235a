"""What the suite `throughput` must say of layers whose behaviour is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from bench.report.statistics import interval
from bench.report.units import figure
from bench.selftest import Check, Selftest
from suites.throughput.report import Timed

SLEEP_S = 0.02
BACKGROUND_S = 0.05

STATUSES = {"crashes": "crashed", "clings": "timeout", "prints": "ok", "leaves": "ok"}
"""What ends how; `ok` stands for `unconverged` as well: that is a matter of the machine."""


def judge(results: pd.DataFrame) -> list[Check]:
    """Times may be longer than planted, on a busy machine, and never shorter; statuses are exact."""
    groups = {group.key["model"]: group for group in Timed.of(results)}
    checks = []
    for does, planted in (("sleeps", SLEEP_S), ("background", BACKGROUND_S)):
        group = groups[f"fake[does={does}]"]
        shortest = min((float(samples.min()) for samples in group.processes), default=0.0)
        found = f"{1e3 * group.seconds:.2f} ms" if group.processes else "-"
        checks.append(
            Check(
                what=f"a call that {does}" if does == "sleeps" else "a call that goes on in the background",
                planted=f"{1e3 * planted:.0f} ms",
                found=found,
                passed=bool(group.processes) and shortest >= planted,
                printed=f"{1e3 * (group.seconds - planted):+.2f} ms" if group.processes else "",
            )
        )
    for does, status in STATUSES.items():
        found = str(groups[f"fake[does={does}]"].cells["status"].iloc[0])
        good = found == status or (status == "ok" and found == "unconverged")
        checks.append(Check(what=f"a layer that {does}", planted=status, found=found, passed=good))
    return [*checks, *_floors(groups)]


def _floors(groups: dict[str, Timed]) -> list[Check]:
    nothing, sleeps = groups["fake"] if "fake" in groups else groups["fake[does=nothing]"], groups["fake[does=sleeps]"]
    found = []
    if nothing.processes:
        text = f"{figure(1e6 * nothing.seconds)} µs"
        found.append(Check(what="smallest time: a call that does nothing", planted="-", found=text, passed=None))
    if sleeps.processes:
        low, high = interval(sleeps.resampled)
        width = figure(100 * (high - low) / 2 / float(np.median(sleeps.resampled)))
        text = f"{width} % of 20 ms"
        found.append(Check(what="smallest difference: half an interval", planted="-", found=text, passed=None))
    return found


SELFTEST = Selftest(
    plugin=Path(__file__).with_name("fakes.py"),
    request={
        "models": [f"fake[does={does}]" for does in ("nothing", "sleeps", "background", *STATUSES)],
        "preset": "quick",
        "set": {"length": 8, "batch": 1, "d_model": 4, "mode": "forward", "rounds": 1, "budget": 0.5},
        "timeout": 20,
    },
    judge=judge,
)
