"""Factors -> cells. A cell's id is a hash of its content, so it does not depend on order, machine or wording."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import backends, matching, registry, store
from bench.contract import Layer, Suite, Task, require
from bench.network import Network
from bench.options import build, convert, fields, format_name, parse_name, split_list, split_numbers, unknown

DTYPES = ("float32", "float64", "tf32", "bfloat16")
STANDARD_FACTORS = ("models", "tasks", "depths", "seeds", "dtypes")
LISTS = ("suite", "models", "backends", "dtypes", "tasks")
NUMBERS = ("depths", "seeds")
TEXTS = ("device", "preset", "data", "match")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for, named as on the command line; None is "as the suite's preset says"."""

    suite: list[str]
    models: list[str] | None = None
    backends: list[str] = dataclasses.field(default_factory=lambda: ["torch"])
    device: str = "auto"
    dtypes: list[str] | None = None
    tasks: list[str] | None = None
    depths: list[int] | None = None
    seeds: list[int] | None = None
    set: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    preset: str | None = None
    variants: bool = False
    plugin: list[str] = dataclasses.field(default_factory=list)
    data: str | None = None
    tokens: int | None = None
    match: str | None = None
    compile: bool = False

    @classmethod
    def parse(cls, **given: Any) -> Request:
        """From texts or lists, as typed; None is "not given". ValueError names the option and what is allowed."""
        values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        allowed = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in allowed:
                raise unknown("option", name, allowed)
        for name in TEXTS:
            value = values.get(name, "-")
            require(isinstance(value, str) and value != "", f"--{name} is {value!r}: give a text")
        for names, split in ((LISTS, split_list), (NUMBERS, split_numbers)):
            for name in names:
                if name in values:
                    try:
                        values[name] = split(values[name])
                    except (ValueError, TypeError) as error:
                        raise ValueError(f"--{name}: {error}") from error
                    require(bool(values[name]), f"--{name} is empty: name at least one")
        if "plugin" in values:
            values["plugin"] = paths("plugin", values["plugin"])
        if "suite" not in values:
            raise ValueError(f"--suite is not given: name one of {', '.join(registry.plugins('suite'))}")
        for name in ("variants", "compile"):
            flag = values.get(name, False)
            require(isinstance(flag, bool), f"--{name} is {flag!r}: true or false")
        tokens = values.get("tokens", 1)
        whole = isinstance(tokens, int) and not isinstance(tokens, bool)
        require(whole and tokens >= 1, f"--tokens is {tokens!r}: a whole number, at least 1")
        if values.get("match", matching.CRITERIA[0]) not in matching.CRITERIA:
            raise unknown("size in --match", values["match"], matching.CRITERIA)
        values["set"] = parse_settings(values.get("set", {}))
        for depth in values.get("depths", []):
            require(depth >= 1, f"--depths: a depth must be at least 1, not {depth}")
        for name, known in (("backends", backends.NAMES), ("dtypes", DTYPES)):
            for value in values.get(name, []):
                if value not in known:
                    raise unknown(name.rstrip("s"), value, known)
        device = values.get("device", "auto")
        kind, _, number = device.partition(":")
        require(
            device in ("auto", "cpu", "cuda") or (kind == "cuda" and number.isdecimal()),
            f"--device is {device!r}: allowed are auto, cpu, cuda, cuda:N",
        )
        return cls(**values)


def paths(option: str, given: str | Path | Iterable[str | Path]) -> list[str]:
    """File names, of which a single one needs no list; ValueError where one is none."""
    found = given if isinstance(given, list | tuple) else [given]
    for path in found:
        require(isinstance(path, str | Path) and str(path) != "", f"--{option} is {path!r}: give a file")
    return [str(path) for path in found]


