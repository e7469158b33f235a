"""Energy of dense Gaussian recurrences at finite width, as pure functions of width and length.

W is n x n with independent entries of variance 1/n. Three things are asked of it:

* `rnn`: Q_{n,k} = E||W^k h||^2 / ||h||^2, one matrix applied k times;
* `lru`: S_{n,t} = E||h_t||^2 / E||x||^2 of h_t = W h_{t-1} + x_t, h_0 = x_0, with independent isotropic x: the sum of
  Q_{n,0} .. Q_{n,t}, because terms of different inputs do not correlate;
* untied, E||W_k .. W_1 h||^2 / ||h||^2 with a fresh matrix at each step, which is 1 at every width.

At infinite width Q is 1 and S is t + 1. The closed form for complex W is n (n^{rising(k+2)} - n^{falling(k+2)}) /
((k+1) (k+2) n^{k+2}); its polynomials count permutations by their cycles (Wick's theorem). Source of the question and
of the three regimes: arXiv 2605.05113.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, get_args, overload

import numpy as np
from scipy.optimize import brentq

from bench.contract import require
from bench.options import unknown

Recurrence = Literal["rnn", "lru"]
Ensemble = Literal["complex", "real"]

REAL_POLYNOMIALS: tuple[tuple[int, ...], ...] = (
    (1,), (1,), (1, 0, 2), (1, 0, 10, 4), (1, 0, 28, 28, 48), (1, 0, 62, 110, 468, 304),
)  # fmt: skip
"""n Q_{n,k} n^k of real Gaussian W for k = 0 .. 5: coefficients of n^{k+1}, n^k, ... by enumeration of all pairings."""

RECURRENCES, ENSEMBLES = get_args(Recurrence), get_args(Ensemble)

LARGEST_C = 38.0
"""s(c) is above the largest float from a little below here on."""

CRITICAL_FROM, CRITICAL_TO = 0.699, 3.0
"""c = t / sqrt(n) between which a length is called critical: where the limit q(c) passes 1.01 and 10."""


@overload
def energy_rnn(n: int, k: int, exact: Literal[False] = False) -> float: ...
@overload
def energy_rnn(n: int, k: int, exact: Literal[True]) -> Fraction: ...
def energy_rnn(n: int, k: int, exact: bool = False) -> float | Fraction:
    """Q_{n,k} for complex Gaussian W: a float (infinity above the largest), or the exact Fraction."""
    n, k = _whole(n, k)
    if exact:
        return _exact_rnn(n, k)
    return _exp(float(log_energies(n, k)[-1]))


@overload
def energy_lru(n: int, t: int, exact: Literal[False] = False) -> float: ...
@overload
def energy_lru(n: int, t: int, exact: Literal[True]) -> Fraction: ...
def energy_lru(n: int, t: int, exact: bool = False) -> float | Fraction:
    """S_{n,t} for complex Gaussian W: a float (infinity above the largest), or the exact Fraction."""
    n, t = _whole(n, t)
    if exact:
        return sum((_exact_rnn(n, k) for k in range(t + 1)), Fraction(0))
    return _exp(float(log_energies(n, t, "lru")[-1]))


def log_energies(n: int, k: int, recurrence: Recurrence = "rnn") -> np.ndarray:
    """Natural logarithms of Q_{n,0} .. Q_{n,k}, or of S, (k + 1,).

    With R = sum log(1 + i/n) and D = sum 2 artanh(i/n) over i < k + 2, which has no cancellation,
    Q = n e^R (1 - e^-D) / ((k+1) (k+2)).
    """
    n, k = _whole(n, k)
    _known("recurrence", recurrence, RECURRENCES)
    x = np.arange(k + 2) / n
    rising = np.cumsum(np.log1p(x))[1:]
    with np.errstate(divide="ignore"):
        apart = np.cumsum(np.where(x < 1, 2 * np.arctanh(np.minimum(x, 1)), np.inf))[1:]
        steps = np.arange(1, k + 2, dtype=float)
        found = math.log(n) + rising + np.log(-np.expm1(-apart)) - np.log(steps * (steps + 1))
    return found if recurrence == "rnn" else np.logaddexp.accumulate(found)


def energy_real(n: int, k: int, exact: bool = False) -> float | Fraction:
    """Q_{n,k} for real Gaussian W, k <= 5; never below the complex one, whose pairings are among the real one's."""
    n, k = _whole(n, k)
    require(k < len(REAL_POLYNOMIALS), f"k = {k}: for real weights it is known up to {len(REAL_POLYNOMIALS) - 1}")
    value = sum((Fraction(factor, n**i) for i, factor in enumerate(REAL_POLYNOMIALS[k])), Fraction(0))
    return value if exact else float(value)


