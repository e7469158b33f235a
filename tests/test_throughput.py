"""The suites `throughput` and `memory` from the command to the tables, and sizes that are matched."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import bench
from bench import plan, store
from bench.contract import View
from bench.matching import count
from bench.measure.cost import layer_cost
from bench.measure.memory import RESOLVED
from bench.measure.workload import Workload
from bench.options import parse_name
from bench.report import overview
from bench.report.blocks import Note, Table
from suites.memory.suite import Memory, disagreement, unresolved
from suites.throughput.report import blocks
from suites.throughput.suite import Throughput

TINY = {"batch": 2, "d_model": 8, "length": [16, 64]}


def run(tmp_path_factory, **asked) -> pd.DataFrame:
    """One thread: others use the machine too, and what is asked here is no speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return _run(tmp_path_factory, **asked)


def _run(tmp_path_factory, **asked) -> pd.DataFrame:
    folder = bench.run(device="cpu", out=tmp_path_factory.mktemp("runs"), run="run", **asked)
    return bench.read_results(folder)


@pytest.fixture(scope="module")
def timed(tmp_path_factory) -> pd.DataFrame:
    modes = {"mode": ["forward", "train", "decode"], "rounds": 2, "budget": 0.1}
    return run(tmp_path_factory, suite="throughput", models="lru,s4d", set=TINY | modes)


@pytest.fixture(scope="module")
def timed_in_jax(tmp_path_factory) -> pd.DataFrame:
    modes = {"mode": ["train", "decode"], "rounds": 1, "budget": 0.1}
    return run(tmp_path_factory, suite="throughput", models="lru", backends="jax", set=TINY | {"length": 16} | modes)


@pytest.fixture(scope="module")
def held(tmp_path_factory) -> pd.DataFrame:
    asked = {"batch": 4, "d_model": 64, "length": [4096, 8192], "mode": "forward"}
    return run(tmp_path_factory, suite="memory", models="lru", backends="torch,jax", set=asked)


def test_every_cell_is_timed_and_its_layer_verified(timed):
    assert set(timed["status"]) <= {"ok", "unconverged"}
    assert timed["cell_id"].nunique() == 12
    assert timed["verified"].all()
    assert set(timed["mode"]) == {"forward", "train", "decode"}
    assert set(timed["batch"]) == {2}
    assert set(timed["kernel"]) == {"chunked-scan", "fft", "step"}


def test_raw_samples_are_kept_with_their_process(timed):
    samples = timed[timed["metric"] == "time"]
    assert (samples["value"] > 0).all()
    per_process = samples.groupby(["cell_id", "process"])["sample"]
    assert per_process.ngroups == 24
    assert (per_process.nunique() == per_process.size()).all()
    assert (per_process.size() >= 6).all()


def test_a_rate_is_tokens_over_the_median(timed):
    for (_, process), rows in timed.groupby(["cell_id", "process"]):
        median = rows.loc[rows["metric"] == "time", "value"].median()
        rate = rows.loc[rows["metric"] == "tokens_per_s", "value"].item()
        first = rows.iloc[0]
        tokens = first["batch"] * (1 if first["mode"] == "decode" else first["length"])
        assert rate == pytest.approx(tokens / median), process


def test_what_cannot_be_had_is_null_with_its_reason(timed):
    compiling = timed[timed["metric"] == "compile_time"]
    assert compiling["value"].isna().all()
    assert compiling["message"].str.contains("nothing is compiled|not within").all()
    sequences = timed[(timed["metric"] == "sequences_per_s") & (timed["mode"] == "decode")]
    assert sequences["value"].isna().all()


def test_compiling_and_the_first_call_are_figures_of_their_own(timed_in_jax):
    """Of a gradient over time the first call took a thousand times the steady one."""
    median = timed_in_jax[timed_in_jax["metric"] == "time"].groupby("cell_id")["value"].median()
    compiling = timed_in_jax[timed_in_jax["metric"] == "compile_time"].set_index("cell_id")["value"]
    assert (compiling.sort_index() > 10 * median.sort_index()).all()
    assert timed_in_jax["compiled"].all()
    assert {json.loads(text)["compile_cache"] for text in timed_in_jax["facts"]} == {"off"}


