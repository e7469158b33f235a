"""A small repository that asv measures, and results as asv writes them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

CONFIG = {
    "version": 1, "project": "small", "repo": ".", "branches": ["HEAD"], "environment_type": "existing",
    "benchmark_dir": "figures", "results_dir": "results/asv", "html_dir": ".asv/html", "env_dir": ".asv/env",
}  # fmt: skip


BENCHMARKS = """
def setup(backend):
    if backend == ABSENT:
        raise NotImplementedError(f"{backend} is not here")

def track_time(backend):
    return {"samples": [SECONDS + 0.001 * i for i in range(20)], "number": 1}

def track_memory(backend):
    if backend == FAILS:
        raise MemoryError("too little")
    return 100

track_time.unit, track_memory.unit = "s", "B"
params, param_names, version = [["torch", "jax"]], ["backend"], "1"
"""


def git(folder: Path, *words: str) -> str:
    """git with an author of its own and none of the user's settings."""
    own = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", "-C", str(folder)]
    done = subprocess.run(["git", *own, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Project:
    """A small repository with asv benchmarks, whose values its source says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "figures").mkdir(parents=True)
        (folder / "figures" / "__init__.py").touch()
        (folder / "asv.conf.json").write_text(json.dumps(CONFIG))
        (folder / ".gitignore").write_text("results/\n.asv/\n__pycache__/\n")
        git(folder, "init", "--quiet")

    def write(self, seconds: float = 1.0, absent: str = "", fails: str = "") -> None:
        text = f"SECONDS, ABSENT, FAILS = {seconds!r}, {absent!r}, {fails!r}\n"
        (self.folder / "figures" / "small.py").write_text(text + BENCHMARKS)

    def commit(self, **values) -> str:
        self.write(**values)
        git(self.folder, "add", ".")
        git(self.folder, "commit", "--quiet", "--message", f"{values}")
        return git(self.folder, "rev-parse", "HEAD")

    @property
    def results(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("results/asv/*/*.json") if path.name != "machine.json")


COLUMNS = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b"]


def write_results(folder: Path, commit: str, rows: dict, machine: str = "m", date: int = 0, **params: str) -> None:
    """A file as asv writes it."""
    content = {"commit_hash": commit, "date": date, "params": {"machine": machine} | params, "env_name": "e",
               "result_columns": COLUMNS, "results": rows, "version": 2}  # fmt: skip
    (folder / machine).mkdir(parents=True, exist_ok=True)
    (folder / machine / f"{commit[:8]}-e{params.get('tree', '')}.json").write_text(json.dumps(content))


def row(values: list | None, names: list[str], version: str = "1") -> list:
    return [values, [[f"'{name}'" for name in names]], version, 1]
