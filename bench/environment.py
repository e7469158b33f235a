"""What numbers were measured on: machine, versions, commit. Holds no path, no user name and no host name."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import backends, registry

PACKAGES = ("linrec-bench", "numpy", "scipy", "pandas", "pyarrow", "torch", "triton", "jax", "jaxlib", "flax", "optax")


def describe(probes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The environment of a run; `probes` is what each backend said of its devices."""
    devices = [name for probe in probes.values() for name in probe.get("devices", [])]
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": len(processors()),
        "memory_gib": memory_gib(),
        "gpus": sorted(set(devices)),
        "packages": packages(),
        **_commit(),
    }


def processors() -> list[int]:
    """The numbers of the processors that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def packages() -> dict[str, str]:
    """Versions of what is installed of `PACKAGES`."""
    return {name: found for name in PACKAGES if (found := _version(name))}


def identity(environment: dict[str, Any]) -> str:
    """A short name for an environment."""
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:12]


def probe(backend: str, timeout: float = 120) -> dict[str, Any]:
    """What a backend finds on this machine, asked in a process of its own: version, cuda, devices; or a reason."""
    command = [sys.executable, "-P", "-c", _PROBE, backend]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"{backend} was asked for its devices and gave no answer within {timeout:g} s"}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"reason": f"{backend} could not be asked for its devices (exit status {done.returncode}): {said}"}


_PROBE = """
import json, sys
from bench import backends
from bench.contract import Missing
try:
    found = backends.load(sys.argv[1]).describe()
except Missing as error:
    found = {"reason": str(error)}
except Exception as error:
    found = {"reason": f"{type(error).__name__}: {error}"}
print(json.dumps(found))
"""


def installed(backend: str) -> str | None:
    """None where all packages of a backend are installed, else what lacks and the line that installs it."""
    for package in backends.REQUIREMENTS[backend]:
        if not _version(package):
            return f"{package} is not installed: {backends.INSTALL[backend, 'cpu']}"
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory_gib() -> float | None:
    """The machine's memory, or null where it does not say."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _commit() -> dict[str, Any]:
    """Commit and whether files differ from it; null outside git or without git."""
    if not (registry.ROOT / ".git").exists():
        return {"commit": None, "dirty": None}
    try:
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(registry.ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
