"""Recipes from TOML files: what a model on a task is trained with, typed and checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bench import registry
from bench.contract import Adaptation, Suite, require
from bench.options import convert, parse_name, unknown

HERE = Path(__file__).parent
BUILT_IN = ("quick", "paper")
TEXTS = ("source", "gaps")
"""What a section says to its reader: where its values come from, and which had to be chosen here."""


def adaptation(suite: type[Suite], recipe: str, model: str, task: str) -> Adaptation:
    """What a recipe asks of a model on a task: the later of [default], [models.M], [tasks.T] and [M.T] goes first.

    T may have options, as in [lru."pathfinder[size=128]"]: it then goes before the plain name, for tasks with these.
    `suite` has the factors that a recipe sets. `recipe` is `default`, a built-in one, or a TOML file. ValueError: no
    such recipe, an unknown key or a value that does not fit, with its section; or nothing for this model and task in a
    recipe without [default].
    """
    if recipe == "default":
        return Adaptation()
    sections = _read(suite, recipe)
    found = [name for name in ("default", f"models.{model}") if name in sections]
    for owner in ("tasks", model):
        own = [name for name in sections if name.startswith(f"{owner}.") and _fits(name.partition(".")[2], task)]
        if recipe == "paper" and not _covers((name.partition(".")[2] for name in own), task):
            own = []
        found += sorted(own, key=len)
    known = sorted(name.partition(".")[2] for name in sections if name.startswith(f"{model}."))
    require(
        "default" in sections or any(name.startswith(f"{model}.") for name in found),
        f"recipe {recipe}: it has nothing for {model} on {task}: it has {', '.join(known) or 'nothing'}",
    )
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name in found:
        content = dict(sections[name])
        options |= content.pop("options", {})
        if content.keys() & {"steps", "epochs"}:
            values.pop("steps", None), values.pop("epochs", None)
        values |= {key: value for key, value in content.items() if key not in TEXTS}
    depth = values.pop("depth", None)
    return Adaptation(factors=values, fixed={"recipe": Path(recipe).stem}, options=options, depth=depth)


ALIKE = {"origin", "preprocessing", "rate", "zero_shot", "train", "validation", "test"}
"""Options of tasks that change where data come from, how many there are or what is tested, and not what is learnt."""


def _fits(section: str, task: str) -> bool:
    """Whether a section's task is this one: of the same name, with all the options that the section names."""
    (name, wanted), (plain, options) = parse_name(section), parse_name(task)
    return name == plain and wanted.items() <= options.items()


def _covers(sections: Iterable[str], task: str) -> bool:
    """Whether the task has no other options than these sections name, and `ALIKE`: else it is another task."""
    named = {option for section in sections for option in parse_name(section)[1]}
    return parse_name(task)[1].keys() <= named | ALIKE


@cache
def _read(suite: type[Suite], recipe: str) -> Mapping[str, Mapping[str, Any]]:
    path = HERE / f"{recipe}.toml" if recipe in BUILT_IN else Path(recipe)
    require(
        recipe in BUILT_IN or path.suffix == ".toml",
        f"recipe is {recipe!r}: allowed are default, {', '.join(BUILT_IN)} and a file that ends in .toml",
    )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"recipe {recipe}: {error.strerror or 'it cannot be read'}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {recipe}: {error}") from error
    sections: dict[str, Mapping[str, Any]] = {}
    for name, value in content.items():
        require(isinstance(value, dict), f"recipe {recipe}: {name} stands outside of a section")
        if name == "default":
            sections[name] = _checked(suite, recipe, name, value)
        else:
            for inner, section in value.items():
                require(isinstance(section, dict), f"recipe {recipe}: [{name}] holds {inner}, which is no section")
                _check_names(recipe, name, inner)
                sections[f"{name}.{inner}"] = _checked(suite, recipe, f"{name}.{inner}", section)
    return sections


def _check_names(recipe: str, owner: str, inner: str) -> None:
    """ValueError unless [owner.inner] names models and tasks, with options, that there are."""
    at = f"recipe {recipe}, [{owner}.{inner}]"
    models = registry.plugins("model")
    if owner not in ("models", "tasks", *models):
        raise unknown(f"section in recipe {recipe}:", owner, ("default", "models", "tasks", *models))
    kind: registry.Kind = "model" if owner == "models" else "task"
    name, options = parse_name(inner)
    known = registry.plugins(kind)
    if name not in known:
        raise unknown(f"{kind} in {at}", name, known)
    convert(at, registry.find(kind, name), options)


def _checked(suite: type[Suite], recipe: str, name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """The section in the types of the suite's factors and the model's options."""
    owner = f"recipe {recipe}, [{name}]"
    content = dict(section)
    kept = {key: str(content.pop(key)) for key in TEXTS if key in content}
    options, depth = content.pop("options", None), content.pop("depth", None)
    require("recipe" not in content, f"{owner} names another recipe")
    for key, other in suite.alternatives.items():
        require(not {key, other} <= content.keys(), f"{owner}: {key} and {other} say the same: give one of them")
    found = kept | convert(owner, suite, content)
    if depth is not None:
        whole = isinstance(depth, int) and not isinstance(depth, bool)
        require(whole and depth >= 1, f"{owner} option depth is {depth!r}: it must be a whole number of at least 1")
        found["depth"] = depth
    if options is not None:
        kind, _, inner = name.partition(".")
        model = inner if kind == "models" else kind
        require(kind not in ("tasks", "default"), f"{owner} has options of a model, and names none")
        found["options"] = convert(f"{owner} options", registry.find("model", model), options)
    return found
