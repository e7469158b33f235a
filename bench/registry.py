"""Names -> plugins. Built-in layers, suites and tasks are found exactly as a stranger's are."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, overload

from bench.contract import Layer, Suite, Task
from bench.options import unknown

Kind = Literal["model", "suite", "task"]
CONTRACTS: dict[Kind, type] = {"model": Layer, "suite": Suite, "task": Task}
OWN = "linrec-bench"
ROOT = Path(__file__).resolve().parent.parent
"""Where the built-in packages lie: the folder that holds bench, models and suites."""


@dataclass(frozen=True)
class Plugin:
    """A registered name; `load` imports it. A decorator in a plugin file has that `file`, elsewhere None."""

    kind: Kind
    name: str
    source: str
    load: Callable[[], type]
    file: Path | None = None


class PluginError(ValueError):
    """A plugin that cannot be used, with the reason."""


_registered: dict[Kind, list[Plugin]] = {"model": [], "suite": [], "task": []}
_files: dict[Path, str] = {}
"""Plugin files that were loaded -> the digest of what they held then."""
_loading: list[Path] = []
"""The plugin file that is being loaded just now, if any."""


class register:
    """Decorators for a file that is used with --plugin, or a notebook: `@bench.register.model("mine")`."""

    @staticmethod
    def model(name: str) -> Callable[[type], type]:
        return _decorator("model", name)

    @staticmethod
    def suite(name: str) -> Callable[[type], type]:
        return _decorator("suite", name)

    @staticmethod
    def task(name: str) -> Callable[[type], type]:
        return _decorator("task", name)


def _decorator(kind: Kind, name: str) -> Callable[[type], type]:
    def add(cls: type) -> type:
        try:
            source = inspect.getfile(cls)
        except (TypeError, OSError):  # a class that was typed into an interpreter
            source = cls.__module__
        file = _loading[-1] if _loading else None
        plugin = Plugin(kind, name.lower(), f"{cls.__qualname__} in {source}", lambda: cls, file)
        # the same class once more is a notebook's cell that was run again
        kept = [p for p in _registered[kind] if (p.name, p.source) != (plugin.name, plugin.source)]
        _registered[kind][:] = [*kept, plugin]
        return cls

    return add


def plugins(kind: Kind) -> dict[str, list[Plugin]]:
    """All plugins of a kind by name; more than one for a name is a conflict that `find` reports."""
    found: dict[str, list[Plugin]] = {}
    for point, owner in _entry_points(kind):
        source = f"{point.value} of {owner or '?'}"
        plugin = Plugin(kind, point.name.lower(), source, functools.partial(_load, point, owner))
        found.setdefault(plugin.name, []).append(plugin)
    for plugin in _registered[kind]:
        found.setdefault(plugin.name, []).append(plugin)
    return dict(sorted(found.items()))


def built_in(kind: Kind) -> list[str]:
    """The names that this distribution itself registers, in the order of its metadata; of models no comparators."""
    names = [point.name.lower() for point, owner in _entry_points(kind) if owner == OWN]
    return [name for name in names if not (kind == "model" and find("model", name).comparator)]


@overload
def find(kind: Literal["model"], name: str) -> type[Layer]: ...
@overload
def find(kind: Literal["suite"], name: str) -> type[Suite]: ...
@overload
def find(kind: Literal["task"], name: str) -> type[Task]: ...
def find(kind: Kind, name: str) -> type:
    """The class behind a name; ValueError for an unknown name, two plugins of one name, or one that does not load."""
    known = plugins(kind)
    if name not in known:
        raise unknown(kind, name, known)
    candidates = known[name]
    if len(candidates) > 1:
        sources = " and ".join(plugin.source for plugin in candidates)
        raise PluginError(f"{kind} {name!r} is registered twice: by {sources}")
    plugin = candidates[0]
    try:
        cls = plugin.load()
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{kind} {name!r} ({plugin.source}): {type(error).__name__}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, CONTRACTS[kind])):
        raise PluginError(f"{kind} {name!r} ({plugin.source}) is no subclass of bench.{CONTRACTS[kind].__name__}")
    return cls


def load_file(path: Path) -> None:
    """Runs a plugin file, which registers what it holds; again only after it was changed.

    Its folder goes to the path's end, so it hides nothing. PluginError where there is no such file or it fails.
    """
    path = path.resolve()
    if not path.is_file():
        raise PluginError(f"--plugin {path}: there is no such file")
    digest = _digest(path.read_bytes())
    if _files.get(path) == digest:
        return
    name = f"bench_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"--plugin {path}: this is no Python file")
    for registered in _registered.values():  # what the file held before it was changed
        registered[:] = [plugin for plugin in registered if plugin.load().__module__ != name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    _loading.append(path)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PluginError(f"--plugin {path}: {type(error).__name__}: {error}") from error
    finally:
        _loading.pop()
    _files[path] = digest


def is_local(kind: Kind, name: str) -> bool:
    """Whether only a decorator in this very process registers the name, so that no worker could find it."""
    return any(plugin.name == name and plugin.file is None for plugin in _registered[kind])


def code() -> dict[str, str]:
    """What a number may depend on: digests of all source files, plugin files, and of what plugins' distributions hold.

    Name of a file or distribution -> digest.
    """
    hashes = {}
    for package in ("bench", "models", "suites"):
        for path in sorted((ROOT / package).rglob("*.py")):
            hashes[path.relative_to(ROOT).as_posix()] = _digest(path.read_bytes())
    for path in sorted(_files):
        if path.is_file():
            name = f"plugin {path.name}"
            hashes[name] = _digest((hashes.get(name, "") + _digest(path.read_bytes())).encode())
    for kind in CONTRACTS:
        for point, owner in _entry_points(kind):
            if point.dist and owner != OWN:
                top = _found(point.module.partition(".")[0])
                files = sorted(top.parent.rglob("*.py")) if top and top.name == "__init__.py" else [top] if top else []
                content = b"".join(path.read_bytes() for path in files)
                hashes[f"distribution {owner}"] = f"{point.dist.version} {_digest(content)}"
    return hashes


def code_id(hashes: dict[str, str]) -> str:
    """One short name for the code."""
    return _digest("\n".join(f"{name} {value}" for name, value in sorted(hashes.items())).encode())


def _entry_points(kind: Kind) -> tuple[tuple[EntryPoint, str | None], ...]:
    """What is installed now, each with its distribution's name; looked for again where a folder of the path changed."""
    folders = tuple((folder, os.stat(folder).st_mtime_ns) for folder in sys.path if os.path.isdir(folder))
    return _installed(f"linrec_bench.{kind}s", folders)


@functools.lru_cache(maxsize=16)
def _installed(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[tuple[EntryPoint, str | None], ...]:
    # each look at a distribution's name parses its metadata
    return tuple((point, point.dist.name if point.dist else None) for point in entry_points(group=group))


def _load(point: EntryPoint, owner: str | None) -> Any:
    if owner != OWN:
        return point.load()
    package = point.module.partition(".")[0]
    _refuse_hidden(point, package, _found(package))  # before it is imported: a stranger's file is not run
    loaded = point.load()
    _refuse_hidden(point, package, Path(sys.modules[point.module].__file__ or ""))
    return loaded


def _refuse_hidden(point: EntryPoint, package: str, file: Path | None) -> None:
    if file and not file.resolve().is_relative_to(ROOT / package):
        raise PluginError(f"the built-in {point.value} is hidden by {file}: move or rename that file")


def _found(module: str) -> Path | None:
    """The file that an import of a top-level module would run, or has run."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
