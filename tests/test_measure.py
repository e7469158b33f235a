"""How time and memory are taken: intervals, steady state, when enough is measured, peaks, what work must cost."""

from __future__ import annotations

import gc
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import bench
from bench import backends
from bench.measure import limits, machine, memory, timing
from bench.measure.cost import Cost, layer_cost


class Fake:
    """A call that takes the given times by a clock of its own; the last one again and again."""

    def __init__(self, *seconds: float, behind: float = 0.0, own_clock: bool = False) -> None:
        self.seconds, self.behind, self.own_clock = list(seconds), behind, own_clock
        self.now = self.waiting = 0.0
        self.calls = 0

    def launch(self) -> None:
        self.now += self.seconds[min(self.calls, len(self.seconds) - 1)]
        self.waiting = self.behind
        self.calls += 1

    def wait(self) -> None:
        self.now += self.waiting
        self.waiting = 0.0

    def device_clock(self):
        began = self.now
        return (lambda: self.now - began) if self.own_clock else None

    def clock(self) -> float:
        return self.now


def take(call: Fake, width: float = 0.05, budget_s: float = 1e9) -> timing.Timing:
    return timing.take(call, width=width, budget_s=budget_s, clock=call.clock)


def test_the_first_call_which_compiles_is_not_among_the_samples():
    found = take(Fake(7.0, 0.01))
    assert found.first == pytest.approx(7.0)
    assert found.median == pytest.approx(0.01)
    assert found.samples.max() < 0.02
    assert found.converged


def test_what_goes_on_after_a_call_has_returned_is_waited_for():
    """54 times too fast, measured, where the launch alone is timed."""
    found = take(Fake(0.0002, behind=0.05))
    assert found.samples.min() >= 0.05


def test_a_slow_start_is_left_out_and_kept_in_the_samples():
    found = take(Fake(1.0, 1.0, *np.linspace(0.9, 0.11, 20), 0.1), width=0.01)
    assert found.median == pytest.approx(0.1)
    assert found.steady > 10
    assert found.samples[0] == pytest.approx(0.9)


def test_a_wide_interval_uses_up_the_budget_and_says_so():
    times = np.random.default_rng(0).choice([0.1, 0.9], 1000)
    call = Fake(0.5, 0.5, *times)
    found = take(call, width=0.01, budget_s=10.0)
    assert not found.converged
    assert found.half_width > 0.01
    assert 10 <= found.samples.sum() <= 10 + 0.9


def test_a_call_longer_than_the_budget_still_gets_the_samples_that_an_interval_needs():
    found = take(Fake(30.0), budget_s=1.0)
    assert len(found.samples) == timing.FEWEST
    assert math.isfinite(found.half_width)


def test_a_short_call_is_repeated_inside_a_sample():
    found = take(Fake(1e-5))
    assert found.calls == 100
    assert found.median == pytest.approx(1e-5)


def test_a_device_with_a_clock_of_its_own_gives_its_own_samples():
    found = take(Fake(0.01, own_clock=True))
    assert found.device == pytest.approx(found.samples)
    assert take(Fake(0.01)).device is None


@pytest.mark.parametrize("on", [True, False])
def test_the_garbage_collector_rests_meanwhile_and_is_then_as_it_was(on):
    class Watching(Fake):
        def launch(self) -> None:
            super().launch()
            seen.append(gc.isenabled())

    seen: list[bool] = []
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        take(Watching(0.01))
        assert gc.isenabled() == on
        assert seen[0] == on
        assert not any(seen[2:])
    finally:
        (gc.enable if before else gc.disable)()


