"""ListOps: nested operations on lists of digits, whose result is to be predicted."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from bench.cache import cached_arrays
from bench.contract import Dataset, Split, Task, require
from bench.data import dataset, user_files
from bench.seeds import generator
from suites.tasks import floors

VERSION = 1
"""Of the data: another number after any change to what is generated or read, so that no old cache is used."""


ROWS_AT_ONCE = 2_000
"""Trees whose tokens are counted together: bounds the memory that it takes."""


def median(values: Sequence[int]) -> int:
    """The median, rounded down where it lies between two values."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2


def sum_mod_10(values: Sequence[int]) -> int:
    """The last decimal digit of the sum."""
    return sum(values) % 10


OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {"[MIN": min, "[MAX": max, "[MED": median, "[SM": sum_mod_10}
CLOSE = "X"
VOCABULARY = ("<pad>", "<unk>", "<eos>", *"0123456789", *OPERATORS, CLOSE)
PAD, EOS, ZERO, OPERATOR = (VOCABULARY.index(symbol) for symbol in ("<pad>", "<eos>", "0", "[MIN"))
DIGITS = {str(digit): digit for digit in range(10)}
IDS = {symbol: number for number, symbol in enumerate(VOCABULARY) if number >= ZERO}
"""The ids of the 15 symbols that a tree is made of."""

VALUES = {IDS[symbol]: function for symbol, function in OPERATORS.items()}
"""What each operator computes, by its id."""

MOST_DEPTH = 10
"""A node at this depth is a digit; the root has depth 1."""
OPERATOR_CHANCE = 0.25
LEAST_ARGUMENTS, MOST_ARGUMENTS = 2, 10

FILES_LENGTH = 2048
FILES_VERSION = 2
"""Of what is read from files, likewise."""
FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
FILES_SOURCE = (
    "Unpack the Long Range Arena's archive (lra_release.gz, github.com/google-research/long-range-arena) and set "
    "BENCH_DATA to its inner lra_release folder, or use origin=generated, which makes data of the same distribution"
)

PATIENCE = 50_000_000
"""How many tokens may be drawn, with `DRAW_COST` more for each tree, from one new tree to the next: about 20 s."""
DRAW_COST = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListOps(Task):
    """Trees such as `[MAX 4 3 [MIN 2 3 ] 1 0 ]`, whose value, 0 to 9, is the class.

    A tree is read as its operators, digits and closing brackets (`X`), with `<eos>` after the last; parentheses of the
    original text are no tokens. Trees of `min_length` < tokens < `max_length` are kept; `min_length` None is a quarter
    of `max_length`, as in the original 500 and 2000. `train`, `validation` and `test` count examples, no two equal.

    With `origin="files"` the data are the user's own copy of the published ones: basic_{train,val,test}.tsv, at any
    depth below the folder in the environment variable BENCH_DATA. All is then given by the files: cut to 2047 tokens
    and `<eos>`, padded to 2048, and the other options must keep their defaults.

    Labels are not balanced (0 and 9 have 17 % each), and the operator at the root alone predicts 36 % of them.
    """

    source: ClassVar[str] = "Nangia and Bowman 2018; Tay et al. 2021 (Long Range Arena)"
    licence: ClassVar[str] = "generated data are made here; files: as their archive says, check before you publish them"
    max_length: int = 2000
    min_length: int | None = None
    train: int = 96_000
    validation: int = 2_000
    test: int = 2_000
    origin: Literal["generated", "files"] = "generated"

    def __post_init__(self) -> None:
        require(self.origin in ("generated", "files"), f"origin must be generated or files, not {self.origin!r}")
        sizes = {name: getattr(self, name) for name in ("max_length", "train", "validation", "test")}
        for name, number in sizes.items():
            require(_is_integer(number) and number >= 1, f"{name} must be an integer of at least 1, not {number!r}")
        require(
            self.min_length is None or (_is_integer(self.min_length) and self.min_length >= 0),
            f"min_length must be an integer of at least 0, or None, not {self.min_length!r}",
        )
        low, high = self._bounds
        require(
            high - low >= 2,
            f"min_length={low} and max_length={high} leave no length between them: both bounds are exclusive",
        )
        if self.origin == "files":
            for field in dataclasses.fields(self):
                number = getattr(self, field.name)
                require(
                    field.name == "origin" or number == field.default,
                    f"{field.name}={number} is an option of origin=generated: with origin=files the files decide",
                )
        available, wanted = distinct_trees(low, high), self.train + self.validation + self.test
        require(
            wanted <= available,
            f"train + validation + test = {wanted}, but only {available:.0f} different trees have more than "
            f"min_length={low} and fewer than max_length={high} tokens",
        )

    @property
    def published(self) -> tuple[str, str] | None:
        return ("LRA", "ListOps") if self._bounds == (500, 2000) else None

    @property
    def _bounds(self) -> tuple[int, int]:
        return self.max_length // 4 if self.min_length is None else self.min_length, self.max_length

    @property
    def length(self) -> int:
        return FILES_LENGTH if self.origin == "files" else self.max_length

    @property
    def classes(self) -> int:
        return 10

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return VOCABULARY

    def locate(self) -> str:
        if self.origin == "files":
            _paths()
            return "files below BENCH_DATA"
        return "generated"

    def load(self, seed: int) -> Dataset:
        """The trees of this seed, or those of the files, for which the seed is ignored.

        Missing: no files. ValueError: a negative seed, a file that is there twice or holds what no tree has (with file
        and row), or bounds within which new trees are too rare to be found.
        """
        if self.origin == "files":
            paths = _paths()
            hashes = {name: _sha256(path) for name, path in paths.items()}
            arrays = cached_arrays("listops-files", {"version": FILES_VERSION, **hashes}, lambda: _read(paths))
        else:
            require(_is_integer(seed) and seed >= 0, f"seed must be an integer of at least 0, not {seed!r}")
            low, high = self._bounds
            sizes = [int(self.train), int(self.validation), int(self.test)]
            key = {"version": VERSION, "seed": int(seed), "bounds": [int(low), int(high)], "sizes": sizes}
            arrays = cached_arrays("listops", key, lambda: _generated(low, high, sizes, seed))
        return dataset(*_padded(arrays, self.length), vocabulary_size=len(VOCABULARY), classes=10)

    def floors(self, data: Dataset) -> dict[str, float]:
        """The majority; "root": the operator at the root alone; "root and digits": its direct digits too."""
        return super().floors(data) | floors.cached(data, {"root": root, "root and digits": root_and_digits})


