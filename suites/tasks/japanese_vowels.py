"""JapaneseVowels: which of nine speakers says two vowels; short sequences of different lengths, twelve channels."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from suites.tasks.time_series import TimeSeries


@dataclasses.dataclass(frozen=True, kw_only=True)
class JapaneseVowels(TimeSeries):
    """640 utterances of 7 to 29 steps of 12 linear prediction coefficients, by 9 speakers: 270 to train, 370 to test.

    A linear model on all steps side by side gets 99 % of the test split right: the set shows that training works and
    that masks are right, and separates few layers.
    """

    source: ClassVar[str] = "Kudo, Toyama and Shimbo 1999 (UCI Japanese Vowels; UEA archive)"
    licence: ClassVar[str] = "package BSD-3-Clause; the data: as the UCI repository says, check before you publish them"
    name = "JapaneseVowels"
    sha256 = (
        "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
        "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
    )
    longest, channels, labels = 29, 12, 9