def test_the_interval_of_the_median_by_order_statistics():
    """Ranks from tables of the binomial distribution: 1 and 6 of 6, 2 and 9 of 10, 40 and 61 of 100."""
    assert timing.median_interval(np.arange(1.0, 6.0)) == (-math.inf, math.inf)
    assert timing.median_interval(np.arange(1.0, 7.0)) == (1, 6)
    assert timing.median_interval(np.arange(1.0, 11.0)) == (2, 9)
    assert timing.median_interval(np.arange(1.0, 101.0)[::-1]) == (40, 61)


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = [low <= 1.0 <= high for low, high in (timing.median_interval(rng.lognormal(0, 1, 25)) for _ in range(4000))]
    exact = 1 - 2 * stats.binom.cdf(7, 25, 0.5)  # ranks 8 and 18
    assert np.mean(held) == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000))
    assert exact > 0.95


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_at_least_half_of_the_samples_count(samples):
    assert 0 <= timing.steady_from(np.array(samples)) <= len(samples) // 2


def test_equal_samples_are_steady_from_the_first():
    assert timing.steady_from(np.full(20, 0.1)) == 0


def test_the_peak_is_what_was_allocated_and_touched():
    size = 64 * 2**20
    found = memory.peak(lambda: np.ones(size // 8).sum())
    assert found == pytest.approx(size, rel=0.05)


def test_what_was_used_and_freed_before_hides_nothing():
    size = 64 * 2**20
    np.ones(2 * size // 8).sum()
    parts = [np.ones(2**14) for _ in range(500)]  # 64 MB from the heap, which the C library keeps
    del parts
    assert memory.peak(lambda: np.ones(size // 8).sum()) == pytest.approx(size, rel=0.05)


def test_where_the_kernel_refuses_its_mark_a_thread_looks(monkeypatch):
    monkeypatch.setattr(memory, "_reset", lambda: False)
    size = 64 * 2**20

    def work():
        held = np.ones(size // 8)
        time.sleep(0.05)
        return held.sum()

    assert memory.peak(work) == pytest.approx(size, rel=0.1)


def test_where_the_system_does_not_tell_there_is_a_reason_and_no_zero(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    with pytest.raises(memory.Unmeasurable, match="this system has no"):
        memory.peak(lambda: None)


def test_the_operations_of_a_scan_by_hand():
    """d_model 2, 3 complex states: B u 2 x 3 complex times real, 4 a pair with the sum; the step 8; C x the same."""
    layer = bench.layer("lru", d_model=2, d_state=3).layer
    cost = layer_cost(layer, "forward", batch=5, length=7, params=11, itemsize=4)
    assert cost.flops == 5 * 7 * (4 * 2 * 3 + 8 * 3 + 4 * 2 * 3 + 2 * 2)
    assert cost.moved == 4 * 11 + 2 * (5 * 7 * 2 * 4)
    step = layer_cost(layer, "decode", batch=5, length=7, params=11, itemsize=4)
    assert step.flops == cost.flops / 7
    train = layer_cost(layer, "train", batch=5, length=7, params=11, itemsize=4)
    assert train.flops == 3 * cost.flops + 12 * 11
    assert cost.products == 5 * 7 * (4 * 2 * 3 + 4 * 2 * 3)  # in the dtype of u; all else is in that of the states
    assert (step.products, train.products) == (0, 3 * cost.products)
    assert layer_cost(bench.layer("s4d", d_model=2).layer, "train", 5, 7, 11, 4).products == 0


@pytest.mark.parametrize("model", ["lru", "rotrnn", "s5", "s4d", "lru[bidirectional=true]"])
@pytest.mark.parametrize("mode", ["forward", "train", "decode"])
def test_costs_grow_with_the_batch_and_decoding_does_not_with_length(model, mode):
    layer = bench.layer(model, d_model=16).layer
    one, two = (layer_cost(layer, mode, batch, 64, 1000, 4) for batch in (1, 2))
    assert one.flops < two.flops < 2.01 * one.flops
    assert one.moved < two.moved <= 2 * one.moved
    if mode == "decode":
        assert layer_cost(layer, mode, 1, 4096, 1000, 4) == one


def test_a_layer_says_itself_what_it_costs_and_one_that_does_not_is_unknown():
    class Own:
        d_model = 2

        def work(self, mode, batch, length):
            return batch * length, 3.0

    assert layer_cost(Own(), "forward", 2, 8, 5, 4) == Cost(16, 16, 4 * (5 + 2 * 32), 4 * (5 + 2 * 32 + 3))
    assert layer_cost(Own(), "decode", 2, 8, 5, 4, depth=3) == Cost(
        48, 48, 12 * (5 + 2 * 4 + 2 * 3), 4 * (15 + 18 + 2 * 4)
    )
    assert layer_cost(object(), "forward", 2, 8, 0, 4) is None


def test_a_throttled_block_is_measured_again_at_most_twice(monkeypatch):
    monkeypatch.setattr(machine.Watch, "report", lambda self: {"throttled": ["time stolen"]})
    taken = []
    found, facts = machine.undisturbed("cpu", lambda: taken.append(1) or len(taken))
    assert (found, facts["repeated"]) == (3, 2)
    monkeypatch.setattr(machine.Watch, "report", lambda self: {"throttled": []})
    assert machine.undisturbed("cpu", lambda: "once")[1]["repeated"] == 0


def test_the_machine_tells_what_others_do():
    facts = machine.Watch("cpu").report()
    assert set(facts) == {"load_1m", "steal", "other", "clock_mhz", "throttled"}
    assert facts["other"] is None or 0 <= facts["other"] <= 1


RATES = {"float32 256": 90.0, "float32 1024": 80.0, "bfloat16 256": 2.0, "copy": 10.0, "copy of 65536": 50.0}


@pytest.fixture
def rates(monkeypatch):
    """A machine of known rates, which also tells what was timed."""

    class Package:
        @staticmethod
        def matrix_product(dtype, device, n):
            return f"{dtype} {n}", 1.0

        @staticmethod
        def memory_copy(device, size):
            return "copy" if size == limits.COPIED["cpu"] else f"copy of {size}", 1.0

    timed = []
    table = dict(RATES)
    monkeypatch.setattr(backends, "load", lambda name: Package)
    monkeypatch.setattr(limits, "_rate", lambda work: timed.append(work[0]) or table[work[0]])
    cached = (limits.of, limits._products, limits._copies)
    for function in cached:
        function.cache_clear()
    yield table, timed
    for function in cached:
        function.cache_clear()


def test_a_narrow_dtype_that_is_slow_in_products_is_limited_by_the_wide_one(rates):
    """bfloat16 in software: what nobody would wait for is not timed, and float32 is what can be reached."""
    _, timed = rates
    assert limits.of("torch", "bfloat16", "cpu") == limits.Limits(products=90.0, others=90.0, bandwidth=10.0)
    assert "bfloat16 1024" not in timed
    assert limits.of("torch", "float32", "cpu") == limits.of("torch", "bfloat16", "cpu")


def test_a_narrow_dtype_that_is_fast_is_the_limit_of_products_alone(rates):
    table, _ = rates
    table |= {"bfloat16 256": 100.0, "bfloat16 1024": 400.0}
    assert limits.of("torch", "bfloat16", "cpu") == limits.Limits(products=400.0, others=90.0, bandwidth=10.0)
    cost = Cost(flops=1000.0, products=800.0, moved=20.0, held=1e12)
    assert limits.least_seconds(cost, "torch", "bfloat16", "cpu") == pytest.approx(800 / 400 + 200 / 90)


def test_traffic_that_fits_into_a_cache_is_limited_by_the_cache(rates):
    _, timed = rates
    small, large = (Cost(flops=0.0, products=0.0, moved=moved, held=moved) for moved in (1000.0, 1e12))
    assert limits.least_seconds(small, "torch", "float32", "cpu") == pytest.approx(1000 / 50)
    assert limits.least_seconds(large, "torch", "float32", "cpu") == pytest.approx(1e12 / 10)
    assert timed.count("copy") == 1