def parse_settings(given: Iterable[str] | Mapping[str, Any]) -> dict[str, list[str]]:
    """`--set` as typed, `OPTION=V,..` each, or a table of values or lists of them, also nested: option -> values."""
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping):
        pairs = list(_flat(given))
    else:
        parts = [(text, *str(text).partition("=")) for text in given]
        for text, name, equals, _ in parts:
            require(bool(equals) and bool(name.strip()), f"--set {text!r} should read OPTION=VALUE")
        pairs = [(name, value) for _, name, _, value in parts]
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        try:
            values = split_list(value if isinstance(value, list | tuple) else str(value))
        except ValueError as error:
            raise ValueError(f"--set {name}: {error}") from error
        require(bool(values), f"--set {name} is empty: give at least one value")
        owner, dot, option = name.strip().rpartition(".")
        key = owner.lower() + dot + option
        found[key] = list(dict.fromkeys([*found.get(key, []), *values]))
    return found


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One fully specified unit of work."""

    suite: str
    suite_version: int
    model: str
    options: Mapping[str, Any]
    backend: str
    device: str
    dtype: str
    task: str | None
    task_options: Mapping[str, Any]
    depth: int
    d_model: int
    seed: int
    factors: Mapping[str, Any]
    compiled: bool = False
    match: Mapping[str, Any] | None = None
    """Why its sizes are what they are: `by`, `target`, `size`; None where nothing was matched. No part of the id."""

    @cached_property
    def id(self) -> str:
        """16 hexadecimal digits of a sha256 over the content."""
        content = {name: getattr(self, name) for name in _CONTENT}
        if not self.compiled:
            del content["compiled"]  # a cell that is not compiled has the id that it had before there was the choice
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def kind(self) -> str:
        """What cells share that differ by their seed alone: the same is compiled for them, and they take as long."""
        return dataclasses.replace(self, seed=0).id

    @property
    def plain_model(self) -> str:
        return parse_name(self.model)[0]

    @property
    def layer(self) -> Layer:
        options = dict(self.options) | {"d_model": self.d_model}
        return build(f"model {self.model}", registry.find("model", self.plain_model), options)

    @property
    def task_object(self) -> Task | None:
        if self.task is None:
            return None
        return build(f"task {self.task}", registry.find("task", parse_name(self.task)[0]), self.task_options)

    @property
    def suite_object(self) -> Suite:
        options = dict(self.factors) | {"d_model": self.d_model}
        return build(f"suite {self.suite}", registry.find("suite", self.suite), options)

    @property
    def network(self) -> Network | None:
        """What is trained on the cell's task; None without a task."""
        task = self.task_object
        return None if task is None else Network.of(self.layer, self.depth, task, self.suite_object.structure)

    @property
    def trained(self) -> int:
        """How many numbers the cell's network trains; without a task those of its layers alone."""
        network = self.network
        if network is None:
            return self.depth * matching.count(self.layer)
        roles = network.roles()
        return sum(w.size for name, w in network.initial(self.plain_model, 0).items() if roles[name] != "constant")

    @property
    def _d_state(self) -> int | None:
        found = self.options.get("d_state")
        return found if isinstance(found, int) else None

    def columns(self) -> dict[str, Any]:
        """The columns of the store that are known before anything is measured."""
        return {
            "schema_version": store.SCHEMA_VERSION, "cell_id": self.id, "suite": self.suite,
            "suite_version": self.suite_version, "model": self.model,
            "options": json.dumps(dict(self.options), sort_keys=True), "backend": self.backend, "device": self.device,
            "dtype": self.dtype, "task": self.task, "recipe": self.factors.get("recipe", "default"),
            "depth": self.depth, "d_model": self.d_model, "d_state": self._d_state, "seed": self.seed,
            "factors": json.dumps(dict(self.factors), sort_keys=True),
            "compiled": self.compiled or self.backend == "jax",
        }  # fmt: skip


_CONTENT = tuple(field.name for field in dataclasses.fields(Cell) if field.name != "match")