def tokens(source: str) -> list[str]:
    """The tokens of a tree's text: words without parentheses, `]` as `X`. Unknown words stay as they are."""
    return [CLOSE if word == "]" else word for word in source.split() if word not in ("(", ")")]


def text(tokens: Sequence[str]) -> str:
    """The text of a tree, in left-nested pairs: `[MAX 4 3 X` gives `( ( ( [MAX 4 ) 3 ) ] )`. ValueError: no tree."""
    value(tokens)  # for its error
    pairs = [0] * len(tokens)  # of each operator: one for each argument, and one for the bracket
    opened: list[int] = []
    for place, token in enumerate(tokens):
        if opened:
            pairs[opened[-1]] += 1
        if token in OPERATORS:
            opened.append(place)
        elif token == CLOSE:
            opened.pop()
    words: list[str] = []
    depth = 0
    for token, count in zip(tokens, pairs, strict=True):
        if token in OPERATORS:
            words += ["("] * count + [token]
            depth += 1
        else:
            words.append("]" if token == CLOSE else token)
            words += [")"] * (depth > 0)
            if token == CLOSE:
                # The operation that ends here is an argument itself, unless it is the root.
                depth -= 1
                words += [")"] * (depth > 0)
    return " ".join(words)


def value(tokens: Sequence[str]) -> int:
    """The value of a tree, 0 to 9: MIN, MAX, MED (`median`) and SM (`sum_mod_10`). ValueError: no tree."""
    opened: list[tuple[str, list[int]]] = []
    arguments: list[int] = []
    for token in tokens:
        if token in DIGITS:
            arguments.append(DIGITS[token])
        elif token in OPERATORS:
            opened.append((token, arguments))
            arguments = []
        elif token != CLOSE:
            raise ValueError(f"unknown token {token!r}")
        elif opened and arguments:
            operator, outer = opened.pop()
            outer.append(OPERATORS[operator](arguments))
            arguments = outer
        else:
            raise ValueError("a bracket closes no operation, or one without arguments")
    require(len(arguments) == 1 and not opened, "the tokens are not one whole tree")
    return arguments[0]