def critical_rnn(c: float) -> float:
    """q(c) = sinh(c^2/2) / (c^2/2), the limit of Q_{n,k} for k = c sqrt(n)."""
    x = _positive("c", c, zero=True) ** 2 / 2
    if x < 1:
        return math.sinh(x) / x if x else 1.0
    return _exp(x - math.log(2 * x)) * -math.expm1(-2 * x)


def critical_lru(c: float) -> float:
    """s(c), the integral of q from 0 to c: the limit of S_{n,t} / sqrt(n) for t = c sqrt(n)."""
    _positive("c", c, zero=True)
    if c > LARGEST_C:
        return math.inf
    # the series of q term by term: all positive, so nothing cancels
    power, total, j = float(c), 0.0, 0
    while True:
        term = power / (4 * j + 1)
        total += term
        if term <= 1e-17 * total:
            return total
        j += 1
        power *= c**4 / 4 / (2 * j * (2 * j + 1))


def log_supercritical(n: int, t: int, recurrence: Recurrence = "lru", corrected: bool = False) -> float:
    """Logarithm of the asymptote for sqrt(n) << t << n^(2/3): (n/t^2) exp(t^2/2n) for Q, n/t times that for S.

    `corrected` adds the next term of the exponent, -t^3 / 6 n^2.
    """
    found = math.log(n / t**2) + t**2 / (2 * n) + (math.log(n / t) if recurrence == "lru" else 0.0)
    return found - (t**3 / (6 * n**2) if corrected else 0.0)


class Regime(NamedTuple):
    """Where a length stands at a width."""

    name: Literal["subcritical", "critical", "supercritical"]
    c: float
    """t / sqrt(n)."""
    error: float
    """The infinite-width energy over the exact one, minus 1: -0.5 is half of what it is."""


def regime(n: int, t: int, recurrence: Recurrence = "lru") -> Regime:
    """Which regime a length is in at a width, and the relative error of the infinite-width energy there."""
    n, t = _whole(n, t)
    c = t / math.sqrt(n)
    name: Literal["subcritical", "critical", "supercritical"]
    name = "subcritical" if c < CRITICAL_FROM else "critical" if c <= CRITICAL_TO else "supercritical"
    return Regime(name, c, math.expm1(-float(_excess(n, t, recurrence)[-1])))


def longest(n: int, within: float, recurrence: Recurrence = "lru") -> int:
    """The largest t up to which the exact energy is at most 1 + `within` times the infinite-width one: .01, .1, 1."""
    n, _ = _whole(n, 0)
    _positive("within", within)
    t = 16
    while _excess(n, t, recurrence)[-1] <= math.log1p(within):
        t *= 2
    found = int(np.searchsorted(_excess(n, t, recurrence), math.log1p(within), side="right")) - 1
    while found >= 0 and not _at_most(n, found, within, recurrence):
        found -= 1
    while _at_most(n, found + 1, within, recurrence):
        found += 1
    return found