def test_nothing_is_compiled_while_it_is_timed(timed_in_jax):
    assert (timed_in_jax.loc[timed_in_jax["metric"] == "compilations_while_timed", "value"] == 0).all()


def test_the_machine_is_described_in_every_row(timed):
    for text in timed["facts"].unique():
        states = json.loads(text)["machine"]
        assert len(states) == 2
        assert all(
            {"load_1m", "steal", "other", "clock_mhz", "throttled", "repeated"} == set(state) for state in states
        )


def test_the_report_has_speed_by_mode_scaling_and_what_starting_costs(timed):
    found = blocks(timed, View(baseline="s4d"))
    titles = [block.title for block in found if isinstance(block, Table)]
    assert [title.split(" (")[0] for title in titles] == [
        "Time of a forward pass", "Time of a training step", "Time of one step of decoding",
        "Exponent of time over length", "Lengths at which models break even",
        "Before the steady state: compiling, the first call, and agreement with the oracle",
    ]  # fmt: skip
    forward = found[0]
    assert isinstance(forward, Table)
    speed = forward.columns.index("speed")
    assert [row[speed] for row in forward.rows if row[0] == "s4d"] == ["1", "1"]
    assert all("[" in row[speed] for row in forward.rows if row[0] == "lru")
    assert any("against s4d" in note for note in forward.notes)


def test_the_speed_that_is_shown_is_the_ratio_of_medians(timed):
    table = blocks(timed, View())[0]
    assert isinstance(table, Table)
    samples = timed[(timed["metric"] == "time") & (timed["mode"] == "forward") & (timed["length"] == 16)]
    medians = samples.groupby(["model", "process"])["value"].median().groupby("model").median()
    row = next(row for row in table.rows if row[0] == "s4d" and row[table.columns.index("length")] == "16")
    shown = float(row[table.columns.index("speed")].split(" [")[0].replace(",", ""))
    assert shown == pytest.approx(medians["lru"] / medians["s4d"], rel=0.01)


def test_cells_that_the_oracle_contradicts_are_left_out_unless_asked(timed):
    doubtful = timed.copy()
    bad = doubtful["model"] == "s4d"
    doubtful.loc[bad & doubtful["verified"].notna(), "verified"] = False
    shown = overview.report(doubtful, [])
    assert any(isinstance(block, Note) and "6 cells are left out" in block.text for block in shown)
    assert models_timed(shown) == {"lru"}
    assert models_timed(overview.report(doubtful, [], unverified=True)) == {"lru", "s4d"}


def models_timed(blocks) -> set[str]:
    tables = [block for block in blocks if isinstance(block, Table) and block.title.startswith("Time")]
    return {row[0] for table in tables for row in table.rows}


def test_peaks_are_what_the_arrays_of_a_pass_take(held):
    """States alone, two reals of four bytes, are a lower bound; of what is alive at once there is no tenfold."""
    assert set(held["status"]) == {"ok"}
    for (_, length, mode), rows in held.groupby(["cell_id", "length", "mode"]):
        states = 4 * length * 128 * 4
        peaks = rows[rows["metric"].isin(["peak_system", "peak_allocator"])]["value"].dropna()
        assert len(peaks) >= 1
        assert (peaks > states).all(), mode
        assert (peaks < 10 * states + 2**23).all(), mode


def test_the_systems_figure_and_the_allocators_agree_about_large_arrays(held):
    rows = held[held["length"] == 4096]
    system = rows[rows["metric"] == "peak_system"].set_index("backend")["value"]
    allocator = rows[rows["metric"] == "peak_allocator"].set_index("backend")["value"]
    compiler = rows[rows["metric"] == "predicted_compiler"].set_index("backend")["value"]
    assert system["torch"] == pytest.approx(allocator["torch"], rel=0.2)
    copied = 4 * 4096 * 64 * 4  # u on its way to the device is there twice, which XLA does not know
    assert 0.9 * compiler["jax"] < system["jax"] < 1.1 * (compiler["jax"] + copied)


def test_memory_that_was_never_measured_is_null_and_not_0(held):
    rows = held[(held["backend"] == "jax") & (held["metric"] == "peak_allocator")]
    assert rows["value"].isna().all()
    assert set(rows["message"]) == {"jax has no allocator statistics on this device"}
    notes = [block.text for block in Memory().report(held, View()) if isinstance(block, Note)]
    assert "jax, allocator: not measured, jax has no allocator statistics on this device." in notes


