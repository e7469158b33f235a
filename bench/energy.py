"""Energies |x_t|^2 of diagonal systems as pure functions: exact, from Lambda, B and C alone. t counts from 1.

States start from zero; sums run over the whole state. Each layer's recurrence is linear, so an energy under inputs of
another size is that size squared times these.
"""

from __future__ import annotations

import numpy as np

from bench.contract import DiagonalSystem


def doubling_times(length: int) -> list[int]:
    """t = 1, 2, 4, ... and the length, counted from 1."""
    times = [2**k for k in range(length.bit_length()) if 2**k <= length]
    return times if times[-1] == length else [*times, length]


def white_noise_energy(system: DiagonalSystem, times: list[int]) -> np.ndarray:
    """E|x_t|^2 under white real input of unit variance, (times,).

    Derived: E|x_{t,j}|^2 = |b_j|^2 (1 - |lambda_j|^{2 t}) / (1 - |lambda_j|^2), |b_j|^2 summed over the inputs.
    """
    return _total(white_noise_entries(system, times))


def white_noise_entries(system: DiagonalSystem, times: list[int]) -> np.ndarray:
    """The same, entry by entry of the state, (times, *Lambda.shape)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_modulus = np.log(np.abs(system.Lambda))
        t = _column(times, log_modulus)
        sums = np.where(log_modulus == 0, t, np.expm1(2 * t * log_modulus) / np.expm1(2 * log_modulus))
    return _input_energy(system) * sums


def stationary_energy(system: DiagonalSystem) -> float:
    """What `white_noise_energy` tends to: infinite unless all |lambda| < 1."""
    with np.errstate(divide="ignore"):
        log_modulus = np.log(np.abs(system.Lambda))
        return float((_input_energy(system) * np.where(log_modulus < 0, -1 / np.expm1(2 * log_modulus), np.inf)).sum())


def time_to_exceed(system: DiagonalSystem, limit: float) -> tuple[int | None, str | None]:
    """The first t at which E|x_{t,j}|^2 of some entry under white input is above `limit`; or None, and why it never is.

    Times above 2^40 count as never.
    """

    def largest(t: int) -> float:
        return float(white_noise_entries(system, [t]).max())

    low, high = 0, 1
    while largest(high) <= limit:
        low, high = high, 2 * high
        if high > 2**40:
            return None, f"the largest entry's energy is {largest(high):.3g} after 2^40 steps"
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if largest(middle) <= limit else (low, middle)
    return high, None


def impulse_energy(system: DiagonalSystem, times: list[int]) -> np.ndarray:
    """E|x_t|^2 after a white input of unit variance at t = 1 alone, (times,): sum_j |b_j|^2 |lambda_j|^{2 (t - 1)}."""
    modulus = np.abs(system.Lambda)
    with np.errstate(over="ignore"):
        return _total(_input_energy(system) * modulus ** (2 * (_column(times, modulus) - 1)))


def constant_energy(system: DiagonalSystem, times: list[int]) -> np.ndarray:
    """|x_t|^2 under an input that is 1 in all features at all times, (times,)."""
    b = system.B.sum(-1) if system.Lambda.ndim == 1 else system.B
    Lambda = system.Lambda.astype(complex)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        t, log_lambda = _column(times, Lambda), np.log(Lambda)
        sums = np.where(log_lambda == 0, t, np.expm1(t * log_lambda) / np.expm1(log_lambda))
    return _total(np.abs(b * np.where(Lambda == 0, 1, sums)) ** 2)


def half_life(system: DiagonalSystem) -> float:
    """Steps after which an impulse's energy is half of what entered; infinite where it never is."""
    squares, entered = np.abs(system.Lambda).ravel() ** 2, _input_energy(system).ravel()

    def left(steps: float) -> float:
        return float((entered * squares**steps).sum() / entered.sum())

    low, high = 0.0, 1.0
    while left(high) > 0.5:
        low, high = high, 2 * high
        if high > 1e12:
            return float("inf")
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) > 0.5 else (low, middle)
    return high


def memory_curve(system: DiagonalSystem, lags: list[int]) -> np.ndarray:
    """E|dL/du_{T-k}|^2 over lags k, (lags,), for L = g . y_T with white g of unit variance: |Re(C Lambda^k B)|_F^2.

    At k = 0 the skip connection is part of it.
    """
    found = []
    for k in lags:
        if system.Lambda.ndim == 1:
            response = ((system.C * system.Lambda**k) @ system.B).real + (np.diag(system.D) if k == 0 else 0)
        else:
            response = (system.C * system.Lambda**k * system.B).sum(-1).real + (system.D if k == 0 else 0)
        found.append(np.sum(response**2))
    return np.array(found)


def _input_energy(system: DiagonalSystem) -> np.ndarray:
    """|b_j|^2, summed over the inputs, like Lambda."""
    b = np.abs(system.B) ** 2
    return b.sum(-1) if system.Lambda.ndim == 1 else b


def _column(times: list[int], like: np.ndarray) -> np.ndarray:
    return np.asarray(times, float).reshape(-1, *[1] * like.ndim)


def _total(energies: np.ndarray) -> np.ndarray:
    return energies.reshape(len(energies), -1).sum(-1)
