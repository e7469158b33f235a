"""Names -> plugins. Built-in layers, suites and tasks are found exactly as a stranger's are."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from bench.contract import Layer, Suite, Task
from bench.options import unknown

Kind = Literal["model", "suite", "task"]
CONTRACTS: dict[Kind, type] = {"model": Layer, "suite": Suite, "task": Task}
ROOT = Path(__file__).resolve().parent.parent
"""Where the built-in packages lie: the folder that holds bench, models and suites."""


@dataclass(frozen=True)
class Plugin:
    """A registered name; `load` imports it."""

    kind: Kind
    name: str
    source: str
    load: Callable[[], type]


class PluginError(ValueError):
    """A plugin that cannot be used, with the reason."""


_registered: dict[Kind, list[Plugin]] = {"model": [], "suite": [], "task": []}
_files: dict[Path, str] = {}


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
            source = f"{cls.__module__}.{cls.__qualname__}"
        kept = [p for p in _registered[kind] if (p.name, p.source) != (name, source)]  # a cell run twice in a notebook
        _registered[kind][:] = [*kept, Plugin(kind, name.lower(), source, lambda: cls)]
        return cls

    return add


def plugins(kind: Kind) -> dict[str, list[Plugin]]:
    """All plugins of a kind by name; more than one for a name is a conflict that `find` reports."""
    found: dict[str, list[Plugin]] = {}
    for point in entry_points(group=f"linrec_bench.{kind}s"):
        source = f"{point.value} of {point.dist.name if point.dist else '?'}"
        plugin = Plugin(kind, point.name.lower(), source, lambda point=point: _load(point))
        found.setdefault(plugin.name, []).append(plugin)
    for plugin in _registered[kind]:
        found.setdefault(plugin.name, []).append(plugin)
    return dict(sorted(found.items()))


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
    except Exception as error:
        raise PluginError(f"{kind} {name!r} ({plugin.source}): {type(error).__name__}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, CONTRACTS[kind])):
        raise PluginError(f"{kind} {name!r} ({plugin.source}) is no subclass of bench.{CONTRACTS[kind].__name__}")
    return cls


def load_file(path: Path) -> None:
    """Runs a plugin file, which registers what it holds. Its folder goes to the path's end, so it hides nothing."""
    path = path.resolve()
    if path in _files:
        return
    if not path.is_file():
        raise PluginError(f"--plugin {path}: there is no such file")
    name = f"bench_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"--plugin {path}: this is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PluginError(f"--plugin {path}: {type(error).__name__}: {error}") from error
    _files[path] = name


def code() -> dict[str, str]:
    """What a number may depend on: sha256 of all source files and plugin files, versions of plugins' distributions."""
    hashes = {}
    for package in ("bench", "models", "suites"):
        for path in sorted((ROOT / package).rglob("*.py")):
            hashes[path.relative_to(ROOT).as_posix()] = _digest(path.read_bytes())
    for path in sorted(_files):
        hashes[f"plugin {path.name}"] = _digest(path.read_bytes())
    for kind in CONTRACTS:
        for point in entry_points(group=f"linrec_bench.{kind}s"):
            if point.dist and not _is_own(point):
                hashes[f"distribution {point.dist.name}"] = point.dist.version
    return hashes


def code_id(hashes: dict[str, str]) -> str:
    """One short name for the code."""
    return _digest("\n".join(f"{name} {value}" for name, value in sorted(hashes.items())).encode())


def _load(point: EntryPoint) -> Any:
    if not _is_own(point):
        return point.load()
    package = point.module.partition(".")[0]
    try:
        loaded = point.load()
    except ImportError as error:
        hiding = _file_of(package)
        if hiding and not hiding.is_relative_to(ROOT):
            raise PluginError(f"the built-in {point.value} is hidden by {hiding}: move or rename that file") from error
        raise
    found = _file_of(point.module)
    if found and not found.is_relative_to(ROOT):
        raise PluginError(f"the built-in {point.value} is hidden by {found}: move or rename that file")
    return loaded


def _is_own(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == "linrec-bench"


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