def weighed(peaks: dict[tuple[str, int], dict[str, float | None]]) -> pd.DataFrame:
    """Rows of memory cells, {(backend, length): {metric: bytes or None}}."""

    backends, lengths = (list(dict.fromkeys(values)) for values in zip(*peaks, strict=True))
    asked = {"mode": "train", "batch": 2, "d_model": 16, "length": lengths}
    request = plan.Request.parse(suite="memory", models="lru", backends=backends, set=asked)
    tables = []
    for cell in plan.cells(request, "cpu", "quick"):
        found = peaks[cell.backend, cell.factors["length"]]
        best = found["peak_allocator"] or found["peak_system"]
        resolved = found["peak_allocator"] or found["peak_system"] >= RESOLVED
        found = found | {"bytes_per_token": best / 10 if resolved else None}
        rows = [
            {"metric": name, "value": value, "message": unresolved(1) if value is None else None}
            for name, value in found.items()
        ]
        columns = {"status": "ok", "batch": 2, "mode": "train", "length": cell.factors["length"], "state_reals": 8}
        tables.append(store.table(cell.columns() | columns, rows))
    return store.frame(tables)


def test_memory_that_the_system_does_not_resolve_is_compared_with_nothing_and_the_report_says_so():
    below, above = 6 * 2.0**20, 16 * 2.0**20
    peaks = {("torch", n): {"peak_system": below, "peak_allocator": 1000.0 * n} for n in (64, 256, 1024)}
    peaks |= {
        ("jax", n): {"peak_system": size, "peak_allocator": None, "predicted_compiler": 3e5}
        for n, size in ((64, below), (256, above), (1024, 2 * above))
    }
    found = Memory().report(weighed(peaks), View())
    table, growth = (block for block in found if isinstance(block, Table))
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    differs = {(row["backend"], row["length"]): row["differs"] for row in rows}
    assert differs["jax", "64"] == "below 8 MiB: not compared"
    assert differs["jax", "256"] == differs["torch", "64"] == "-"
    assert any(note.startswith("below 8 MiB: not compared: there is no allocator's figure") for note in table.notes)
    notes = [block.text for block in found if isinstance(block, Note)]
    assert (
        "jax, bytes a token: not measured in 1 of 3 cells, there is no allocator's figure, and the system's is below "
        "the 8 MiB it resolves." in notes
    )
    rows = {row[growth.columns.index("backend")]: dict(zip(growth.columns, row, strict=True)) for row in growth.rows}
    assert (rows["torch"]["figure"], rows["torch"]["exponent"]) == ("allocator", "1.00")
    assert (rows["jax"]["figure"], rows["jax"]["from - to"], rows["jax"]["exponent"]) == (
        "system", "256 - 1,024", "0.50",
    )  # fmt: skip
    assert "Left out, no allocator's figure, and the system's is below 8 MiB: lru jax train length 64." in growth.notes
    small = weighed({key: value for key, value in peaks.items() if key[0] == "jax" and key[1] == 64})
    small_too = weighed({("jax", n): {"peak_system": below, "peak_allocator": None} for n in (64, 256)})
    assert not any(
        "How memory grows" in block.text for block in Memory().report(small, View()) if isinstance(block, Note)
    )
    (note,) = [b.text for b in Memory().report(small_too, View()) if isinstance(b, Note) and "How memory" in b.text]
    assert note.startswith("How memory grows: nothing to take it from, no allocator's figure")


def test_figures_that_disagree_say_so():
    assert disagreement(119.0, 100.0) == ""
    assert disagreement(121.0, 100.0) == "1.21 x the measured peak"
    assert disagreement(5.0, None) == ""