def draw(uniform: Iterator[float], max_length: int) -> list[int] | None:
    """Draws one tree: its ids, or None if it has `max_length` tokens or more.

    `uniform` gives random numbers in [0, 1), used in the original's order: operator or digit, number of arguments, the
    arguments from left to right, which operator. A tree is left off as soon as it must become too long. That changes
    nothing in the distribution: the tree would be rejected, and the next one does not depend on it.
    """
    ids: list[int] = []
    least = 1  # of tokens, when every argument still to be drawn is a digit
    lacking = 1  # arguments of the innermost open operation; at first, the root
    opened: list[tuple[int, int]] = []  # of each open operation its place, and what its parent lacked before it
    for kind, number in zip(uniform, uniform, strict=False):
        if kind <= OPERATOR_CHANCE:
            arity = LEAST_ARGUMENTS + int((MOST_ARGUMENTS - LEAST_ARGUMENTS + 1) * number)
            least += arity + 1
            if least >= max_length:
                return None
            opened.append((len(ids), lacking))
            ids.append(OPERATOR)
            lacking = arity
            if len(opened) + 1 < MOST_DEPTH:
                continue
            ids.extend([ZERO + int(10 * digit) for digit in itertools.islice(uniform, arity)])
            lacking = 1
        else:
            ids.append(ZERO + int(10 * number))
        lacking -= 1
        while opened and not lacking:
            place, lacking = opened.pop()
            lacking -= 1
            ids[place] += int(len(OPERATORS) * next(uniform))
            ids.append(IDS[CLOSE])
        if not opened:
            break
    return ids if len(ids) < max_length else None


def generate(count: int, min_length: int, max_length: int, rng: np.random.Generator) -> dict[bytes, int]:
    """`count` different trees of min_length < tokens < max_length, in the order drawn: ids, one a byte -> value.

    ValueError: new trees are so rare within the bounds that none came in `PATIENCE` tokens.
    """
    uniform = _uniform(rng)
    trees: dict[bytes, int] = {}
    spent = 0
    while len(trees) < count:
        ids = draw(uniform, max_length)
        spent += DRAW_COST + (max_length if ids is None else len(ids))
        if ids is not None and len(ids) > min_length and (tree := bytes(ids)) not in trees:
            trees[tree] = value([VOCABULARY[number] for number in ids])
            spent = 0
        if spent > PATIENCE:
            raise ValueError(
                f"min_length={min_length} and max_length={max_length} are met by too few trees: "
                f"the search ended after {len(trees)} of {count}"
            )
    return trees


def distinct_trees(min_length: int, max_length: int) -> float:
    """How many different trees have min_length < tokens < max_length; infinity where they outnumber any data set.

    Derived: with d_k the polynomial whose coefficients count, by length, the trees whose root is at depth k, d_10 is
    10 z, and d_k = 10 z + 4 z^2 (d_{k+1}^2 + ... + d_{k+1}^10).
    """
    # At each length from 13 on there are trees with 9 digits, so 10^9 of them and more.
    if max_length > 13:
        return float("inf")
    digits = np.zeros(max_length)
    digits[1:2] = 10
    trees = digits
    for _ in range(MOST_DEPTH - 1):
        power, powers = trees, np.zeros(max_length)
        for _ in range(LEAST_ARGUMENTS, MOST_ARGUMENTS + 1):
            power = np.convolve(power, trees)[:max_length]
            powers += power
        trees = digits.copy()
        trees[2:] += len(OPERATORS) * powers[:-2]
    return float(trees[min_length + 1 :].sum())


def root(data: Dataset) -> float:
    """The accuracy of guessing, for each token at the root, its most frequent value in the training split."""
    return _of_groups(data, [lambda split: split.inputs[:, 0]])


def root_and_digits(data: Dataset) -> float:
    """The same for each (token at the root, its value on the digits directly below it, operations directly below it).

    Operations count up to 3; a root without such digits is a group of its own. Right for all trees of one operation.
    """
    return _of_groups(data, [lambda split: split.inputs[:, 0], _summary])


def _of_groups(data: Dataset, groupings: list[Callable[[Split], np.ndarray]]) -> float:
    """The accuracy of each group's most frequent training target; of later groupings those groups that train has."""
    targets = data.train.targets
    guess = np.full(len(data.test), np.bincount(targets).argmax())
    for grouping in groupings:
        seen, asked = grouping(data.train), grouping(data.test)
        counts = np.zeros((max(seen.max(), asked.max()) + 1, targets.max() + 1), np.int64)
        np.add.at(counts, (seen, targets), 1)
        known = counts.sum(1)[asked] > 0
        guess[known] = counts.argmax(1)[asked][known]
    return float((guess == data.test.targets).mean())


def _summary(split: Split) -> np.ndarray:
    """What `root_and_digits` knows of each tree, (examples,), as one number."""
    found = []
    for start in range(0, len(split), ROWS_AT_ONCE):
        ids = split.inputs[start : start + ROWS_AT_ONCE]
        opens = (ids >= OPERATOR) & (ids < OPERATOR + len(OPERATORS))
        depth = np.cumsum(opens, 1, dtype=np.int16) - np.cumsum(ids == IDS[CLOSE], 1, dtype=np.int16)
        digits = (depth == 1) & (ids >= ZERO) & (ids < ZERO + 10)
        operations = np.minimum((opens & (depth == 2)).sum(1), 3)
        values = [
            VALUES[tree[0]]((tree[direct] - ZERO).tolist()) if direct.any() and tree[0] in VALUES else 10
            for tree, direct in zip(ids, digits, strict=True)
        ]
        found.append((ids[:, 0] * 11 + np.array(values)) * 4 + operations)
    return np.concatenate(found)


