"""In which order the finished texts of a column are sorted: numbers by their value, whatever stands around them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.report.units import BYTES, TIMES

NOTHING = ("", "-")
"""What stands where there is no value: last, in whichever direction."""

_UNITS = {"B": 1.0, **{name: float(size) for size, name in (*BYTES, *TIMES)}}
_NUMBER = re.compile(
    r"[\[(]?(?:[<>≤≥~] ?)?(?P<sign>[-+−]?)(?P<digits>\d[\d,]*(?:\.\d*)?|\.\d+|∞)(?P<power>e[-+]?\d+)?"
    r"(?:/(?P<of>\d+))?(?:%| ?(?P<unit>[KMG]iB|B|s|ms|µs)(?= |$))?(?=[\s,;:\])*±]|$)"
)

Key = tuple[int, float, tuple[tuple[int, int, str], ...]]


def ranks(texts: Sequence[str]) -> list[int | None]:
    """The place of each text among the different ones of its column, from 0, in ascending order; None: no value."""
    found = [key(text) for text in texts]
    places = {one: i for i, one in enumerate(sorted({one for one in found if one is not None}))}
    return [None if one is None else places[one] for one in found]


def key(text: str) -> Key | None:
    """What a text is sorted by: the number that it starts with, else its words, after all numbers; None: no value.

    A number may be followed by its interval, a unit, notes or a mark; of "2/3" the ratio counts, of a range its start.
    """
    text = text.strip()
    if text in NOTHING:
        return None
    if number := _NUMBER.match(text):
        return (0, _value(number), ())
    return (1, 0.0, _natural(text))


def _value(number: re.Match[str]) -> float:
    digits = number["digits"].replace(",", "")
    size = float("inf") if digits == "∞" else float(digits + (number["power"] or ""))
    if number["of"]:
        size = size / float(number["of"]) if float(number["of"]) else 0.0
    return (-size if number["sign"] in ("-", "−") else size) * _UNITS.get(number["unit"] or "", 1.0)


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Pieces of a text such that "x=9" comes before "x=10"."""
    pieces = re.findall(r"\d+|\D+", text.casefold())
    return tuple((0, len(n := p.lstrip("0")), n) if p.isdecimal() else (1, 0, p) for p in pieces)