def test_the_report_of_memory_says_how_it_grows(held):
    tables = {block.title.split(" (")[0]: block for block in Memory().report(held, View()) if isinstance(block, Table)}
    growth = tables["How memory grows"]
    assert [row[growth.columns.index("figure")] for row in growth.rows] == ["allocator", "system"]  # torch, jax
    exponents = [float(row[growth.columns.index("exponent")]) for row in growth.rows]
    of_torch, of_jax = (peaks(held, backend, metric) for backend, metric in
                        (("torch", "peak_allocator"), ("jax", "peak_system")))  # fmt: skip
    assert exponents == pytest.approx([np.log2(ends[1] / ends[0]) for ends in (of_torch, of_jax)], abs=0.005)
    assert exponents[0] == pytest.approx(1, abs=0.02)
    # the system's figure is what XLA needs and up to 8 MiB of what the C library keeps, so its exponent says less
    needed = peaks(held, "jax", "predicted_compiler")
    assert (of_jax >= needed).all()
    assert (of_jax <= needed + 8.5 * 2**20).all()


def peaks(held: pd.DataFrame, backend: str, metric: str) -> np.ndarray:
    """A figure over both lengths."""
    rows = held[(held["backend"] == backend) & (held["metric"] == metric)]
    return rows.sort_values("length")["value"].to_numpy(float)


@pytest.mark.parametrize("suite", [Throughput, Memory])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tokens": 1000, "length": 256}, "1000"),
        ({"length": 0}, "length must be at least 1, not 0"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"tokens": -1, "length": 1}, "-1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(suite, options, says):
    with pytest.raises(ValueError, match=says):
        suite(**options)


def test_tokens_hold_batch_times_length_constant():
    cells = plan.cells(plan.Request.parse(suite="throughput", models="lru", tokens=65536, set={"length": [1024, 4096]}),
                       "cpu", "default")  # fmt: skip
    assert {(cell.suite_object.rows, cell.factors["length"]) for cell in cells} == {(64, 1024), (16, 4096)}


def sizes(by: str, models: str, **options):
    request = plan.Request.parse(suite="throughput", models=models, match=by, **options)
    return [(cell, cell.match) for cell in plan.cells(request, "cpu", "quick") if cell.factors["length"] == 1024
            and cell.factors["mode"] == "train"]  # fmt: skip


@pytest.mark.parametrize(("by", "models"), [("params", "s5,lru,s4d,rotrnn[heads=1]"), ("flops", "s5,lru,s4d")])
def test_matched_sizes_are_within_two_per_cent_where_heads_and_pairs_allow(by, models):
    cells = sizes(by, models, set={"d_model": 128})
    target = cells[0][1]["target"]
    for cell, match in cells:
        assert match["by"] == by
        assert match["size"] == pytest.approx(target, rel=0.02), cell.model
    if by == "params":
        assert [count(cell.layer) for cell, _ in cells] == [match["size"] for _, match in cells]


def test_the_nearest_size_is_taken_where_none_fits():
    (_, _), (cell, match) = sizes("state", "lru,s4d")
    assert cell.layer.state_reals == match["size"] == 2 * 64  # one pair of a channel is the least that S4D carries
    (_, _), (cell, match) = sizes("params", "lru,rotrnn")
    others = [count(bench.layer("rotrnn", d_model=64, d_state=cell.layer.d_state + d).layer) for d in (-64, 64)]
    assert abs(match["size"] - match["target"]) <= min(abs(other - match["target"]) for other in others)
    assert parse_name(cell.model)[0] == "rotrnn"


def test_matched_sizes_are_in_every_row_and_under_every_table(tmp_path_factory):
    one = {"batch": 1, "d_model": 8, "length": 8, "mode": "forward", "rounds": 1, "budget": 0.05}
    results = run(tmp_path_factory, suite="throughput", models="lru,s4d", match="params", set=one)
    facts = [json.loads(text)["match"] for text in results["facts"]]
    assert {found["by"] for found in facts} == {"params"}
    tables = [block for block in overview.report(results, []) if isinstance(block, Table)]
    timings = [table for table in tables if table.title.startswith(("Time", "Before"))]
    assert timings
    assert all(any(note.startswith("Sizes matched by params") for note in table.notes) for table in timings)


def test_a_size_that_is_matched_and_given_is_refused():
    with pytest.raises(ValueError, match="--match params sets the d_state of s5"):
        sizes("params", "lru,s5[d_state=64]")


def test_a_matched_cell_is_the_cell_that_has_these_options_anyway():
    (_, _), (cell, _) = sizes("params", "lru,s4d")
    asked = plan.Request.parse(suite="throughput", models=f"lru,{cell.model}")
    assert cell.id in {other.id for other in plan.cells(asked, "cpu", "quick")}


