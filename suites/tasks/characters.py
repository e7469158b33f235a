"""Texts as sequences of characters: an alphabet from the training texts, ids, padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bench.contract import require

SPECIALS = ("<pad>", "<unk>", "<eos>")
PAD, UNK, EOS = range(len(SPECIALS))

CODE_POINTS = 0x110000
AT_ONCE = 1_000_000
"""How many characters are turned into numbers at a time."""


def check(max_length: int, symbols: int, min_freq: int) -> None:
    """ValueError unless a text can hold a character and `<eos>`, and an alphabet a character."""
    for name, value, least in (
        ("max_length", max_length, 2),
        ("symbols", symbols, len(SPECIALS) + 1),
        ("min_freq", min_freq, 1),
    ):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        require(whole and value >= least, f"{name} must be an integer of at least {least}, not {value!r}")
    require(symbols <= 1 << 16, f"symbols must be at most {1 << 16}, not {symbols}")


def slots(symbols: int) -> tuple[str, ...]:
    """The vocabulary as far as it is known without data: the specials, then characters by their rank, `<1>` on.

    Its size is fixed, so that a network can be planned where the data are not; which character has which rank the
    alphabet says.
    """
    return (*SPECIALS, *(f"<{rank}>" for rank in range(1, symbols - len(SPECIALS) + 1)))


def alphabet(texts: Iterable[str], symbols: int, min_freq: int) -> np.ndarray:
    """Code points of the characters that have an id, (at most symbols - 3,) uint32, the most frequent first.

    Those that stand `min_freq` times or more in `texts`, the training texts as they are cut; equally frequent ones in
    the order of their code points. All others are `<unk>`.
    """
    counts = np.zeros(CODE_POINTS, np.int64)
    for codes, _ in _codes(texts):
        found = np.bincount(codes)
        counts[: len(found)] += found
    order = np.argsort(-counts, kind="stable")
    return order[counts[order] >= min_freq][: symbols - len(SPECIALS)].astype(np.uint32)


def encode(texts: Sequence[str], letters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all texts one after another, each with `<eos>` at its end, (tokens,), and their lengths, (texts,)."""
    kind = np.uint8 if len(letters) + len(SPECIALS) <= 256 else np.uint16
    table = np.full(CODE_POINTS, UNK, kind)
    table[letters] = np.arange(len(SPECIALS), len(letters) + len(SPECIALS))
    tokens, lengths = [np.zeros(0, kind)], [np.zeros(0, np.int32)]
    for codes, sizes in _codes(texts):
        tokens.append(np.insert(table[codes], np.cumsum(sizes), EOS))
        lengths.append(sizes + 1)
    return np.concatenate(tokens), np.concatenate(lengths)


def padded(tokens: np.ndarray, lengths: np.ndarray, length: int) -> np.ndarray:
    """Ids one after another as (texts, length) int32, with `<pad>` behind the end of each."""
    found = np.full((len(lengths), length), PAD, np.int32)
    ends = np.cumsum(lengths, dtype=np.int64)
    for row, (end, size) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
        found[row, :size] = tokens[end - size : end]
    return found


def _codes(texts: Iterable[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Code points of some texts one after another, and how many each has, until there are no more texts."""
    some: list[str] = []
    size = 0
    for text in texts:
        some.append(text)
        size += len(text)
        if size >= AT_ONCE:
            yield _joined(some)
            some, size = [], 0
    if some:
        yield _joined(some)


def _joined(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    return codes, np.array([len(text) for text in texts], np.int32)
