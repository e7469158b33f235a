"""What numbers were measured with: code, versions, machine, threads; and what of that differs between two sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench import environment, registry, store
from bench.report.blocks import Block, Note, Table

FILES_SHOWN = 5


@dataclass(frozen=True)
class Provenance:
    """`facts`: name (code, commit, a package, cpu, ..) -> all values that cells had; `files`: source -> its digests."""

    facts: Mapping[str, frozenset[str]]
    files: Mapping[str, frozenset[str]]

    @classmethod
    def of_cells(cls, results: pd.DataFrame, folders: list[Path]) -> Provenance:
        """Of the cells in `results` that have a result; `folders` are their runs'."""
        cells = results.drop_duplicates("cell_id")
        codes = set(cells["code"].dropna())
        facts = [{"code": code} for code in codes]
        facts += [{"threads": str(threads)} for threads in cells["threads"].dropna().unique()]
        environments = sorted(cells["env_id"].dropna().unique())
        files = []
        for folder in folders:  # whatever they are called by now
            hashes = store.load_json(folder / "run.json").get("code", {})
            files += [hashes] if registry.code_id(hashes) in codes else []
            paths = [folder / "environments" / f"{env_id}.json" for env_id in environments]
            facts += [_facts(store.load_json(path)) for path in paths if path.exists()]
        return cls(_together(facts), _together(files))

    @classmethod
    def of_process(cls, hashes: dict[str, str], probes: dict[str, dict[str, Any]], threads: int) -> Provenance:
        """Of what would be measured now."""
        facts = {"code": registry.code_id(hashes), "threads": str(threads)} | _facts(environment.describe(probes))
        return cls(_together([facts]), _together([hashes]))


def differences(before: Provenance, after: Provenance, first: str, second: str) -> list[Block]:
    """A table of what differs, under the names `first` and `second`; a line where nothing does."""
    names = [n for n in {**before.facts, **after.facts} if before.facts.get(n) != after.facts.get(n)]
    if not names:
        return [Note("Code, packages, machine and threads are the same.")]
    rows = [[name, _text(before.facts.get(name)), _text(after.facts.get(name))] for name in names]
    files = sorted(n for n in {**before.files, **after.files} if before.files.get(n) != after.files.get(n))
    notes = []
    if "code" in names and not (before.files and after.files):
        notes.append(f"Which files differ is not known: {first if after.files else second} kept no digests of them.")
    elif files and "code" in names:
        more = f" and {len(files) - FILES_SHOWN} more" if len(files) > FILES_SHOWN else ""
        notes.append(f"Changed in the code: {', '.join(files[:FILES_SHOWN])}{more}")
    return [Table("Measured with", ["what differs", first, second], rows, notes)]


def commit(environment: Mapping[str, Any]) -> str:
    """The commit of a stored environment, short, and whether files differed from it."""
    return (environment.get("commit") or "no commit")[:10] + (" with changes" if environment.get("dirty") else "")


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text, of all that an environment holds."""
    plain = {name: str(environment.get(name)) for name in ("cpu", "cores", "memory_gib", "python", "system")}
    gpus = ", ".join(environment.get("gpus") or []) or "none"
    return {"commit": commit(environment)} | plain | {"gpus": gpus} | dict(environment.get("packages") or {})


def _together(found: list[dict[str, str]]) -> dict[str, frozenset[str]]:
    names = dict.fromkeys(name for one in found for name in one)
    return {name: frozenset(one[name] for one in found if name in one) for name in names}


def _text(values: frozenset[str] | None) -> str:
    return ", ".join(sorted(values)) if values else "-"