def test_a_whole_network_is_a_part_that_can_be_timed(tmp_path_factory):
    one = {"batch": 2, "d_model": 8, "length": 8, "mode": ["train", "decode"], "rounds": 1, "budget": 0.05}
    results = run(tmp_path_factory, suite="throughput", models="lru", depths=2, set=one | {"part": "network"})
    statuses = results.drop_duplicates("cell_id").set_index("mode")["status"]
    assert statuses.dropna().loc["train"] in ("ok", "unconverged")
    assert "unsupported" in set(results["status"])
    params = results["params"].dropna().unique()
    workload = Workload(
        layer=bench.layer("lru", d_model=8).layer, depth=2, part="network", mode="train", batch=2, length=8
    )
    assert int(params[0]) == sum(w.size for w in workload.weights("lru", 0).values())


def test_a_step_of_the_layers_alone_moves_what_recipes_train():
    """torch and jax take the same step: the weights after it agree."""
    from bench.backends import load

    layer = bench.layer("rotrnn", d_model=4, d_state=8, heads=2, normaliser="frozen").layer
    workload = Workload(layer=layer, depth=2, part="layer", mode="train", batch=2, length=9)
    weights = workload.weights("rotrnn", 0)
    inputs = workload.inputs(np.random.default_rng(0))
    programs = {name: load(name).Program(workload, weights, inputs, "float32", "cpu") for name in ("torch", "jax")}
    for program in programs.values():
        program.build()
        program.place()
        for _ in range(3):
            program.launch()
        program.wait()
    jax_weights = {name: np.asarray(value) for name, value in programs["jax"].arguments[0].items()}
    found = {name: p.detach().numpy() for name, p in programs["torch"].named.items()}
    assert jax_weights.keys() == workload.groups().keys()
    for name, value in jax_weights.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
        assert np.any(value != weights[name].astype(np.float32)), name


@pytest.mark.parametrize("model", ["lru", "s4d"])
def test_a_training_step_in_jax_computes_the_outputs_too(model):
    """Nobody needs them for the gradients of a linear loss, so XLA leaves them out where they are not given back."""
    from bench.backends import load

    layer = bench.layer(model, d_model=4, d_state=4).layer
    workload = Workload(layer=layer, depth=1, part="layer", mode="train", batch=2, length=9)
    weights, inputs = workload.weights(model, 0), workload.inputs(np.random.default_rng(0))
    program = load("jax").Program(workload, weights, inputs, "float32", "cpu")
    program.build()
    program.place()
    program.launch()
    params = {name.removeprefix("blocks.0.layer."): value for name, value in weights.items()}
    wanted = bench.layer(model, d_model=4, d_state=4).apply(params, inputs["u"], backend="reference", dtype="float32")
    np.testing.assert_allclose(np.asarray(program.result[2][0]), wanted, atol=2e-4 * np.abs(wanted).max())
    wanted = bench.layer(model, d_model=4, d_state=4).gradients(params, inputs["u"], inputs["cotangent"])["u"]
    np.testing.assert_allclose(np.asarray(program.result[2][1]), wanted, atol=2e-4 * np.abs(wanted).max())


def frame(timed: pd.DataFrame, **columns) -> pd.DataFrame:
    """The same rows as those of other cells, which differ in these columns and factors."""
    other = timed.copy()
    for name, value in columns.items():
        other[name] = value
    other["cell_id"] = other["cell_id"] + str(columns)
    factors = other["factors"].map(json.loads)
    other["factors"] = [json.dumps(found | {k: v for k, v in columns.items() if k in found}) for found in factors]
    return other


@pytest.mark.parametrize(
    ("columns", "head"), [({"depth": 4}, "depth"), ({"compiled": True}, "compiled"), ({"dtype": "tf32"}, "dtype")]
)
def test_what_varies_has_a_column_and_is_never_compared_across(timed, columns, head):
    both = pd.concat([timed, frame(timed, **columns)], ignore_index=True)
    table = blocks(both, View())[0]
    assert isinstance(table, Table)
    assert head in table.columns
    assert head not in table.title.split(" (")[1].replace("d_model", "").split()
    speed = table.columns.index("speed")
    assert [row[speed] for row in table.rows if row[0] == "lru"] == ["1"] * 4


