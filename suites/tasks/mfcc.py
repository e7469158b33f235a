"""Mel-frequency cepstral coefficients of a waveform."""

from __future__ import annotations

import numpy as np

WINDOW, HOP, MELS, COEFFICIENTS = 200, 100, 64, 20
LOG_FLOOR = 1e-6
"""Added to energies before their logarithm."""


def mfcc(waves: np.ndarray, rate: int) -> np.ndarray:
    """(clips, samples) in -1..1 at `rate` Hz -> (clips, 1 + samples // 100, 20) float32.

    Windows of 200 samples (periodic Hann), 100 apart, centred on multiples of 100, the clip mirrored at its ends; power
    spectrum; 64 triangles that are evenly spread on the mel scale 2595 log10(1 + f / 700) from 0 to rate / 2; natural
    logarithm of the energy plus 1e-6; the first 20 coefficients of the orthonormal cosine transform (DCT-II). Davis
    and Mermelstein 1980.
    """
    padded = np.pad(waves, ((0, 0), (WINDOW // 2, WINDOW // 2)), mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=-1)[:, ::HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    logs = np.log(power @ _triangles(rate) + LOG_FLOOR)
    return (logs @ _cosines()).astype(np.float32)


def _triangles(rate: int) -> np.ndarray:
    """The weight of each frequency in each band, (101, 64)."""
    mels = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), MELS + 2)
    corners = 700 * (10 ** (mels / 2595) - 1)
    frequencies = np.linspace(0, rate / 2, WINDOW // 2 + 1)[:, None]
    rising = (frequencies - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - frequencies) / (corners[2:] - corners[1:-1])
    return np.clip(np.minimum(rising, falling), 0, None)


def _cosines() -> np.ndarray:
    """The first 20 basis vectors of the orthonormal DCT-II, (64, 20)."""
    angles = np.pi / MELS * (np.arange(MELS)[:, None] + 0.5) * np.arange(COEFFICIENTS)
    scale = np.where(np.arange(COEFFICIENTS) == 0, np.sqrt(1 / MELS), np.sqrt(2 / MELS))
    return np.cos(angles) * scale
