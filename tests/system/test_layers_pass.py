"""All checks of the built-in layers, and of those that others are compared with, in both frameworks: minutes."""

import pytest

from bench import conformance

BUILT_IN = (
    "rotrnn", "s4d", "s4d[A_init=legs]", "s5", "s5[bidirectional=true]", "lru[parameterisation=complex,gamma=none]",
)  # fmt: skip
"""The LRU itself is checked by the quick tests, which look at the checks."""
COMPARATORS = ("dense-linear", "dense-lru", "gru", "rnn", "s4", "transformer")


@pytest.mark.parametrize("model", BUILT_IN)
def test_the_built_in_layers_pass_in_both_backends(model, quick_compilation):
    rows = conformance.check(model, dtypes=["float32"], device="cpu", lengths=(1, 2, 3, 33, 257))
    assert [row for row in rows if row.status == "failed"] == []
    assert {row.backend for row in rows} == {"", "torch", "jax", "torch, jax"}
    asked = {row.check for row in rows if row.status == "passed"}
    one_way = {"causality", "steps = oracle", "state handed over", "state as declared"}
    assert asked >= conformance.CHECKS.keys() - (one_way if "bidirectional" in model else set())
    for row in rows:
        assert row.status == "not asked" or row.measured <= row.limit


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", COMPARATORS)
def test_the_comparators_pass_in_both_backends(model, dtype):
    rows = conformance.check(model, device="cpu", lengths=(1, 2, 3, 33, 257), dtypes=[dtype])
    assert [row for row in rows if row.status == "failed"] == []
    assert {row.check for row in rows if row.status == "not asked"} == {
        "forward = convolution", "state handed over", "state as declared",
    }  # fmt: skip