def test_lengths_are_compared_at_one_batch(timed):
    both = pd.concat([timed, frame(timed, batch=8)], ignore_index=True)
    tables = {block.title: block for block in blocks(both, View()) if isinstance(block, Table)}
    scaling = tables["Exponent of time over length"]
    assert sorted({row[scaling.columns.index("constant")] for row in scaling.rows}) == ["batch 2", "batch 8"]
    assert len(scaling.rows) == 12


def test_decoding_at_a_constant_number_of_tokens_has_no_exponent(timed):
    other = frame(timed, tokens=128)
    scaling = next(b for b in blocks(other, View()) if isinstance(b, Table) and b.title.startswith("Exponent"))
    assert {row[scaling.columns.index("mode")] for row in scaling.rows} == {"forward", "train"}


def test_a_batch_that_is_given_goes_before_the_tokens_of_a_preset():
    request = plan.Request.parse(suite="throughput", models="lru", set={"batch": 3, "length": 1000, "mode": "train"})
    (cell,) = plan.cells(request, "cuda", "default")
    assert cell.suite_object.rows == 3
    with pytest.raises(ValueError, match="batch and tokens say the same"):
        plan.cells(plan.Request.parse(suite="throughput", tokens=2048, set={"batch": 3}), "cuda", "default")


def test_tasks_are_refused_where_no_suite_has_any():
    with pytest.raises(ValueError, match="--tasks: cells of the suite memory have no task"):
        plan.cells(plan.Request.parse(suite="memory", tasks="listops"), "cpu", "quick")
    both = plan.cells(plan.Request.parse(suite="memory,stability", models="lru", tasks="digits"), "cpu", "quick")
    assert {(cell.suite, cell.task) for cell in both} == {("memory", None), ("stability", "digits")}


def test_the_model_of_memory_counts_layers_once_where_one_is_alive_at_a_time():
    layer = bench.layer("lru", d_model=16).layer
    params = count(layer)
    one, four = (layer_cost(layer, "forward", 2, 100, params, 4, depth) for depth in (1, 4))
    assert four.flops == 4 * one.flops
    assert four.held - one.held == 3 * 4 * params
    one, four = (layer_cost(layer, "train", 2, 100, params, 4, depth) for depth in (1, 4))
    assert four.held - one.held == 3 * (4 * 4 * params + 4 * 2 * 100 * (16 + 128))
    assert (
        layer_cost(layer, "forward", 2, 100, params, 8).moved
        == 2 * layer_cost(layer, "forward", 2, 100, params, 4).moved
    )


# Tables of times that are given: {(model, backend, length): samples of each process}.


def given(times, status="ok", **factors) -> pd.DataFrame:

    models, backends, lengths = (list(dict.fromkeys(values)) for values in zip(*times, strict=True))
    asked = {"mode": "forward", "batch": 2, "d_model": 8} | factors | {"length": lengths}
    request = plan.Request.parse(suite="throughput", models=models, backends=backends, set=asked)
    tables = []
    for cell in plan.cells(request, "cpu", "quick"):
        processes = times.get((cell.model, cell.backend, cell.factors["length"]), ())
        rows = [
            {"metric": "time", "value": value, "unit": "s", "process": process, "sample": sample}
            for process, values in enumerate(processes)
            for sample, value in enumerate(values)
        ]
        for process, values in enumerate(processes):
            more = {
                "tokens_per_s": 2 / np.median(values),
                "limit_time": 1e-3,
                "limit_fraction": 1e-3 / np.median(values),
            }
            rows += [{"metric": name, "value": value, "process": process} for name, value in more.items()]
        columns = cell.columns() | {"status": status if processes else "missing", "state_reals": 8, "batch": 2}
        columns |= {"mode": cell.factors["mode"], "length": cell.factors["length"], "kernel": "k"}
        tables.append(store.table(columns, rows))
    return store.frame(tables)


def shown(results, title) -> tuple[list[dict], list[str]]:
    """The rows and notes of a table."""
    (found,) = [b for b in blocks(results, View()) if isinstance(b, Table) and b.title.startswith(title)]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows], list(found.notes)


def steady(seconds: float, spread: float = 0.01) -> list[list[float]]:
    """Three processes that agree but for `spread`, relative."""
    return [[seconds * (1 + spread * i)] * 8 for i in (-1, 0, 1)]


