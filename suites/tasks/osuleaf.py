"""OSULeaf: outlines of leaves, of which of six trees."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from suites.tasks.time_series import TimeSeries


@dataclasses.dataclass(frozen=True, kw_only=True)
class OSULeaf(TimeSeries):
    """442 outlines of leaves as 427 steps of one number, 6 species: 200 to train, 242 to test.

    Each outline comes standardised by itself; what is done beyond that changes it little. The nearest training example
    gives the species of half the test split, so the set separates layers. The training split is small.
    """

    source: ClassVar[str] = "A. Grandhi, MSc thesis (as the file names it; UCR archive)"
    licence: ClassVar[str] = "package BSD-3-Clause; the data: none is stated with them, check before you publish them"
    name = "OSULeaf"
    sha256 = (
        "86b9d6e860414ffd26cebc62fff84ffb37fa588ef3e5bf79e4094a437c36ddfc",
        "6c549dd354f9e42d5985fa5fab75321ca9acefc7873457e71467fc8a31f107ce",
    )
    longest, channels, labels = 427, 1, 6
