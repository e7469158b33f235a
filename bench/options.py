"""Names with options, as the command line, files and rows write them: `lru[gamma=tied,d_state=32]`."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any


def split_list(text: str | Iterable[Any]) -> list[str]:
    """The items of a comma-separated text, or of several; commas in brackets do not separate. Duplicates count once."""
    texts = [text] if isinstance(text, str) else [str(item) for item in text]
    items = []
    for one in texts:
        depth, item = 0, ""
        for character in one + ",":
            depth += {"[": 1, "]": -1}.get(character, 0)
            if character == "," and depth == 0:
                items.append(item.strip())
                item = ""
            else:
                item += character
        if item.strip(","):
            raise ValueError(f"unbalanced bracket in {one!r}")
    return list(dict.fromkeys(item for item in items if item))


def split_numbers(text: str | int | Iterable[Any]) -> list[int]:
    """Whole numbers and ranges of them: `0-4,7` is 0, 1, 2, 3, 4, 7."""
    numbers: list[int] = []
    for item in split_list(text if isinstance(text, str) else [text] if isinstance(text, int) else text):
        first, dash, last = item.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{item!r} is no whole number and no range like 0-4")
        if dash and int(last) < int(first):
            raise ValueError(f"{item!r} is an empty range: the smaller number comes first")
        numbers += range(int(first), int(last) + 1) if dash else [int(first)]
    return list(dict.fromkeys(numbers))


def parse_name(text: str) -> tuple[str, dict[str, str]]:
    """`lru[gamma=tied]` -> ("lru", {"gamma": "tied"}). Names are lower case; upper case is accepted."""
    name, bracket, rest = text.partition("[")
    if not bracket:
        return name.strip().lower(), {}
    if not rest.endswith("]"):
        raise ValueError(f"{text!r} lacks its closing bracket")
    options = {}
    for item in split_list(rest[:-1]):
        option, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"{item!r} in {text!r} should read OPTION=VALUE")
        if option.strip() in options:
            raise ValueError(f"{option.strip()} stands twice in {text!r}")
        options[option.strip()] = value.strip()
    return name.strip().lower(), options


def format_name(name: str, cls: type, options: Mapping[str, Any]) -> str:
    """The name with those options that differ from the defaults, in the order of the fields."""
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    shown = [
        f"{field.name}={_text(options[field.name])}"
        for field in dataclasses.fields(cls)
        if field.name in options and options[field.name] != defaults[field.name]
    ]
    return f"{name}[{','.join(shown)}]" if shown else name


def fields(cls: type) -> dict[str, Any]:
    """The options of a dataclass: name -> type. ValueError for types that no command line can write."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        raise ValueError(f"{cls.__name__}: the type of an option is not known where it is defined: {error}") from error
    found = {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}
    for name, kind in found.items():
        if _plain_type(kind) not in (str, int, float, bool, typing.Literal):
            raise ValueError(
                f"{cls.__name__}: option {name} has the type {kind}: "
                "allowed are str, int, float, bool and Literal, each also with None"
            )
    return found


def convert(owner: str, cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in the types of the dataclass's fields; ValueError for unknown ones and for values that do not fit."""
    known = fields(cls)
    converted = {}
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{owner} has no option {name!r}: {_choices(name, known)}")
        converted[name] = _convert(f"{owner} option {name}", known[name], value)
    return converted


def build(owner: str, cls: type, options: Mapping[str, Any]) -> Any:
    """The dataclass with these options; errors name the owner."""
    values = convert(owner, cls, options)
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{owner}: {error}") from error


def unknown(kind: str, name: str, allowed: Iterable[str]) -> ValueError:
    """The error for a name that nothing has, with the nearest one."""
    return ValueError(f"unknown {kind} {name!r}: {_choices(name, allowed)}")


def _choices(name: str, allowed: Iterable[str]) -> str:
    names = sorted(allowed)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return (f"did you mean {near[0]!r}? " if near else "") + f"allowed are {', '.join(names) or 'none'}"


def _plain_type(wanted: Any) -> Any:
    """The type without its None; `Literal` for any Literal."""
    origin = typing.get_origin(wanted)
    if origin in (typing.Union, types.UnionType):
        others = [argument for argument in typing.get_args(wanted) if argument is not type(None)]
        return _plain_type(others[0]) if len(others) == 1 else wanted
    return origin or wanted


def _convert(what: str, wanted: Any, value: Any) -> Any:
    origin = typing.get_origin(wanted)
    if origin in (typing.Union, types.UnionType):
        if value is None or str(value).lower() == "none":
            return None
        return _convert(what, next(a for a in typing.get_args(wanted) if a is not type(None)), value)
    if origin is typing.Literal:
        allowed = typing.get_args(wanted)
        for choice in allowed:
            if value == choice or str(value) == str(choice):
                return choice
        raise ValueError(f"{what} is {value!r}: allowed are {', '.join(map(str, allowed))}")
    if wanted is bool:
        words = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
        if str(value).lower() not in words:
            raise ValueError(f"{what} is {value!r}: allowed are true, false")
        return words[str(value).lower()]
    if wanted in (int, float):
        try:
            number = wanted(str(value))
        except ValueError:
            kind = "a whole number" if wanted is int else "a number"
            raise ValueError(f"{what} is {value!r}: it must be {kind}") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError(f"{what} is {value!r}: it must be finite")
        return number
    return str(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