def cells(request: Request, device: str, preset: str) -> list[Cell]:
    """All cells, validated: every layer, task and suite of the plan has been built once. ValueError says what is wrong.

    `device` is the kind that was found (cpu or cuda), `preset` the preset that holds.
    """
    for plugin in request.plugin:
        registry.load_file(Path(plugin))
    settings = _Settings(request.set)
    suites = [registry.find("suite", parse_name(text)[0]) for text in request.suite]
    if request.tasks and not any(suite.takes_tasks for suite in suites):
        raise ValueError(f"--tasks: cells of the suite {parse_name(request.suite[0])[0]} have no task")
    planned = {
        cell.id: cell for suite in request.suite for cell in _suite_cells(suite, request, settings, device, preset)
    }
    settings.check_used()
    return list(planned.values())


class _Settings:
    """`--set NAME=V,..` and `--set OWNER.NAME=V,..`; knows which of them something has used."""

    def __init__(self, values: Mapping[str, list[str]]) -> None:
        self.values = values
        self.used: set[str] = set()
        self.known: set[str] = set()

    def pick(self, owner: str, names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, list[str]]:
        """The settings of an owner that has options of these names; plain names that are `taken` are someone else's."""
        found = {}
        for name in names:
            self.known |= {name, f"{owner}.{name}"}
            for key in (name, f"{owner}.{name}"):
                if key in self.values and not (key == name and name in taken):
                    found[name] = self.values[key]
                    self.used.add(key)
        return found

    def check_used(self) -> None:
        for name in self.values:
            if name not in self.used:
                raise unknown("option in --set", name, self.known)


def _suite_cells(text: str, request: Request, settings: _Settings, device: str, preset: str) -> Iterable[Cell]:
    name, given = parse_name(text)
    suite = registry.find("suite", name)
    if preset not in suite.presets:
        raise unknown(f"preset of suite {name}", preset, suite.presets)
    values = {key: value if isinstance(value, list) else [value] for key, value in suite.presets[preset].items()}
    own = fields(suite)
    for key in values:
        require(key in own or key in STANDARD_FACTORS or "." in key, f"suite {name}: its preset sets {key!r}")
    factors: dict[str, list[Any]] = {key: value for key, value in values.items() if key in own}
    asked = {key: [value] for key, value in convert(f"suite {name}", suite, given).items()} | settings.pick(name, own)
    if request.tokens is not None:
        require("tokens" in own, f"--tokens: the suite {name} has no batch that could hold batch x length constant")
        require("tokens" not in asked, "--tokens and --set tokens: give one of them")
        asked["tokens"] = [request.tokens]
    for key, other in suite.alternatives.items():
        require(not {key, other} <= asked.keys(), f"suite {name}: {key} and {other} say the same: give one of them")
        if key in asked:
            factors.pop(other, None)
    factors |= asked

    tasks = (request.tasks or values.get("tasks", [])) if suite.takes_tasks else []
    depths = request.depths or values.get("depths", [1])
    seeds = request.seeds or values.get("seeds", [0, 1, 2])
    dtypes = request.dtypes or values.get("dtypes", ["float32"])
    models = request.models or values.get("models") or registry.built_in("model")
    task_cells: list[tuple[str | None, dict[str, Any]]]
    task_cells = [cell for task in tasks for cell in _task_options(task, values, settings, own)] or [(None, {})]
    model_cells = list(dict(_model_options(models, values, request.variants, settings, own)).items())
    named = dict(_model_options(models, values, False, settings, own))  # what is there without --variants
    classes = {model: registry.find("model", parse_name(model)[0]) for model, _ in model_cells}
    require(not request.compile or suite.compiles, f"--compile: cells of the suite {name} are not compiled by torch")

    for depth, (task, task_options) in itertools.product(depths, task_cells):
        for choice in itertools.product(*factors.values()):
            built = build(f"suite {name}", suite, dict(zip(factors, choice, strict=True)))
            fitted = {
                model: _adapted(name, built, parse_name(model)[0], task, asked, depth, request) for model in classes
            }
            options = {}
            for model, chosen in model_cells:
                given_options, d_model = dict(fitted[model][2]) | chosen, fitted[model][0].d_model
                try:
                    options[model] = _built_options(model, classes[model], given_options, d_model)
                except ValueError as error:
                    require(model in named, f"--variants: {error}")
                    raise
            matches: dict[str, dict[str, Any]] = {}
            if request.match:
                length, widths = getattr(built, "length", 1024), {fit.d_model for fit, *_ in fitted.values()}
                require(len(widths) == 1, f"--match: the recipe gives the models different d_model: {sorted(widths)}")
                own_options = {model: fitted[model][2] for model, _ in model_cells}
                options, matches = _matched(
                    model_cells, options, own_options, classes, widths.pop(), request.match, length
                )
                fitted = dict(zip(options, fitted.values(), strict=True))  # by their new names
            for model, (fit, *_) in fitted.items():
                cls = registry.find("model", parse_name(model)[0])
                fit.check(build(f"model {model}", cls, options[model] | {"d_model": fit.d_model}))
            factors_of = {model: _factors(fit) for model, (fit, *_) in fitted.items()}
            # seeds last: cells that differ by it alone follow one another, and a worker compiles once for all of them
            for model, backend, dtype, seed in itertools.product(options, request.backends, dtypes, seeds):
                fit, own_depth, _ = fitted[model]
                yield Cell(
                    suite=name,
                    suite_version=suite.version,
                    model=model,
                    options=options[model],
                    backend=backend,
                    device=device,
                    dtype=dtype,
                    task=task,
                    task_options=task_options,
                    depth=own_depth,
                    d_model=fit.d_model,
                    seed=seed,
                    factors=factors_of[model],
                    compiled=request.compile and backend == "torch",
                    match=matches.get(model),
                )


