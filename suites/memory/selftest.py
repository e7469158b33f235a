"""What the suite `memory` must say of a layer that allocates a known amount."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from bench.report.units import figure
from bench.selftest import Check, Selftest
from suites.memory.report import Held

ALLOCATED = 256 * 2**20
TOLERANCE = 0.1


def judge(results: pd.DataFrame) -> list[Check]:
    """The amount within a tenth, by the system and by the allocator where there is one."""
    groups = {group.key["model"]: group for group in Held.of(results)}
    allocates, nothing = groups["fake[does=allocates]"], groups.get("fake") or groups["fake[does=nothing]"]
    checks = []
    for name, source in (("peak_system", "the system"), ("peak_allocator", "the allocator")):
        size = allocates.bytes(name)
        if size is None:
            reason = allocates.metric(name)["message"].dropna()
            text = reason.iloc[0] if len(reason) else " ".join(allocates.cells["status"])
            passed = None if name == "peak_allocator" and allocates.ok else False
            checks.append(Check(what=f"memory, by {source}", planted="256 MiB", found=text, passed=passed))
            continue
        checks.append(
            Check(
                what=f"a layer that allocates, by {source}",
                planted=f"{ALLOCATED / 2**20:.0f} MiB",
                found=f"{size / 2**20:.1f} MiB",
                passed=abs(size - ALLOCATED) <= TOLERANCE * ALLOCATED,
                printed=f"{(size - ALLOCATED) / 2**20:+.1f} MiB",
            )
        )
    floor = nothing.bytes("peak_system")
    text = "-" if floor is None else f"{figure(floor / 1024)} KiB"
    return [*checks, Check(what="smallest memory: a call that does nothing", planted="-", found=text, passed=None)]


SELFTEST = Selftest(
    plugin=Path(__file__).parents[1] / "throughput" / "fakes.py",
    request={
        "models": ["fake[does=allocates]", "fake[does=nothing]"],
        "preset": "quick",
        "set": {"length": 8, "batch": 1, "d_model": 4, "mode": "forward"},
    },
    judge=judge,
)
