"""PLAID: which of eleven kinds of appliances draws the current; sequences of very different lengths."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from suites.tasks.time_series import TimeSeries


@dataclasses.dataclass(frozen=True, kw_only=True)
class PLAID(TimeSeries):
    """1074 recordings of an appliance's current, 100 to 1344 steps of one number, 11 kinds: 537 to train and to test.

    Five of the training examples are in the test split too and are left out here. Amplitudes, which tell kinds apart,
    are kept: they differ a thousandfold, so that after one standardisation for all most recordings are small.
    """

    source: ClassVar[str] = "Gao et al. 2014 (PLAID; UCR archive)"
    licence: ClassVar[str] = "package BSD-3-Clause; the data: none is stated with them, check before you publish them"
    name = "PLAID"
    sha256 = (
        "40deb3bc6bd1e1aa0e6db6e6bfd3cecc4a23bf57f6a6d6ab90fb75e4a2c72344",
        "aa6da0dc1461e8d374e068a940ce37d1b0bb1a9844596d818920c8af696d656d",
    )
    longest, channels, labels = 1344, 1, 11
