"""Energy of recurrences: theory against enumeration, Monte Carlo against theory, and the suite's tables."""

import csv
import dataclasses
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cells import measure
from safetensors.numpy import save_file
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp

from bench import energy, plan
from bench.backends import reference
from bench.contract import Missing
from bench.network import Network, layer_weights
from bench.plan import Request
from bench.report import drawing
from bench.report.blocks import Table
from models.dense_gaussian import DenseLRU, DenseRNN
from suites.signal_propagation import dense, monte_carlo, report, theory
from suites.signal_propagation.figures import figures
from suites.signal_propagation.monte_carlo import Estimate, energies

DATA = Path(__file__).parent / "data"


# Theory: exact values.


def components(pairs, nodes):
    """How many classes the pairs leave of so many nodes."""
    parent = list(range(nodes))

    def root(i):
        while parent[i] != i:
            i = parent[i]
        return i

    for i, j in pairs:
        parent[root(i)] = root(j)
    return len({root(i) for i in range(nodes)})


def complex_by_enumeration(n, k):
    """E tr((G^k)^* G^k) by Wick's theorem: each factor of the one path is paired with one of the other."""
    ends = [(0, k + 1), (k, 2 * k + 1)]  # nodes 0..k are one path, k+1..2k+1 the other; both share their ends
    total = 0
    for pairing in itertools.permutations(range(k)):
        matched = [(a + step, k + 1 + b + step) for a, b in enumerate(pairing) for step in (0, 1)]
        total += n ** components(ends + matched, 2 * k + 2)
    return total


def real_by_enumeration(n, k):
    """The same for real entries: any two of the 2k factors may be paired."""
    starts = [*range(k), *range(k + 1, 2 * k + 1)]
    ends = [(0, k + 1), (k, 2 * k + 1)]

    def total(left, matched):
        if not left:
            return n ** components(ends + matched, 2 * k + 2)
        first, *others = left
        return sum(
            total([o for o in others if o != other], [*matched, (first, other), (first + 1, other + 1)])
            for other in others
        )

    return total(starts, [])


@pytest.mark.parametrize("k", range(7))
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_complex_energies_are_those_of_all_pairings(n, k):
    assert theory.energy_rnn(n, k, exact=True) == Fraction(complex_by_enumeration(n, k), n ** (k + 1))


@pytest.mark.parametrize("k", range(6))
@pytest.mark.parametrize("n", [1, 2, 5])
def test_real_energies_are_those_of_all_pairings_and_not_below_the_complex_ones(n, k):
    found = theory.energy_real(n, k, exact=True)
    assert found == Fraction(real_by_enumeration(n, k), n ** (k + 1))
    assert found >= theory.energy_rnn(n, k, exact=True)
    assert theory.energy_real(n, k) == float(found)


def test_real_energies_beyond_the_enumerated_ones_are_refused():
    with pytest.raises(ValueError, match="k = 6: for real weights it is known up to 5"):
        theory.energy_real(10, 6)


@pytest.mark.parametrize(
    ("k", "powers"),
    [(2, {3: 1, 1: 1}), (3, {4: 1, 2: 5}), (4, {5: 1, 3: 15, 1: 8}), (5, {6: 1, 4: 35, 2: 84}),
     (6, {7: 1, 5: 70, 3: 469, 1: 180}), (7, {8: 1, 6: 126, 4: 1869, 2: 3044})],
)  # fmt: skip
def test_the_polynomials_in_the_width(k, powers):
    for n in (1, 2, 3, 7, 100):
        wanted = sum(factor * n**power for power, factor in powers.items())
        assert theory.energy_rnn(n, k, exact=True) * n ** (k + 1) == wanted


