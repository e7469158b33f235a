"""What else the machine did while something was measured: load, stolen time, other processes, clocks, throttling."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

STOLEN = 0.05
"""The share of processor time that a hypervisor may take for others before a block counts as disturbed."""

REPEATS = 2
"""How often a block that was throttled is measured again at most."""

# a power cap is a GPU's normal state under load, and so is none of these
THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")

Found = TypeVar("Found")


class Watch:
    """Looks at the machine before and after a block."""

    def __init__(self, device: str) -> None:
        self.gpu = int(device.partition(":")[2] or 0) if device.startswith("cuda") else None
        self.before, self.own, self.clock = _jiffies(), _own_seconds(), time.monotonic()
        self.throttles = _throttle_counts()
        self.reasons = _gpu(self.gpu)[1]

    def report(self) -> dict[str, Any]:
        """Facts since this was made; what the machine does not tell is null.

        `load_1m`; `steal`, `other`: shares of all processors' time that a hypervisor and that other processes took;
        `clock_mhz`; `throttled`: why clocks were held down, empty if they were not.
        """
        after, seconds = _jiffies(), max(time.monotonic() - self.clock, 1e-9)
        steal = other = None
        if self.before and after:
            total = max(sum(after) - sum(self.before), 1)
            idle = after[3] + after[4] - self.before[3] - self.before[4]
            steal = (after[7] - self.before[7]) / total
            own = (_own_seconds() - self.own) / seconds / (os.cpu_count() or 1)
            other = max(0.0, 1 - idle / total - steal - own)
        clock, reasons = _gpu(self.gpu)
        throttled = sorted({*self.reasons, *reasons})
        if _throttle_counts() > self.throttles:
            throttled.append("processor throttled")
        if steal is not None and steal > STOLEN:
            throttled.append("time stolen")
        return {
            "load_1m": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            "steal": None if steal is None else round(steal, 4),
            "other": None if other is None else round(other, 4),
            "clock_mhz": clock if self.gpu is not None else _clock(),
            "throttled": throttled,
        }


def undisturbed(device: str, block: Callable[[], Found]) -> tuple[Found, dict[str, Any]]:
    """What a block returns and what the machine did meanwhile; throttled, it is measured anew at most twice."""
    for repeat in range(REPEATS + 1):
        watch = Watch(device)
        found = block()
        facts = watch.report() | {"repeated": repeat}
        if not facts["throttled"]:
            break
    return found, facts


def _jiffies() -> list[int] | None:
    """user, nice, system, idle, iowait, irq, softirq, steal of all processors since the machine started."""
    try:
        return [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None


def _own_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _throttle_counts() -> int:
    total = 0
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            total += int(path.read_text())
        except (OSError, ValueError):
            continue
    return total


def _clock() -> float | None:
    """The mean clock of the processors that this process may use, MHz."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    except (OSError, ValueError):
        return None
    return round(sum(clocks) / len(clocks), 1) if clocks else None


def _gpu(number: int | None) -> tuple[float | None, list[str]]:
    """The GPU's clock, MHz, and the reasons why it is held down, as nvidia-smi tells them."""
    if number is None:
        return None, []
    fields = [f"clocks_event_reasons.{name}" for name in THROTTLES]
    command = ["nvidia-smi", f"--query-gpu=clocks.sm,{','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
        clock, *active = [part.strip() for part in lines[number].split(",")]
        return float(clock), [name for name, state in zip(THROTTLES, active, strict=True) if state == "Active"]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None, []
