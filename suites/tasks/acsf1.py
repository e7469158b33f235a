"""ACSF1: which of ten kinds of home appliances draws the power."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from suites.tasks.time_series import TimeSeries


@dataclasses.dataclass(frozen=True, kw_only=True)
class ACSF1(TimeSeries):
    """200 recordings of the power that an appliance draws, 1460 steps of one number, 10 kinds; half to train.

    Long idle times with short bursts. Each recording comes standardised by itself. With 9 training examples a class a
    score depends much on the seed; one test example is 1 %.
    """

    source: ClassVar[str] = "Gisler et al. 2013 (ACS-F1; UCR archive)"
    licence: ClassVar[str] = "package BSD-3-Clause; the data: none is stated with them, check before you publish them"
    name = "ACSF1"
    sha256 = (
        "0646b90dc4843e02baed6b2ba345c5601a4991b6796565489cef1b2d92a7537b",
        "93e8aaeb44a10af181d24a156e60da7021193cd990ca28f263fccf3b905bfebf",
    )
    longest, channels, labels = 1460, 1, 10
