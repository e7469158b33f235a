"""Whether a layer is right, before anybody asks how fast it is: `check` for a reader, `verify` for a suite.

A layer is compared with the float64 loop over its own `system`: a kernel of one's own is caught where it departs from
the equations that its layer states. Imports no framework; the backends load theirs.
"""

from __future__ import annotations

from bench.conformance.checks import CHECKS, LENGTHS, Row, check, convolved, table
from bench.conformance.verification import Verdict, verify

__all__ = ["CHECKS", "LENGTHS", "Row", "Verdict", "check", "convolved", "table", "verify"]
