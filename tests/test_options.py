"""Names with options as they are typed, and what is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.options import build, convert, fields, format_name, parse_name, split_list, split_numbers, unknown


@dataclass(frozen=True, kw_only=True)
class Options:
    """One of each kind."""

    size: int
    rate: float = 0.5
    kind: Literal["a", "b", 3] = "a"
    flag: bool = False
    bound: int | None = 5
    label: str = "x"

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")


@pytest.mark.parametrize(
    "text",
    ["rotrnn,lru", "rotrnn, lru", "rotrnn,,lru,", ["rotrnn", "lru"], "rotrnn,lru,rotrnn", [" rotrnn ", "lru,lru"]],
)
def test_a_list_is_the_same_however_it_is_typed(text):
    assert split_list(text) == ["rotrnn", "lru"]


def test_commas_in_brackets_do_not_separate():
    assert split_list("lru[gamma=tied,d_state=8],s5[blocks=2],lru") == [
        "lru[gamma=tied,d_state=8]",
        "s5[blocks=2]",
        "lru",
    ]


@pytest.mark.parametrize("text", ["lru[gamma=tied", "lru]", "lru[a=1]],s5"])
def test_an_unbalanced_bracket_is_an_error(text):
    with pytest.raises(ValueError, match="unbalanced bracket"):
        split_list(text)


@pytest.mark.parametrize("text", ["", ",", " , ,"])
def test_an_empty_text_is_an_empty_list_not_an_empty_name(text):
    assert split_list(text) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-4,7", [0, 1, 2, 3, 4, 7]),
        ("3", [3]),
        (3, [3]),
        ([0, 2], [0, 2]),
        (["0-1", "1-2"], [0, 1, 2]),
        ("5-5", [5]),
        ("0", [0]),
        (str(2**53 + 1), [2**53 + 1]),
    ],
)
def test_numbers_and_ranges(text, numbers):
    assert split_numbers(text) == numbers


@pytest.mark.parametrize("text", ["-1", "1.5", "a", "1-", "-", "1-2-3", "4-2", "True", 1.5, [True]])
def test_what_is_no_whole_number_and_no_range_is_named(text):
    with pytest.raises((ValueError, TypeError)) as error:
        split_numbers(text)
    assert isinstance(text, float) or str(text).strip("[]") in str(error.value)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("lru", "lru", {}),
        ("LRU", "lru", {}),
        (" RotRNN ", "rotrnn", {}),
        ("lru[gamma=tied]", "lru", {"gamma": "tied"}),
        ("LRU[ gamma = tied , d_state = 8 ]", "lru", {"gamma": "tied", "d_state": "8"}),
        ("S5[C_init=lecun_normal]", "s5", {"C_init": "lecun_normal"}),
        ("lru[]", "lru", {}),
    ],
)
def test_names_are_lower_case_and_options_are_as_they_are(text, name, options):
    assert parse_name(text) == (name, options)


@pytest.mark.parametrize("text", ["lru[gamma]", "lru[gamma=tied", "lru[d_state=4,d_state=8]", "lru[gamma=tied]x"])
def test_a_name_that_cannot_be_read_is_an_error_that_quotes_it(text):
    with pytest.raises(ValueError) as error:
        parse_name(text)
    assert text in str(error.value)


def test_options_get_the_types_of_the_fields():
    typed = {"size": "4", "rate": "1e-3", "kind": "3", "flag": "yes", "bound": "none", "label": "y"}
    assert convert("x", Options, typed) == {
        "size": 4, "rate": 1e-3, "kind": 3, "flag": True, "bound": None, "label": "y",
    }  # fmt: skip
    assert convert("x", Options, {"rate": 1, "bound": "None"}) == {"rate": 1.0, "bound": None}


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("size", "four", "a whole number"),
        ("size", "4.5", "a whole number"),
        ("size", "none", "a whole number"),
        ("rate", "fast", "a number"),
        ("rate", "nan", "finite"),
        ("rate", "inf", "finite"),
        ("kind", "c", "allowed are a, b, 3"),
        ("flag", "maybe", "true, false"),
        ("bound", "much", "a whole number"),
        ("sise", "4", "did you mean 'size'"),
        ("size", "0", "size must be at least 1, not 0"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_owner_and_option(option, value, says):
    with pytest.raises(ValueError) as error:
        build("model x", Options, {"size": 4} | {option: value})
    assert str(error.value).startswith("model x")
    assert says in str(error.value)


def test_an_option_that_must_be_given_is_named():
    with pytest.raises(ValueError, match=r"model x: .*'size'"):
        build("model x", Options, {})


def test_an_option_of_a_type_that_no_command_line_can_write_is_an_error():
    @dataclass(frozen=True, kw_only=True)
    class Strange:
        sizes: tuple[int, ...] = (1, 2)

    with pytest.raises(ValueError, match=r"option sizes has the type tuple\[int, \.\.\.\]"):
        fields(Strange)


@given(
    st.builds(
        Options,
        size=st.integers(1, 2**60),
        rate=st.floats(allow_nan=False, allow_infinity=False),
        kind=st.sampled_from(["a", "b", 3]),
        flag=st.booleans(),
        bound=st.none() | st.integers(),
        label=st.from_regex(r"[a-z_0-9.]+", fullmatch=True).filter(lambda text: text != "none"),
    )
)
def test_a_printed_name_reads_back_as_the_same_options(options):
    name, typed = parse_name(format_name("x", Options, vars(options)))
    assert name == "x"
    assert build("x", Options, typed) == options


def test_a_printed_name_holds_what_differs_from_the_defaults_in_the_order_of_the_fields():
    assert format_name("x", Options, {"flag": True, "rate": 0.25, "kind": "a", "bound": None}) == (
        "x[rate=0.25,flag=true,bound=none]"
    )
    assert format_name("x", Options, {"rate": 0.5}) == "x"


def test_an_unknown_name_gets_the_nearest_one_and_all_that_are_allowed():
    assert str(unknown("model", "rotrn", ["lru", "rotrnn"])) == (
        "unknown model 'rotrn': did you mean 'rotrnn'? allowed are lru, rotrnn"
    )
    assert str(unknown("model", "xyz", ["lru"])) == "unknown model 'xyz': allowed are lru"
    assert str(unknown("model", "xyz", [])) == "unknown model 'xyz': allowed are none"
