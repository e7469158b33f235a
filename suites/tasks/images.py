"""Grey images as sequences of pixels."""

from __future__ import annotations

import numpy as np

from bench.contract import Split


def sequences(pixels: np.ndarray, targets: np.ndarray) -> Split:
    """Images (images, pixels) of 0..255, row after row, as sequences (images, pixels, 1) of grey values in 0..1."""
    return Split(
        inputs=(pixels / np.float32(255)).astype(np.float32)[:, :, None],
        lengths=np.full(len(pixels), pixels.shape[1], np.int32),
        targets=targets.astype(np.int32),
    )
