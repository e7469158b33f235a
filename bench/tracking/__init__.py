"""Figures over commits: runs asv for what is checked out, refuses results with holes, and compares two commits."""

from bench.tracking.comparing import RULES, Change, Rule, choose, compare, compare_blocks, judge
from bench.tracking.measuring import NothingStored, Run, holes, run, run_blocks
from bench.tracking.results import Config, Figure, Name, Stored, stored, units

__all__ = [
    "RULES",
    "Change",
    "Config",
    "Figure",
    "Name",
    "NothingStored",
    "Rule",
    "Run",
    "Stored",
    "choose",
    "compare",
    "compare_blocks",
    "holes",
    "judge",
    "run",
    "run_blocks",
    "stored",
    "units",
]
