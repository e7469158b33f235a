"""The suite `stability` against an independent computation of everything that it records."""

import json

import numpy as np
import pandas as pd
import pytest
from cells import measure
from scipy.special import erf

import bench
from bench import plan, seeds, store
from bench.backends import reference
from bench.network import Network, layer_weights
from bench.plan import Request
from suites.stability import norms
from suites.stability.report import blocks

SMALL = [
    "d_model=8", "steps=12", "evaluations=4", "probe=16", "noise=64", "batch=8",
    "listops.max_length=24", "listops.train=64", "listops.validation=32", "listops.test=32",
    "d_state=8", "rotrnn.heads=2", "s5.blocks=2",
]  # fmt: skip


def cells(model, backend="torch", depth="2", more=()):
    owners = {"rotrnn": "rotrnn.heads", "s5": "s5.blocks"}
    plain = model.partition("[")[0]
    settings = [s for s in SMALL if "." not in s or s.startswith("listops") or s.startswith(owners.get(plain, "-"))]
    request = Request.parse(
        suite="stability", models=model, backends=backend, depths=depth, seeds="0", set=[*settings, *more]
    )
    return plan.cells(request, "cpu", "quick")


@pytest.fixture(scope="module", params=["rotrnn", "lru", "s4d", "s5"])
def measured(request):
    (cell,) = cells(request.param)
    return cell, measure(cell)