def test_exact_values_on_file():
    with (DATA / "signal_propagation_exact.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 40
    for row in rows:
        n, k = int(row["n"]), int(row["k"])
        if row["Q_exact"]:
            assert theory.energy_rnn(n, k, exact=True) == Fraction(row["Q_exact"])
        assert theory.energy_rnn(n, k) == pytest.approx(float(row["Q"]), rel=1e-10)
        assert theory.energy_lru(n, k) == pytest.approx(float(row["S"]), rel=1e-10)


@pytest.mark.parametrize(("n", "k"), [(1, 30), (7, 5), (7, 6), (7, 40), (300, 500), (10**6, 10**4)])
def test_floats_are_the_exact_values_to_ten_digits(n, k):
    exact = theory.energy_rnn(n, k, exact=True)
    assert theory.energy_rnn(n, k) / exact == pytest.approx(1, rel=1e-10)
    if k <= 1000:
        assert theory.energy_lru(n, k) / theory.energy_lru(n, k, exact=True) == pytest.approx(1, rel=1e-10)


def test_what_no_float_holds_is_infinite_and_its_logarithm_is_not():
    assert theory.energy_rnn(10, 1000) == theory.energy_lru(10, 1000) == math.inf
    exact = theory.energy_rnn(10, 1000, exact=True)
    logarithm = math.log(exact.numerator) - math.log(exact.denominator)
    assert theory.log_energies(10, 1000)[-1] == pytest.approx(logarithm, rel=1e-12)


@pytest.mark.parametrize(("call", "says"), [
    (lambda: theory.energy_rnn(0, 1), "width n must be at least 1, not 0"),
    (lambda: theory.energy_lru(3, -1), "a length must not be negative, but is -1"),
    (lambda: theory.energy_rnn(2.5, 3), "whole numbers, not 2.5 and 3"),
    (lambda: theory.longest(3, 0), "within must be above 0 and finite, not 0"),
    (lambda: theory.longest(3, math.inf), "within must be above 0 and finite, not inf"),
    (lambda: theory.least_width(3, -0.1), "within must be above 0 and finite, not -0.1"),
    (lambda: theory.scale(3, 0), "length 0 does not depend on W"),
    (lambda: theory.critical_lru(math.nan), "c must be at least 0 and finite, not nan"),
    (lambda: theory.untied_variance(100, 50, "Complex"), "unknown ensemble 'Complex': did you mean 'complex'"),
    (lambda: theory.longest(100, 0.1, "RNN"), "unknown recurrence 'RNN': did you mean 'rnn'"),
])  # fmt: skip
def test_widths_and_lengths_that_have_no_meaning_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_numpy_integers_do_not_overflow(kind):
    assert theory.energy_rnn(kind(1000), kind(5), exact=True) == theory.energy_rnn(1000, 5, exact=True)
    assert theory.energy_lru(kind(50), kind(10), exact=True) == theory.energy_lru(50, 10, exact=True)
    assert theory.energy_real(kind(20_000), kind(5)) == theory.energy_real(20_000, 5)


# Theory: regimes and limits.


@pytest.mark.parametrize(
    ("c", "q", "s"),
    [(0.5, 1.0026, 0.5003), (1, 1.0422, 1.0084), (2, 1.8134, 2.2983), (3, 10.0007, 6.6397), (5, 10733, 2482.2)],
)
def test_the_critical_limits(c, q, s):
    assert theory.critical_rnn(c) == pytest.approx(q, rel=5e-5, abs=5e-5)
    assert theory.critical_lru(c) == pytest.approx(s, rel=5e-5, abs=5e-5)
    assert theory.critical_lru(c) == pytest.approx(quad(theory.critical_rnn, 0, c, epsabs=0)[0], rel=1e-12)
    n = 10**8
    k = round(c * math.sqrt(n))
    # at n = 10^8 the next order, about c^3 / 6 sqrt(n), is below 3e-3
    assert theory.energy_rnn(n, k) == pytest.approx(theory.critical_rnn(c), rel=c**3 / math.sqrt(n) + 1e-4)
    assert theory.energy_lru(n, k) / math.sqrt(n) == pytest.approx(theory.critical_lru(c), rel=5e-3)


def test_limits_at_zero():
    assert theory.critical_rnn(0) == 1
    assert theory.critical_lru(0) == 0


def test_limits_too_large_for_a_float_are_infinite():
    assert theory.critical_rnn(37) == pytest.approx(math.exp(37**2 / 2 - math.log(37**2)))
    assert {theory.critical_rnn(c) for c in (38, 1e100)} == {theory.critical_lru(c) for c in (38, 1e100)} == {math.inf}
    assert theory.critical_lru(37) < math.inf
    assert theory.untied_variance(1, 2000) == math.inf


def test_below_the_square_root_the_first_correction_is_a_count_of_quadruples():
    n, k = 10**4, 10
    assert theory.energy_rnn(n, k) - 1 == pytest.approx(math.comb(k + 2, 4) / n**2, rel=1e-3)


@pytest.mark.parametrize("t", [464, 1000])
def test_above_the_square_root_the_asymptote_with_its_next_term_gives_the_logarithm(t):
    n = 10**4
    for recurrence, exact in (("lru", theory.energy_lru(n, t)), ("rnn", theory.energy_rnn(n, t))):
        found = theory.log_supercritical(n, t, recurrence, corrected=True)
        assert found == pytest.approx(math.log(exact), rel=0.03)  # 1 + 3 n / t^2 and 3 t / 2 n are left out
    plain = math.exp(theory.log_supercritical(n, t)) / theory.energy_lru(n, t)
    assert plain == pytest.approx({464: 0.889, 1000: 3.756}[t], rel=1e-3)  # measured


def test_regimes_and_the_error_of_infinite_width():
    for t, name in ((10, "subcritical"), (100, "critical"), (301, "supercritical")):
        found = theory.regime(10**4, t)
        assert found.name == name
        assert found.c == t / 100
        assert found.error == pytest.approx((t + 1) / theory.energy_lru(10**4, t) - 1)
    assert theory.regime(10**4, 100, "rnn").error == pytest.approx(1 / theory.energy_rnn(10**4, 100) - 1)


# Theory: inverse questions.


@pytest.mark.parametrize("recurrence", ["rnn", "lru"])
@pytest.mark.parametrize("within", [0.01, 0.1, 1.0])
def test_the_longest_length_and_the_least_width_are_where_the_error_passes(within, recurrence):
    def error(n, t):
        exact = theory.energy_rnn(n, t) if recurrence == "rnn" else theory.energy_lru(n, t) / (t + 1)
        return exact - 1

    t = theory.longest(500, within, recurrence)
    assert error(500, t) <= within < error(500, t + 1)
    n = theory.least_width(200, within, recurrence)
    assert error(n, 200) <= within < error(n - 1, 200)


def test_an_energy_that_is_exactly_at_the_limit_is_within_it():
    assert theory.energy_rnn(10, 2, exact=True) == Fraction(101, 100)
    assert theory.longest(10, 0.01, "rnn") == 2
    assert theory.longest(100, 1e-4, "rnn") == 2
    assert theory.least_width(2, 0.01, "rnn") == 10
    assert theory.longest(100, 1e-18) == 1  # S is t + 1 exactly up to there
    assert theory.least_width(1, 1e-18) == 1


@pytest.mark.parametrize(("n", "t"), [(7, 1), (1000, 1), (10**9, 10), (10**12, 100)])
def test_where_width_hardly_matters_the_scale_is_one(n, t):
    assert theory.scale(n, t) == pytest.approx(1, abs=1e-12)


def test_lengths_where_width_one_is_enough():
    assert theory.least_width(0, 0.01) == theory.least_width(1, 0.01) == 1


@pytest.mark.parametrize(("n", "t"), [(10, 3), (100, 50), (100, 500)])
def test_the_scale_that_keeps_the_energy(n, t):
    logs, k = theory.log_energies(n, t), np.arange(t + 1)
    s = theory.scale(n, t)
    assert logsumexp(logs + 2 * k * math.log(s)) == pytest.approx(math.log(t + 1), rel=1e-9)
    s = theory.scale(n, t, "rnn")
    assert logs[-1] + 2 * t * math.log(s) == pytest.approx(0, abs=1e-9)
    assert s < 1


def test_the_first_length_above_an_energy():
    t = theory.first_above(64, math.log(1000.0))
    assert theory.energy_lru(64, t - 1) <= 1000 < theory.energy_lru(64, t)


# Monte Carlo.


def test_an_estimate_of_known_samples():
    found = Estimate.of(np.array([[1.0, 2.0], [3.0, 2.0]]))
    np.testing.assert_allclose(found.mean, [2, 2])
    np.testing.assert_allclose(found.error, [1, 0])
    np.testing.assert_allclose(found.effective, [16 / 10, 2])
    np.testing.assert_allclose(found.median_of_means, [2, 2])
    many = np.ones((40, 1))
    many[0] = 1e300  # one group of twenty has it, and its square does not fit
    found = Estimate.of(many)
    assert found.mean[0] == pytest.approx(1e300 / 40)
    assert found.effective[0] == pytest.approx(1)
    assert found.median_of_means[0] == 1


SMALL = {
    "rnn": DenseRNN(d_model=8),
    "lru": DenseLRU(d_model=8),
    "rnn real": DenseRNN(d_model=8, ensemble="real"),
    "lru real": DenseLRU(d_model=8, ensemble="real"),
    "rnn untied": DenseRNN(d_model=8, tied=False),
    "rnn real untied": DenseRNN(d_model=8, ensemble="real", tied=False),
    "relu untied": DenseRNN(d_model=8, ensemble="real", tied=False, activation="relu"),
    "leaky untied": DenseRNN(d_model=8, ensemble="real", tied=False, activation="leaky-relu"),
}
each_small = pytest.mark.parametrize("layer", SMALL.values(), ids=SMALL)
TIMES = [0, 1, 2, 3, 5]


@each_small
def test_estimates_are_within_four_standard_errors_of_theory(layer):
    """Seed 42 and z < 4 were fixed beforehand; at most 5 steps, so the effective sample is above 300."""
    found = Estimate.of(energies(layer, TIMES, 4000, np.random.default_rng(42)))
    wanted = np.array(dense.expected(layer, TIMES))
    np.testing.assert_allclose(found.mean[0], wanted[0], rtol=1e-12)
    assert (found.effective > 300).all()
    z = (found.mean[1:] - wanted[1:]) / found.error[1:]
    assert np.abs(z).max() < 4, z


@pytest.mark.parametrize("ensemble", ["complex", "real"])
def test_fresh_matrices_have_the_law_that_is_drawn_and_its_exact_spread(ensemble):
    """Against products of whole matrices, and the exact second moment."""
    layer = DenseRNN(d_model=4, ensemble=ensemble, tied=False)
    rng, t, samples = np.random.default_rng(0), 3, 20_000
    direct = monte_carlo.isotropic(layer, rng, samples)
    for _ in range(t):
        direct = np.einsum("bij,bj->bi", layer.draw(rng, samples, 4, 4), direct)
    whole = (np.abs(direct) ** 2).sum(-1) / 4
    for found in (whole, energies(layer, [t], samples, np.random.default_rng(1))[:, 0]):
        second = found**2
        for values, exact in ((found, 1), (second, 1 + theory.untied_variance(4, t, ensemble))):
            assert abs(values.mean() - exact) < 4 * values.std(ddof=1) / math.sqrt(samples)


def test_real_energies_are_not_below_complex_ones():
    """Where no polynomial is known: k = 7 at n = 16, both sampled, to four standard errors of their difference."""
    real, complex_ = (
        Estimate.of(energies(DenseRNN(d_model=16, ensemble=ensemble), [7], 4000, np.random.default_rng(42)))
        for ensemble in ("real", "complex")
    )
    assert real.mean[0] - complex_.mean[0] > 4 * math.hypot(real.error[0], complex_.error[0])


@pytest.mark.parametrize("backend", ["torch", "jax"])
@each_small
def test_backends_give_the_references_energies(layer, backend):
    wanted = energies(layer, TIMES, 6, np.random.default_rng(0))
    found = energies(layer, TIMES, 6, np.random.default_rng(0), backend, "float64")
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    narrow = energies(layer, TIMES, 6, np.random.default_rng(0), backend, "float32")
    np.testing.assert_allclose(narrow, wanted, rtol=1e-4)


def test_samples_are_drawn_in_pieces_and_all_differ(monkeypatch):
    monkeypatch.setattr(monte_carlo, "AT_ONCE", 3 * 64)
    found = energies(DenseRNN(d_model=8), [2], 10, np.random.default_rng(0))
    assert found.shape == (10, 1)
    assert len(np.unique(found)) == 10


def test_a_grid_ends_at_c_or_at_t():
    assert dense.grid(100, 5.0, 20, None) == [round(10 * c) for c in np.linspace(0, 5, 20)]
    assert dense.grid(100, 5.0, 5, 8) == [0, 2, 4, 6, 8]
    assert dense.grid(4, 1.0, 20, None) == [0, 1, 2]


# The suite.


def cells(models, *settings, preset="quick", **more):
    request = Request.parse(suite="signal_propagation", models=models, seeds="42", set=list(settings), **more)
    return plan.cells(request, "cpu", preset)


TINY = ["length=12", "noise=64", "draws=5", "d_model=3", "samples=400", "points=3"]


def test_the_default_is_the_grid_of_the_question():
    planned = plan.cells(Request.parse(suite="signal_propagation"), "cpu", "default")
    assert {cell.factors["n"] for cell in planned} == {100, 200, 500, 1000, 2000}
    assert {cell.model for cell in planned} == {
        "dense-rnn", "dense-rnn[ensemble=real]", "dense-rnn[tied=false]", "dense-rnn[ensemble=real,tied=false]",
        "dense-lru", "dense-lru[ensemble=real]",
    }  # fmt: skip
    for cell in planned:
        assert (cell.seed, cell.d_model, cell.depth) == (42, cell.factors["n"], 1)
        assert (cell.factors["c"], cell.factors["points"], cell.factors["samples"]) == (5.0, 20, 1000)


def test_the_width_is_the_d_state_of_diagonal_layers_in_heads_that_fit():
    planned = cells("lru,rotrnn,s4d,s5", "n=12,64")
    assert [cell.options["d_state"] for cell in planned] == [12] * 4 + [64] * 4
    assert [cell.options["heads"] for cell in planned if cell.plain_model == "rotrnn"] == [6, 32]
    assert [cell.options["blocks"] for cell in planned if cell.plain_model == "s5"] == [6, 8]
    (cell,) = cells("lru", "n=12", "lru.d_state=20")
    assert cell.options["d_state"] == 20


@pytest.mark.parametrize(("settings", "says"), [
    (["n=0"], "n must be at least 1, not 0"),
    (["samples=1"], "samples must be at least 2, not 1: one has no spread"),
    (["c=-1"], "c must be above 0, not -1.0"),
    (["t=0"], "t must be at least 1, not 0"),
    (["t=3", "c=2"], "t and c say the same|c and t say the same"),
    (["trained=nowhere"], "trained is 'nowhere': a run's folder with run.json and params/ is needed"),
])  # fmt: skip
def test_factors_that_have_no_meaning_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        cells("lru", *settings)


def test_the_width_of_dense_recurrences_is_n_whatever_d_model_is_given_for_the_layers():
    dense_lru, lru = cells("dense-lru,lru", "n=16", "d_model=3")
    assert (dense_lru.d_model, lru.d_model) == (16, 3)


def test_rectifiers_need_real_weights():
    with pytest.raises(ValueError, match="activation = relu needs ensemble=real"):
        cells("dense-rnn", "dense-rnn.activation=relu", "dense-rnn.ensemble=complex")


@pytest.fixture(scope="module", params=["lru", "rotrnn", "s4d", "s5"])
def layer_rows(request):
    (cell,) = cells(request.param, "n=8", *TINY, depths="2")
    return cell, measure(cell)


def first_block(cell):
    network = Network(layer=cell.layer, depth=cell.depth, inputs=cell.d_model, tokens=False, classes=2)
    return layer_weights(network.initial(cell.plain_model, cell.seed), 0)


def values(rows, metric):
    found = rows[rows["metric"] == metric]
    return found.set_index("t")["value"].astype(float) if found["t"].notna().all() else found["value"].iloc[0]


def test_rows_of_a_layer_hold_its_own_exact_energies(layer_rows):
    cell, rows = layer_rows
    system, times = reference.system(cell.layer, first_block(cell)), [1, 2, 4, 8, 12]
    entries = system.Lambda.size
    for kind, exact in (("white_noise", energy.white_noise_energy), ("constant", energy.constant_energy),
                        ("impulse", energy.impulse_energy)):  # fmt: skip
        wanted = exact(system, times) / entries
        np.testing.assert_allclose(values(rows, f"{kind}_expected"), wanted, rtol=1e-9)
        if kind != "white_noise":
            np.testing.assert_allclose(values(rows, f"{kind}_energy"), wanted, rtol=1e-4, atol=1e-5 * wanted.max())
    z = (values(rows, "white_noise_energy") - values(rows, "white_noise_expected")) / values(rows, "white_noise_error")
    assert z.abs().max() < 4.5  # five values, Student with 63 degrees of freedom: below 3e-4
    wanted = energy.memory_curve(system, [0, 1, 2, 4, 8]) / 3
    np.testing.assert_allclose(values(rows, "memory_expected"), wanted, rtol=1e-9)
    np.testing.assert_allclose(values(rows, "memory_energy"), wanted, rtol=1e-4, atol=1e-5 * wanted.max())
    assert values(rows, "half_life") == pytest.approx(energy.half_life(system))
    assert values(rows, "stationary_energy") == pytest.approx(energy.stationary_energy(system) / entries)
    largest = math.sqrt(energy.white_noise_entries(system, [12]).max())
    headroom = rows[rows["metric"] == "float16_headroom"]["value"].iloc[0]
    assert headroom == pytest.approx(math.log2(65504 / largest))
    message = rows[rows["metric"] == "float16_overflow"]["message"].iloc[0]
    assert "after 2^40 steps" in message


def test_parameters_that_a_run_has_kept_are_measured_block_by_block(tmp_path):
    (kept,) = plan.cells(
        Request.parse(suite="stability", models="lru", tasks="digits", depths="2", seeds="42",
                      set=["d_model=3", "d_state=8"]), "cpu", "quick",
    )  # fmt: skip
    network = Network.of(kept.layer, 2, kept.task_object)
    weights = network.initial("lru", 1)  # another seed: nothing that this cell would start with
    content = dataclasses.asdict(kept)
    del content["options"]["gamma"]  # as from a time before the option, which has its default
    (tmp_path / "run.json").write_text(json.dumps({"cells": [{"cell": content}]}))
    kept = plan.Cell(**content)
    (tmp_path / "params").mkdir()
    save_file(weights, tmp_path / "params" / f"{kept.id}.safetensors")

    (cell,) = cells("lru", "lru.d_state=8", f"trained={tmp_path}", *TINY, depths="2")
    rows = measure(cell)
    expected = rows[rows["metric"] == "white_noise_expected"]
    for block in (0, 1):
        system = reference.system(kept.layer, layer_weights(weights, block))
        wanted = energy.white_noise_energy(system, [1, 2, 4, 8, 12]) / 8
        np.testing.assert_allclose(expected[expected["layer"] == block]["value"], wanted, rtol=1e-9)
    assert json.loads(rows["facts"].iloc[0])["trained"] == {
        "cell": kept.id, "task": "digits", "seed": 42, "backend": "torch"
    }  # fmt: skip
    (other,) = cells("lru", "lru.d_state=9", f"trained={tmp_path}", *TINY, depths="2")
    with pytest.raises(Missing, match=r"has no lru\[d_state=9\] of depth 2, d_model 3: it has lru\[d_state=8\]"):
        measure(other)


def test_a_constant_input_gives_the_exact_norm_at_each_level():
    for level in (1.0, 100.0):
        (cell,) = cells("rotrnn", "n=8", "part=constant", f"level={level}", "length=9", "d_model=3", depths="1")
        rows = measure(cell)
        found, exact = values(rows, "constant_norm"), values(rows, "constant_norm_expected")
        assert list(found.index) == [1, 2, 4, 8, 9]
        np.testing.assert_allclose(found, exact, rtol=1e-5)
        heads = reference.states(
            cell.layer, first_block(cell), level * np.ones((1, 9, 3))
        )[0].reshape(9, cell.options["heads"], -1)  # fmt: skip
        wanted = np.linalg.norm(heads, axis=-1).mean(-1)[found.index.to_numpy(int) - 1]
        np.testing.assert_allclose(values(rows, "constant_norm_head"), wanted, rtol=1e-5)
    (table,) = [block for block in report.blocks(rows) if isinstance(block, Table)]
    assert f"{found.iloc[-1]:.4g}" in table.rows[0]


def test_the_toy_presets_are_as_published():
    planned = plan.cells(Request.parse(suite="signal_propagation"), "cpu", "toy")
    assert {(cell.plain_model, cell.factors["level"]) for cell in planned} == {
        (model, level) for model in ("rotrnn", "lru", "s5") for level in (1.0, 10.0, 100.0)
    }
    assert {(c.options["d_state"], c.d_model, c.factors["length"]) for c in planned} == {(256, 128, 100_000)}
    learning = plan.cells(Request.parse(suite="stability", models="rotrnn,lru,s5"), "cpu", "toy")
    for cell in learning:
        assert (cell.task, cell.depth, cell.d_model, cell.options["d_state"]) == ("matching-ends", 1, 128, 256)
        assert cell.suite_object.structure.bare


def test_figures_show_what_is_in_the_store(tmp_path):
    models = [cells("dense-lru,dense-rnn", "n=9,16", *TINY, "c=2"), cells("lru,s4d", "n=8", *TINY, depths="2")]
    frame = pd.concat([measure(cell) for planned in models for cell in planned], ignore_index=True)
    found = {figure.name: figure for figure in figures(frame)}
    assert list(found) == ["energy-over-c", "energy-untied", "layers-energy", "gradients-depth-time"]
    assert all(figure.caption for figure in found.values())

    panel = next(p for p in found["energy-over-c"].panels if p.title == "dense-lru")
    rows = frame[(frame["model"] == "dense-lru") & (frame["d_model"] == 16)]
    points = next(s for s in panel.series if (s.name, s.style) == ("n = 16", "points"))
    np.testing.assert_allclose(points.x, values(rows, "energy").index.to_numpy(float) / 4)
    np.testing.assert_allclose(points.y, values(rows, "energy") / 4)
    np.testing.assert_allclose(points.high, (values(rows, "energy") + values(rows, "energy_error")) / 4)
    exact = next(s for s in panel.series if (s.name, s.style) == ("n = 16", "theory"))
    np.testing.assert_allclose(exact.y[8], theory.energy_lru(16, 8) / 4)
    limit = next(s for s in panel.series if s.name == "n → ∞")
    assert limit.y[-1] == pytest.approx(theory.critical_lru(2.0))

    (panel,) = found["layers-energy"].panels
    rows = frame[frame["model"] == "s4d"]
    points = next(s for s in panel.series if s.name == "s4d, n = 8" and s.style == "points")
    np.testing.assert_allclose(points.y, values(rows, "white_noise_energy"))

    heat = found["gradients-depth-time"].panels[1]
    gradients = rows[(rows["metric"] == "jacobian_energy") & (rows["layer"] == 1)].sort_values("t")["value"]
    np.testing.assert_allclose(heat.values[1], np.sqrt(gradients.to_numpy(float)))
    assert (heat.rows, heat.columns) == (["1", "2"], ["0", "1", "3", "7", "11"])

    some = [found["energy-over-c"], found["gradients-depth-time"]]
    files = drawing.write(some, tmp_path, ["svg"])
    assert [file.name for file in files] == [f"{figure.name}.svg" for figure in some]
    first = files[1].read_bytes()
    drawing.write(some[1:], tmp_path, ["svg"])
    assert files[1].read_bytes() == first  # same store, same bytes


REAL = ["dense-rnn.ensemble=real", "dense-rnn.tied=true"]
FIVE = ["n=4", "t=4", "points=5", *(setting for setting in TINY if not setting.startswith("points"))]


def test_theory_of_real_weights_in_a_figure_is_that_of_real_weights():
    frame = pd.concat([measure(cell) for cell in cells("dense-rnn", *REAL, *FIVE)])
    (panel,) = figures(frame)[0].panels
    (exact,) = [series for series in panel.series if (series.name, series.style) == ("n = 4", "theory")]
    np.testing.assert_allclose(exact.y, [theory.energy_real(4, k) for k in range(5)])
    untied = ["dense-rnn.ensemble=complex", "dense-rnn.tied=false"]
    fresh = pd.concat([measure(cell) for cell in cells("dense-rnn", *untied, *FIVE)])
    (panel,) = figures(fresh)[0].panels
    (exact,) = [series for series in panel.series if series.style == "theory"]
    np.testing.assert_array_equal(exact.y, np.ones(5))


def test_figures_of_a_constant_input_and_of_lengths_beyond_all_floats():
    rows = measure(cells("lru", "n=8", "part=constant", "length=9", "d_model=3", depths="1")[0])
    (figure,) = figures(rows)
    points, exact = figure.panels[0].series
    np.testing.assert_allclose(points.y, exact.y, rtol=1e-5)
    far = measure(cells("dense-rnn", "n=4", *TINY, "c=45")[0])
    (figure,) = figures(far)
    assert math.isinf(next(s for s in figure.panels[0].series if s.name == "n → ∞").y[-1])


def test_a_dense_model_beside_trained_ones_has_the_width_of_its_features():
    (group,) = report.Group.of(measure(cells("dense-lru", "n=9", *TINY, "c=2")[0]))
    group.key["n"] = None
    assert group.n == 9


def test_limits_go_by_each_lines_own_noise_and_lines_of_several_seeds_say_which():
    planned = cells("lru", "n=8", "noise=64,8", *(setting for setting in TINY if setting != "noise=64"))
    frame = pd.concat([measure(cell) for cell in planned], ignore_index=True)
    tables = {block.title: block for block in report.blocks(frame) if isinstance(block, Table)}
    checked = tables["Measured energies against their exact expectation"]
    total = sum(int(row[-6].split()[-1]) for row in checked.rows)
    limits = [float(row[-5]) for row in checked.rows]
    wanted = [stats.t.ppf(1 - 0.01 / (2 * total), noise - 1) for noise in (64, 8)]
    assert sorted(limits) == pytest.approx(sorted(wanted), abs=0.005)

    asked = Request.parse(suite="signal_propagation", models="dense-lru", seeds="1,2", set=["n=4", *TINY])
    frame = pd.concat([measure(cell) for cell in plan.cells(asked, "cpu", "quick")], ignore_index=True)
    (table,) = [block for block in report.blocks(frame) if block.title.startswith("Energy of dense")]
    assert {row[list(table.columns).index("seed")] for row in table.rows} == {"1", "2"}


def test_tables_of_dense_recurrences_and_layers():
    planned = [*cells("dense-lru,dense-rnn", "n=16", *TINY, "c=3"), *cells("lru", "n=8", *TINY, depths="2")]
    frame = pd.concat([measure(cell) for cell in planned], ignore_index=True)
    tables = {block.title: block for block in report.blocks(frame) if isinstance(block, Table)}
    lines = tables["Energy of dense recurrences at the largest width"].rows
    tail = [row for row in lines if "tail not sampled" in " ".join(row)]
    assert tail  # c = 3 with 400 samples
    regimes = tables["Signal propagation of the layers"]
    dense_row = next(row for row in regimes.rows if row[0] == "dense-lru")
    assert f"{theory.longest(16, 0.1) + 1}" in dense_row
    assert f"{theory.first_above(16, 2 * math.log(65504)):,}" in dense_row