def _uniform(rng: np.random.Generator) -> Iterator[float]:
    # Lists of plain floats: numbers asked of the generator one by one take ten times as long.
    return itertools.chain.from_iterable(rng.random(16_384).tolist() for _ in itertools.count())


def _generated(min_length: int, max_length: int, sizes: list[int], seed: int) -> dict[str, np.ndarray]:
    rng = generator(seed, "listops")
    trees = list(generate(sum(sizes), min_length, max_length, rng).items())
    shuffled = [trees[place] for place in rng.permutation(len(trees))]
    return _packed([ids for ids, _ in shuffled], [label for _, label in shuffled], sizes)


def _paths() -> dict[str, Path]:
    return user_files(FILES.values(), FILES_SOURCE, skip=("imgs",))  # imgs: a million pictures of Pathfinder


def _read(paths: dict[str, Path]) -> dict[str, np.ndarray]:
    """The rows of all files; of trees that stand in two splits those of the later one."""
    taken: set[bytes] = set()
    kept: dict[str, list[tuple[bytes, int]]] = {}
    for name in reversed(FILES.values()):
        rows = list(_rows(paths[name]))
        kept[name] = [row for row in rows if row[0] not in taken]
        taken |= {ids for ids, _ in rows}
        require(bool(kept[name]), f"{name}: no examples" + (" that no later split has" if rows else ""))
    ordered = [kept[name] for name in FILES.values()]
    together = [row for rows in ordered for row in rows]
    return _packed([ids for ids, _ in together], [label for _, label in together], list(map(len, ordered)))


def _rows(path: Path) -> Iterator[tuple[bytes, int]]:
    # Rows are numbered as an editor does, so the header is row 1. Bytes that are no ASCII become an unknown token.
    number = 0
    try:
        with path.open(newline="", encoding="ascii", errors="replace") as file:
            for number, row in enumerate(csv.reader(file, delimiter="\t"), start=1):
                if number == 1:
                    require(row == ["Source", "Target"], f"the header must be Source<TAB>Target, not {row}")
                elif row:
                    require(len(row) == 2, f"two fields are expected, not {len(row)}")
                    label, words = _label(row[1]), tokens(row[0])
                    ids = _ids(words)
                    require(value(words) == label, f"the label is {label}, and the tree's value {value(words)}")
                    yield ids, label
    except csv.Error as error:  # raised before the row is counted
        raise ValueError(f"{path.name}, row {number + 1}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path.name}, row {number}: {error}") from error


def _ids(words: Sequence[str]) -> bytes:
    require(bool(words), "no tokens")
    try:
        # The whole row is looked up, so that what is cut off is known to be a tree's too.
        return bytes([IDS[word] for word in words])[: FILES_LENGTH - 1]
    except KeyError as error:
        raise ValueError(f"unknown token {error.args[0]!r}") from None


def _label(target: str) -> int:
    require(len(target) == 1 and target in "0123456789", f"the label must be 0 to 9, not {target!r}")
    return int(target)


def _packed(trees: list[bytes], labels: list[int], sizes: list[int]) -> dict[str, np.ndarray]:
    return {
        "tokens": np.frombuffer(b"".join(ids + bytes([EOS]) for ids in trees), np.uint8),
        "lengths": np.array([len(ids) + 1 for ids in trees], np.int32),
        "targets": np.array(labels, np.int32),
        "sizes": np.array(sizes, np.int64),
    }


def _padded(arrays: dict[str, np.ndarray], length: int) -> list[Split]:
    ends = np.cumsum(arrays["lengths"], dtype=np.int64)
    splits = []
    for stop, size in zip(np.cumsum(arrays["sizes"]), arrays["sizes"], strict=True):
        rows = slice(int(stop - size), int(stop))
        lengths = arrays["lengths"][rows]
        inputs = np.full((len(lengths), length), PAD, np.int32)
        first = ends[rows.start] - arrays["lengths"][rows.start]
        inputs[np.arange(length) < lengths[:, None]] = arrays["tokens"][first : ends[rows.stop - 1]]
        splits.append(Split(inputs=inputs, lengths=lengths, targets=arrays["targets"][rows]))
    return splits


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_integer(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)