def layer_norm(x, scale, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def states_of_network(cell):
    """The states of both layers at the start on the probe batch, in float64, by a loop; and its lengths."""
    data = cell.task_object.load(cell.seed)
    rows = seeds.generator(cell.seed, "probe").permutation(len(data.validation))[:16]
    inputs, lengths = data.validation.inputs[rows], data.validation.lengths[rows]
    network = Network.of(cell.layer, 2, cell.task_object)
    w = network.initial(cell.plain_model, cell.seed)
    x = w["encoder.weight"][inputs] + w["encoder.bias"]
    found = []
    for i in range(2):
        u = layer_norm(x, w[f"blocks.{i}.norm.scale"], w[f"blocks.{i}.norm.bias"])
        params = layer_weights(w, i)
        found.append(reference.states(cell.layer, params, u))
        z = reference.apply(cell.layer, params, u)
        a = z * 0.5 * (1 + erf(z / np.sqrt(2)))
        gate = 1 / (1 + np.exp(-(a @ w[f"blocks.{i}.gate.weight"] + w[f"blocks.{i}.gate.bias"])))
        x = x + (a @ w[f"blocks.{i}.value.weight"] + w[f"blocks.{i}.value.bias"]) * gate
    return found, lengths


def test_norms_at_the_start_are_those_of_a_float64_loop_over_valid_positions(measured):
    cell, rows = measured
    states, lengths = states_of_network(cell)
    reals = cell.layer.state_reals
    start = rows[rows["step"] == 0]
    for i, x in enumerate(states):
        squares = (np.abs(x) ** 2).reshape(*x.shape[:2], -1)
        valid = np.arange(x.shape[1])[None] < lengths[:, None]
        layer = start[start["layer"] == i]

        def value(metric, layer=layer, **where):
            found = layer[layer["metric"] == metric]
            for column in ("t", "head"):
                found = found[found[column].isna() if column not in where else found[column] == where[column]]
            assert len(found) == 1
            return found["value"].iloc[0]

        # float32 network against float64 loop: a few roundings of 6e-8 through two layers
        close = {"rtol": 2e-5}
        np.testing.assert_allclose(value("state_rms"), np.sqrt(squares.sum(-1)[valid].mean() / reals), **close)
        groups = cell.layer.groups
        heads = 1 if groups is None else groups.max() + 1
        by_head = squares.reshape(*squares.shape[:2], heads, -1).sum(-1)
        np.testing.assert_allclose(value("norm_paper"), np.sqrt(by_head)[valid].mean(), **close)
        for t in (1, 2, 4, 8, 16):
            at = lengths >= t
            np.testing.assert_allclose(value("norm_mean", t=t), np.sqrt(squares.sum(-1)[at, t - 1]).mean(), **close)
            np.testing.assert_allclose(value("norm_rms", t=t), np.sqrt(squares.sum(-1)[at, t - 1].mean()), **close)
            for head in range(heads if heads > 1 else 0):
                found = by_head[at, t - 1, head]
                np.testing.assert_allclose(value("norm_rms", t=t, head=head), np.sqrt(found.mean()), **close)


def test_every_cell_measures_at_the_start_and_at_the_end_and_evenly_between(measured):
    _, rows = measured
    assert sorted(rows[rows["metric"] == "state_rms"]["step"].unique()) == [0, 3, 6, 9, 12]
    assert sorted(rows[(rows["metric"] == "loss") & (rows["split"] == "train")]["step"]) == list(range(12))


def test_drift_and_settling_follow_from_the_recorded_norms(measured):
    _, rows = measured
    rms = rows[(rows["metric"] == "state_rms") & rows["t"].isna()].pivot(index="step", columns="layer", values="value")
    for i in (0, 1):
        moved = np.log2(rms[i] / rms[i].iloc[0]).to_numpy()
        found = rows[rows["layer"] == i].set_index("metric")["value"]
        assert found["drift"] == pytest.approx(moved[-1])
        assert found["largest_drift"] == pytest.approx(moved[np.argmax(np.abs(moved))])
        assert found["settling_step"] == norms.settling_step(rms.index.to_numpy(), rms[i].to_numpy())


def test_measured_energy_under_white_noise_agrees_with_the_exact_expectation(measured):
    _, rows = measured
    index = ["layer", "step", "t"]
    energy, error, expected = (
        rows[rows["metric"] == f"white_noise_{name}"].set_index(index)["value"].astype(float)
        for name in ("energy", "error", "expected")
    )
    z = (energy - expected) / error
    assert len(z) == 2 * 2 * 6
    assert np.abs(z).max() < 5  # 24 correlated normal numbers: more than 4 happens in one of 600 seeds
    assert 0.3 < np.sqrt((z**2).mean()) < 2


def test_torch_and_jax_measure_the_same_norms_before_training():
    torch, jax = (measure(cells("rotrnn", backend, depth="1")[0]) for backend in ("torch", "jax"))
    key = ["metric", "layer", "head", "t", "split"]
    start = [rows[rows["step"] == 0].set_index(key)["value"].astype(float) for rows in (torch, jax)]
    assert list(start[0].index) == list(start[1].index)
    rounding = start[0].index.get_level_values("metric").str.endswith("_error")  # of P, and of the sample: no values
    np.testing.assert_allclose(start[0][~rounding], start[1][~rounding], rtol=2e-5, atol=1e-6)


def test_probe_positions_beyond_an_examples_end_do_not_count(monkeypatch):
    (cell,) = cells("lru")
    before = measure(cell)
    task = type(cell.task_object)
    load = task.load

    def with_other_padding(self, seed):
        data = load(self, seed)
        v = data.validation
        outside = np.arange(v.inputs.shape[1])[None] >= v.lengths[:, None]
        v.inputs[outside] = 5
        return data

    monkeypatch.setattr(task, "load", with_other_padding)
    after = measure(cell)
    same = before["metric"].isin(["state_rms", "norm_mean", "norm_rms", "norm_paper"]) | (before["split"] == "probe")
    assert same.sum() > 50
    assert before[same]["value"].tolist() == after[same]["value"].tolist()


def test_options_of_the_suite_that_cannot_be_honoured_are_refused():
    for setting in ("steps=0", "evaluations=13", "probe=0", "dropout=1", "batch=0", "warmup=2", "clip=0"):
        with pytest.raises(ValueError, match=setting.partition("=")[0]):
            cells("lru", more=[setting])


def test_a_bidirectional_layer_is_unsupported_and_says_why():
    (cell,) = cells("s5[bidirectional=true]")
    with pytest.raises(bench.Unsupported, match="bidirectional"):
        measure(cell)


def test_variants_start_from_the_weights_of_their_model():
    plain, tied = cells("lru")[0], cells("lru[gamma=tied]")[0]
    first, second = (Network.of(c.layer, 2, c.task_object).initial(c.plain_model, 0) for c in (plain, tied))
    assert set(first) - set(second) == {"blocks.0.layer.gamma_log", "blocks.1.layer.gamma_log"}
    assert all(np.array_equal(first[name], second[name]) for name in second)


def test_settling_is_the_first_evaluation_after_which_the_norm_stays():
    steps = np.array([0, 10, 20, 30, 40])
    assert norms.settling_step(steps, np.array([1.0, 2.0, 1.05, 0.95, 1.0])) == 20
    assert norms.settling_step(steps, np.ones(5)) == 0
    assert norms.settling_step(steps, np.array([1.0, 1.0, 1.0, 1.2, 1.0])) is None  # only the last one holds
    assert norms.settling_step(steps, np.array([1.0, 2.0, 4.0, 8.0, 16.0])) is None


def test_the_largest_drift_keeps_its_sign():
    assert norms.largest(np.array([0.0, -2.0, 1.5])) == -2.0
    np.testing.assert_array_equal(norms.drift(np.array([1.0, 2.0, 0.25])), [0, 1, -2])


def results(drifts, statuses):
    """Rows of two layers as the suite records them: rms 1 at step 0 and 2^drift at step 10."""
    tables = []
    for seed, (drift, status) in enumerate(zip(drifts, statuses, strict=True)):
        columns = {
            "cell_id": f"c{seed}", "suite": "stability", "model": "lru", "options": "{}", "factors": "{}",
            "backend": "torch", "device": "cpu", "dtype": "float32", "task": "listops", "depth": 2, "seed": seed,
            "d_model": 8,
            "params": 10, "state_reals": 4, "status": status,
        }  # fmt: skip
        rows = []
        for layer, factor in ((0, 1.0), (1, 3.0)):
            for step, value in ((0, 1.0), (10, 2.0 ** (drift * factor))):
                rows.append({"metric": "state_rms", "step": step, "layer": layer, "value": value})
            rows.append({"metric": "drift", "layer": layer, "value": drift * factor})
            rows.append({"metric": "largest_drift", "layer": layer, "value": drift * factor})
            rows.append({"metric": "settling_step", "layer": layer, "value": None if layer else 0})
        tables.append(store.frame([store.table(columns, rows)]))
    return pd.concat(tables, ignore_index=True)


def test_a_timeout_says_nothing_about_divergence():
    (line,) = summary(results([0.1, 0.1, 0.1], ["ok", "timeout", "diverged"]))
    assert (line["ok"], line["diverged [95 %]"]) == ("1/3", "1/2 [0.09, 0.91]")


def test_what_was_swept_has_a_line_and_a_column_of_its_own():
    frames = []
    for number, (d_model, rate) in enumerate(((8, 0.1), (16, 0.1), (16, 0.2))):
        frame = results([0.1 * number], ["ok"])
        factors = json.dumps({"steps": 10 * (number + 1), "rate": rate})
        frames.append(frame.assign(cell_id=f"x{number}", d_model=d_model, factors=factors))
    frame = pd.concat(frames, ignore_index=True)
    lines = summary(frame)
    assert [(line["d_model"], line["rate"], line["drift [log2]"]) for line in lines] == [
        ("8", "0.1", "+0.000 ± -"),
        ("16", "0.1", "+0.200 ± -"),
        ("16", "0.2", "+0.400 ± -"),
    ]
    assert "10 or 20 or 30 training steps" in blocks(frame)[0].title


def summary(frame):
    table = blocks(frame)[0]
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_the_summary_is_the_mean_over_layers_then_mean_and_sd_over_seeds():
    (line,) = summary(results([0.1, 0.3], ["ok", "ok"]))
    assert line["ok"] == "2/2"
    assert line["drift [log2]"] == "+0.400 ± 0.283"  # means over layers 0.2 and 0.6
    assert line["range over layers"] == "0.400"  # 0.2 and 0.6 between the two layers
    assert line["sd over seeds"] == "0.283"
    assert line["settles at step"] == "0 (2/4)"
    assert line["diverged [95 %]"] == "0/2 [0.00, 0.66]"


def test_a_diverged_seed_is_counted_and_never_averaged_in():
    (line,) = summary(results([0.1, 5.0, 5.0], ["ok", "diverged", "diverged"]))
    assert line["ok"] == "1/3"
    assert line["drift [log2]"] == "+0.200 ± -"  # one seed has no spread
    assert line["sd over seeds"] == "-"
    assert line["diverged [95 %]"] == "2/3 [0.21, 0.94]"


def test_a_model_without_a_measured_seed_still_has_its_line():
    (line,) = summary(results([0.1], ["error"]))
    assert (line["ok"], line["drift [log2]"]) == ("0/1", "-")


def test_factors_and_options_are_in_every_row(measured):
    cell, rows = measured
    assert json.loads(rows["factors"].iloc[0])["steps"] == 12
    assert json.loads(rows["options"].iloc[0])["d_state"] == 8
    assert rows["params"].nunique() == 1
    assert rows["params"].iloc[0] == cell.trained
    assert (rows["state_reals"] == cell.layer.state_reals).all()


def test_a_time_without_a_measured_energy_is_not_what_energies_are_compared_at():
    frame = results([0.1], ["ok"])
    noise = [
        {"metric": f"white_noise_{name}", "step": step, "layer": 0, "t": t, "value": value}
        for step in (0, 10) for t, energy in ((1, 2.0), (2, None))
        for name, value in (("energy", energy), ("expected", 2.5), ("error", 0.25))
    ]  # fmt: skip
    columns = {name: frame[name].iloc[0] for name in store.CELL_COLUMNS if pd.notna(frame[name].iloc[0])}
    rows = store.frame([store.table(columns | {"status": "ok"}, noise)])
    (table,) = [b for b in blocks(pd.concat([frame, rows], ignore_index=True)) if b.title.startswith("White noise")]
    assert [row[-5:] for row in table.rows] == [["2.000", "2.500", "0.800", "2.0 of 1", "2.00"]] * 2
