"""What the suite `stability` must say of a layer whose state grows by a known factor a step."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from bench.selftest import Check, Selftest

GROWTH = 1.01
TOLERANCE = 0.002
"""From t = 64 to 128 energies of white noise grow by the factor 1 + growth^128: 64 sequences over 32 states bring the
sampling error of its logarithm below a fifth, and that of the growth below 0.2 / 128."""


def judge(results: pd.DataFrame) -> list[Check]:
    """Under white noise E|x_2t|^2 / E|x_t|^2 = 1 + growth^(2 t)."""
    rows = results[(results["metric"] == "white_noise_energy") & (results["step"] == 0)].set_index("t")["value"]
    if not {64, 128} <= set(rows.index):
        found, passed = " ".join(sorted(set(results["status"]))), False
    else:
        growth = (float(rows[128]) / float(rows[64]) - 1) ** (1 / 128)
        found, passed = f"{growth:.4f} a step", abs(growth - GROWTH) <= TOLERANCE
    return [Check(what="a state whose norm grows", planted=f"{GROWTH} a step", found=found, passed=passed)]


SELFTEST = Selftest(
    plugin=Path(__file__).with_name("fakes.py"),
    request={
        "models": ["growing"],
        "seeds": [0],
        "depths": [1],
        "preset": "quick",
        "tasks": ["listops[max_length=128,train=32,validation=32,test=32]"],
        "set": {"d_model": 32, "steps": 2, "evaluations": 1, "probe": 8, "noise": 64, "batch": 8},
    },
    judge=judge,
)