def test_rates_and_limits_come_from_the_time_that_is_shown():
    """One process took 0.2 ms a step and one 31.2: the median is 15.7 ms, a mean of rates 5,032 a second."""
    ((row,), notes) = shown(given({("lru", "torch", 16): [[2e-4] * 6, [3.12e-2] * 6]}, mode="decode"), "Time")
    assert row["time [ms]"] == "15.7"
    assert row["thousand tokens/s"] == "0.127"  # a batch of 2 in 15.7 ms
    assert row["of limit"] == "6%"  # 1 ms
    assert any("tokens/s: from that time" in note for note in notes)
    ((row,), _) = shown(given({("lru", "torch", 16): [[1e-2] * 6]}), "Time")
    assert row["thousand tokens/s"] == "3.20"  # 2 sequences of 16 steps


def test_a_speed_without_a_baseline_has_its_reason():
    times = {("lru", "torch", 16): steady(1.0), ("s4d", "torch", 16): steady(2.0), ("s4d", "jax", 16): steady(2.0)}
    rows, notes = shown(given(times), "Time")
    assert {(row["model"], row["backend"]): row["speed"] for row in rows if row["time [s]"] != "-"}["s4d", "jax"] == "-"
    assert "speed: - where there is no time of lru to compare with: jax length 16." in notes
    _, notes = shown(given({("lru", "torch", 16): steady(1.0), ("s4d", "torch", 16): steady(2.0)}), "Time")
    assert not any(note.startswith("speed: -") for note in notes)


def test_an_exponent_has_the_interval_of_its_times():
    lengths, power = (16, 64, 256), 1.5
    exact = given({("lru", "torch", n): steady(1e-6 * n**power, 0.0) for n in lengths})
    ((row,), notes) = shown(exact, "Exponent")
    assert (row["exponent"], row["95 % interval"]) == ("1.50", "[1.50, 1.50]")
    assert row["between neighbours"] == "1.50 [1.50, 1.50], 1.50 [1.50, 1.50]"
    assert not any(note.startswith("*") for note in notes)
    wide = given({("lru", "torch", n): steady(1e-6 * n**power, 0.5) for n in lengths[:2]}, status="unconverged")
    ((row,), notes) = shown(wide, "Exponent")
    low, high = map(float, row["95 % interval"].strip("[]").split(", "))
    # medians of three of three processes reach from half to one and a half of the time: log 3 / log 4 each way
    assert low == pytest.approx(power - np.log(3) / np.log(4), abs=0.01)
    assert high == pytest.approx(power + np.log(3) / np.log(4), abs=0.01)
    assert row["exponent"] == "1.50 *"
    assert any(note.startswith("*") for note in notes)


def test_models_break_even_only_where_that_is_resolved():
    def at(spreads, faster=(2.0, 0.5, 0.25), **more):
        """lru takes 1 s at 4, 16, 64, s4d 1 / faster."""
        lengths = (4, 16, 64)[: len(faster)]
        times = {("lru", "torch", n): steady(1.0, 0.001) for n in lengths}
        times |= {
            ("s4d", "torch", n): steady(1 / speed, spread)
            for n, speed, spread in zip(lengths, faster, spreads, strict=True)
        }
        ((row,), _) = shown(given(times, **more), "Lengths at which")
        return row["length"], row["faster below"], row["faster above"]

    sure, doubtful = 0.01, 0.9
    # log-log midpoint of 4 and 16, as s4d is as much faster here as it is slower there
    assert at([sure] * 3) == ("8", "s4d", "lru")
    assert at([sure, doubtful, sure]) == ("between 4 and 64 (not resolved at 16)", "s4d", "lru")
    assert at([doubtful] * 3, (1.1, 0.9, 0.9)) == ("not resolved", "not resolved", "not resolved")
    assert at([doubtful, sure, sure], (1.1, 0.5, 0.25)) == (
        "not resolved at 4; else lru is faster",
        "not resolved",
        "lru",
    )
    assert at([sure] * 3, (2.0, 4.0, 8.0)) == ("none: s4d is faster throughout", "s4d", "s4d")
    assert at([sure] * 3, status="unconverged")[0] == "8 *"