def _factors(suite: Suite) -> dict[str, Any]:
    """A cell's own factors: but for one that an alternative stands in for, which has no value unless it is given."""
    values = {key: getattr(suite, key) for key in fields(type(suite)) if key != "d_model"}
    defaults = {field.name: field.default for field in dataclasses.fields(suite)}
    replaced = {
        key for key, other in suite.alternatives.items() if defaults[other] is None and values[other] is not None
    }
    return {key: value for key, value in values.items() if key not in replaced}


def _adapted(
    name: str, suite: Suite, model: str, task: str | None, asked: Mapping[str, Any], depth: int, request: Request
) -> tuple[Suite, int, Mapping[str, Any]]:
    """The suite, the depth and the model's options as the suite adapts them; what the user has given goes before."""
    found = suite.adapt(model, task)
    closed = asked.keys() | {suite.alternatives[key] for key in asked.keys() & suite.alternatives.keys()}
    factors = {key: value for key, value in found.factors.items() if key not in closed}
    values = {key: getattr(suite, key) for key in fields(type(suite))} | factors | dict(found.fixed)
    fit = build(f"suite {name}", type(suite), values)
    return fit, found.depth if found.depth and not request.depths else depth, found.options


def _matched(
    models: list[tuple[str, dict[str, Any]]],
    options: dict[str, dict[str, Any]],
    adapted: Mapping[str, Mapping[str, Any]],
    classes: Mapping[str, type[Layer]],
    d_model: int,
    by: str,
    length: int,
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Options of all models at the first one's size, by their new names, and what became of each.

    Of the options that a suite `adapted` all hold but the d_state of the others.
    """
    first = models[0][0]
    target = matching.size(classes[first](**options[first], d_model=d_model), by, length)
    found, matches = {first: options[first]}, {first: {"by": by, "target": target, "size": target}}
    for model, chosen in models[1:]:
        cls = classes[model]
        if "d_state" not in fields(cls):
            raise ValueError(f"--match {by}: {model} has no d_state that could be set")
        if "d_state" in chosen:
            raise ValueError(f"--match {by} sets the d_state of {model}, which is given as well")
        sized, reached = matching.match(cls, dict(adapted[model]) | chosen, d_model, by, target, length)
        name = format_name(parse_name(model)[0], cls, chosen | {"d_state": sized["d_state"]})
        found[name] = _built_options(name, cls, sized, d_model)
        matches[name] = {"by": by, "target": target, "size": reached}
    return found, matches


def _built_options(model: str, cls: type, options: Mapping[str, Any], d_model: int) -> dict[str, Any]:
    """All options of a layer, defaults included, as the built layer has them."""
    layer = build(f"model {model}", cls, dict(options) | {"d_model": d_model})
    return {key: getattr(layer, key) for key in fields(cls) if key != "d_model"}


def _model_options(
    models: Iterable[str],
    preset: Mapping[str, list[Any]],
    variants: bool,
    settings: _Settings,
    taken: Iterable[str],
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Canonical name and options of every chosen model, its variants and its settings, which go before a preset's."""
    for text in models:
        name, given = parse_name(text)
        cls = registry.find("model", name)
        require(
            "d_model" not in given, f"model {text}: d_model is the suite's, write --set d_model={given.get('d_model')}"
        )
        options = convert(f"model {name}", cls, given)
        names = [key for key in fields(cls) if key != "d_model"]
        varied = {key: preset[f"{name}.{key}"] for key in names if f"{name}.{key}" in preset and key not in options}
        varied |= settings.pick(name, names, taken)
        for extra in [{}, *cls.variants.values()] if variants else [{}]:
            for choice in itertools.product(*varied.values()):
                chosen = options | dict(extra) | convert(f"model {name}", cls, dict(zip(varied, choice, strict=True)))
                yield format_name(name, cls, chosen), chosen


def _task_options(
    text: str, preset: Mapping[str, list[Any]], settings: _Settings, taken: Iterable[str]
) -> Iterable[tuple[str, dict[str, Any]]]:
    name, given = parse_name(text)
    cls = registry.find("task", name)
    defaults = {key: preset[f"{name}.{key}"] for key in fields(cls) if f"{name}.{key}" in preset}
    own = {key: [value] for key, value in given.items()} | settings.pick(name, fields(cls), taken)
    try:
        yield from _task_choices(name, cls, defaults | own)
    except ValueError:
        if not own or not defaults:
            raise
        yield from _task_choices(name, cls, own)  # the preset's options do not go with the user's, which win


def _task_choices(name: str, cls: type, varied: Mapping[str, list[Any]]) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for choice in itertools.product(*varied.values()):
        built = build(f"task {name}", cls, dict(zip(varied, choice, strict=True)))
        options = {key: getattr(built, key) for key in fields(cls)}
        found.append((format_name(name, cls, options), options))
    return found


def current(cell: Cell) -> Cell:
    """A stored cell as this code plans it: with the version of its suite, and all options that there are now.

    ValueError: the model, task or suite is not here, or lacks an option that the cell has.
    """
    layer, task, suite = cell.layer, cell.task_object, cell.suite_object
    return dataclasses.replace(
        cell,
        suite_version=suite.version,
        options={key: getattr(layer, key) for key in fields(type(layer)) if key != "d_model"},
        task_options={} if task is None else {key: getattr(task, key) for key in fields(type(task))},
        factors=_factors(suite),
    )


def shard(planned: list[Cell], text: str) -> list[Cell]:
    """Every N-th cell, from the I-th on, of the plan sorted by id: `I/N`, I = 1 .. N."""
    first, slash, count = text.partition("/")
    require(
        slash == "/" and first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count),
        f"--shard is {text!r}: it must read I/N with 1 <= I <= N",
    )
    return sorted(planned, key=lambda cell: cell.id)[int(first) - 1 :: int(count)]