def least_width(t: int, within: float, recurrence: Recurrence = "lru") -> int:
    """The smallest n at which the energy of length t is at most 1 + `within` times the infinite-width one."""
    _, t = _whole(1, t)
    _positive("within", within)
    low, high = 0, 1
    while not _at_most(high, t, within, recurrence):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _at_most(middle, t, within, recurrence) else (middle, high)
    return high


def scale(n: int, t: int, recurrence: Recurrence = "lru") -> float:
    """The s for which s W has the infinite-width energy at length t: 1 for `rnn`, t + 1 for `lru`."""
    n, t = _whole(n, t)
    require(t >= 1, "the energy of length 0 does not depend on W")
    logs = log_energies(n, t)
    if recurrence == "rnn":
        return math.exp(-logs[-1] / (2 * t))
    k = np.arange(t + 1)
    low, high = -logs.max() - 1, 1.0  # the answer is at most 0, up to rounding
    wanted = math.log(t + 1)
    return math.exp(brentq(lambda log_s: np.logaddexp.reduce(logs + 2 * k * log_s) - wanted, low, high, xtol=1e-14))


def untied_variance(n: int, t: int, ensemble: Ensemble = "complex") -> float:
    """Variance of ||W_t .. W_1 h||^2 over its squared mean, for linear untied products: (1 + 1/n)^t - 1, real 2/n."""
    n, t = _whole(n, t)
    _known("ensemble", ensemble, ENSEMBLES)
    found = t * math.log1p((1 if ensemble == "complex" else 2) / n)
    return math.expm1(found) if found < 1 else _exp(found) - 1


def first_above(n: int, energy_log: float, recurrence: Recurrence = "lru") -> int:
    """The smallest t at which the logarithm of the exact energy is above `energy_log`."""
    t = 16
    while log_energies(n, t, recurrence)[-1] <= energy_log:
        t *= 2
    return int(np.searchsorted(log_energies(n, t, recurrence), energy_log, side="right"))


def _excess(n: int, t: int, recurrence: Recurrence) -> np.ndarray:
    """Logarithms of the exact energy over the infinite-width one, (t + 1,); they never fall."""
    logs = log_energies(n, t, recurrence)
    return logs - np.log(np.arange(1, t + 2)) if recurrence == "lru" else logs


def _exact_rnn(n: int, k: int) -> Fraction:
    rising, falling = math.prod(range(n, n + k + 2)), math.prod(range(n, n - k - 2, -1)) if k + 1 < n else 0
    return Fraction(rising - falling, (k + 1) * (k + 2) * n ** (k + 1))


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _at_most(n: int, t: int, within: float, recurrence: Recurrence) -> bool:
    """Whether the energy is at most 1 + `within` times the infinite-width one; exactly where floats are near."""
    apart = float(_excess(n, t, recurrence)[-1]) - math.log1p(within)
    if abs(apart) > NEAR or t > FEW_FACTORS:
        return apart <= 0
    exact = energy_lru(n, t, exact=True) / (t + 1) if recurrence == "lru" else energy_rnn(n, t, exact=True)
    return exact <= 1 + Fraction(within)


NEAR, FEW_FACTORS = 1e-12, 1000
"""How near two logarithms are that rounding may confuse; the length up to which products of whole numbers are cheap."""


def _whole(n: int, k: int) -> tuple[int, int]:
    """A width and a length as Python's own whole numbers, which do not overflow."""
    try:
        n, k = operator.index(n), operator.index(k)
    except TypeError as error:
        raise ValueError(f"a width and a length are whole numbers, not {n!r} and {k!r}") from error
    require(n >= 1, f"the width n must be at least 1, not {n}")
    require(k >= 0, f"a length must not be negative, but is {k}")
    return n, k


def _positive(name: str, value: float, zero: bool = False) -> float:
    good = 0 < value < math.inf or (zero and value == 0)
    require(good, f"{name} must be {'at least' if zero else 'above'} 0 and finite, not {value}")
    return float(value)


def _known(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise unknown(name, value, allowed)
