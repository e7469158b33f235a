"""All checks of the layers that others are compared with, in both frameworks: minutes."""

import pytest

from bench import conformance


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["dense-linear", "gru", "rnn", "s4", "transformer"])
def test_the_comparators_pass_in_both_backends(model, dtype):
    rows = conformance.check(model, device="cpu", lengths=(1, 2, 3, 33, 257), dtypes=[dtype])
    assert [row for row in rows if row.status == "failed"] == []
    assert {row.check for row in rows if row.status == "not asked"} == {
        "forward = convolution", "state handed over", "state as declared",
    }  # fmt: skip
