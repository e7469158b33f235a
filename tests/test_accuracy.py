"""The suite `accuracy`: what is recorded, chosen and tested; interruption; recipes; the report."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from made_store import cell as made_cell
from made_store import run_of, seeds

import bench
from bench import plan, store, worker
from bench.checkpoint import Checkpoint
from bench.contract import Diverged, View
from bench.matching import count
from bench.measurement import Measurement
from bench.network import Network
from bench.options import build
from bench.plan import Request
from bench.prefetch import Prefetch
from bench.recipe import Recipe
from bench.report.blocks import Table
from bench.training import Batch
from suites.accuracy import recipes
from suites.accuracy.published import figure
from suites.accuracy.report import blocks
from suites.accuracy.suite import Accuracy

adaptation = partial(recipes.adaptation, Accuracy)
TASK = "listops[max_length=24,train=64,validation=40,test=32]"
SMALL = ["steps=12", "evaluations=4", "watched=16", "batch=8", "d_model=8", "d_state=8"]


def cells(*more, models="lru", tasks=TASK, seeds="0", preset="quick", **asked):
    request = Request.parse(suite="accuracy", models=models, tasks=tasks, seeds=seeds, set=[*SMALL, *more], **asked)
    return plan.cells(request, "cpu", preset)


def measurement(cell, checkpoint=None):
    found = Measurement(cell, "cpu", 1, checkpoint=checkpoint)
    found.backend.set_process(cell.dtype, 1)
    return found


def table(found, status="ok"):
    columns = found.cell_columns() | {"status": status, "code": "x", "started_at": "2026"}
    return store.frame([store.table(columns, found.rows)])


def measure(cell, checkpoint=None):
    found = measurement(cell, checkpoint)
    kept: dict = {}
    found.save_params = kept.update
    found.suite.measure(found)
    return table(found), kept


@pytest.fixture(scope="module")
def measured():
    (cell,) = cells("norm=batch", "dropout=0.1")
    return cell, *measure(cell)


def test_splits_are_looked_at_evenly_and_the_test_split_once(measured):
    _, rows, _ = measured
    accuracy = rows[rows["metric"] == "accuracy"]
    for split in ("train", "validation"):
        assert accuracy[accuracy["split"] == split]["step"].tolist() == [3, 6, 9, 12]
    assert len(accuracy[accuracy["split"] == "test"]) == 1
    assert set(rows["split"].dropna()) == {"train", "validation", "test"}
    assert rows[rows["metric"] == "batch_loss"]["step"].tolist() == list(range(12))
    assert rows[(rows["metric"] == "rate") & (rows["step"] == 12)]["value"].tolist() == [0.0, 0.0]
    last = rows[rows["step"] == 12].set_index("metric")["value"]
    assert last["tokens"] > 12 * 8 * 6  # trees of more than 6 tokens
    assert {"gradient_norm", "seconds", "state_rms"} <= set(last.index)


def test_the_step_that_is_tested_has_the_best_validation_then_the_smaller_loss_then_comes_first(measured):
    cell, rows, kept = measured
    at = rows[rows["split"] == "validation"].pivot_table(index="step", columns="metric", values="value")
    wanted = max(at.index, key=lambda step: (at.loc[step, "accuracy"], -at.loc[step, "loss"], -step))
    assert rows.loc[rows["metric"] == "selected_step", "value"].item() == wanted
    test = rows[rows["split"] == "test"].set_index("metric")
    assert set(test["step"]) == {wanted}
    # what was kept gives this very accuracy, example by example
    task = cell.task_object
    data = task.load(0)
    network = Network.of(cell.layer, cell.depth, task, cell.suite_object.structure)
    trainer = bench.backends.load("torch").Trainer(network, kept, Recipe(steps=1, batch=1), "float32", "cpu")
    right = [task.metric(trainer.logits(Batch.of(data.test, np.array([i]))), data.test.targets[[i]]) for i in range(32)]
    assert test.loc["accuracy", "value"] == np.mean(right)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", [4, 9, 11])
def test_killed_and_resumed_equals_undisturbed_bit_for_bit(measured, tmp_path, at):
    cell, rows, kept = measured
    path = tmp_path / "checkpoints" / "x.safetensors"
    disturbed = measurement(cell, Checkpoint(path, "code"))
    whole, calls = disturbed.backend.Trainer.step, []

    def step(self, *arguments):
        calls.append(0)
        if len(calls) == at:
            raise Killed
        return whole(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disturbed.backend.Trainer, "step", step)
        with pytest.raises(Killed):
            disturbed.suite.measure(disturbed)
    assert path.exists()
    found, again = measure(cell, Checkpoint(path, "code"))
    assert not path.parent.exists()
    timed = ["seconds", "waiting"]
    pd.testing.assert_frame_equal(
        found[~found["metric"].isin(timed)].reset_index(drop=True),
        rows[~rows["metric"].isin(timed)].reset_index(drop=True),
        check_exact=True,
    )
    assert again.keys() == kept.keys()
    assert all(np.array_equal(again[name], kept[name]) for name in kept)


def test_a_checkpoint_of_other_code_or_a_damaged_one_is_not_gone_on_from(tmp_path):
    path = tmp_path / "checkpoints" / "x.safetensors"
    Checkpoint(path, "one").save({"a": np.float64(0.1)}, {"rows": [0.1 + 0.2]})
    arrays, about = Checkpoint(path, "one").load()
    assert (arrays["a"], about["rows"]) == (0.1, [0.1 + 0.2])
    assert Checkpoint(path, "other").load() is None
    path.write_bytes(path.read_bytes()[:40])
    assert Checkpoint(path, "one").load() is None


def test_training_that_diverges_says_its_step():
    (cell,) = cells("rate=1e30", "warmup=0", "clip=1e30")
    found = measurement(cell)
    with pytest.raises(Diverged):
        found.suite.measure(found)


def test_a_cell_that_diverged_leaves_no_checkpoint(tmp_path):
    (cell,) = cells("rate=1e30", "warmup=0", "clip=1e30")
    (tmp_path / "cells").mkdir()
    path = tmp_path / "checkpoints" / f"{cell.id}.safetensors"
    Checkpoint(path, "older code").save({"a": np.zeros(1)}, {})
    spec = {"plugins": [], "params": False, "threads": 1, "begun": str(tmp_path / "begun"), "device": "cpu",
            "run_id": "run", "env_id": "env", "code": "code"}  # fmt: skip
    assert worker.measure(worker.Task(dataclasses.asdict(cell)), spec, tmp_path) == "diverged"
    assert not path.parent.exists()


def test_matched_models_are_trained_by_the_recipe_and_at_its_width():
    request = Request.parse(suite="accuracy", models="lru,rotrnn,s5", tasks="digits", seeds="0", match="params")
    lru, *others = plan.cells(request, "cpu", "quick")
    for cell in others:
        assert (cell.d_model, cell.factors, cell.depth) == (32, lru.factors, lru.depth)
        assert cell.match["target"] == count(lru.layer)
        assert cell.match["size"] == count(cell.layer)
    assert lru.factors["steps"] == 800


def test_matched_sizes_go_before_those_of_a_recipe_whose_other_options_hold(tmp_path):
    recipe = tmp_path / "own.toml"
    recipe.write_text("[default]\nd_model = 32\n[models.lru]\noptions = { d_state = 48, r_min = 0.5 }\n")
    set_ = {"recipe": [str(recipe)]}
    request = Request.parse(
        suite="accuracy", models="s5[d_state=80],lru", tasks="digits", seeds="0", match="params", set=set_
    )
    s5, lru = plan.cells(request, "cpu", "quick")
    assert lru.options["r_min"] == 0.5
    assert lru.model == f"lru[d_state={lru.options['d_state']}]"
    assert abs(lru.match["size"] - count(s5.layer)) < abs(count(s5.layer) - 6320)  # that of d_state = 48
    first, other = plan.cells(dataclasses.replace(request, models=["lru", "s5"]), "cpu", "quick")
    assert first.options["d_state"] == 48
    assert other.match["target"] == count(first.layer) == 6320


def test_a_parameter_that_a_layer_has_not_is_refused_before_any_work():
    with pytest.raises(ValueError, match="moved: 'theta' is neither a role nor a parameter: allowed are B_im"):
        cells("moved=theta:fast")
    assert len(cells("moved=theta:fast", "heads=2", models="rotrnn")) == 1


def test_epochs_are_whole_passes_over_the_training_split():
    assert Accuracy(epochs=3, batch=10).training(64).steps == 18
    assert Accuracy(epochs=3, batch=100).training(64).steps == 3
    assert Accuracy(steps=7).training(64).steps == 7
    asked = {"suite": "accuracy", "models": "lru", "tasks": TASK, "seeds": "0"}
    (cell,) = plan.cells(Request.parse(**asked, set=["epochs=2", "batch=8", "d_model=8"]), "cpu", "quick")
    assert (cell.factors["epochs"], cell.suite_object.training(64).steps) == (2, 16)
    assert "steps" not in cell.factors  # no number that the training does not have
    with pytest.raises(ValueError, match="epochs and steps say the same: give one of them"):
        cells("epochs=2")


def test_epochs_of_rows_are_those_that_were_made_though_batches_do_not_divide_the_examples():
    tiny = ["epochs=4", "batch=10", "evaluations=4", "watched=4", "d_model=4", "d_state=4"]
    tasks = TASK.replace("train=64", "train=33")
    asked = Request.parse(suite="accuracy", models="lru", tasks=tasks, seeds="0", set=tiny)
    rows, _ = measure(plan.cells(asked, "cpu", "quick")[0])
    found = rows[rows["metric"] == "seconds"]
    assert found["step"].tolist() == [3, 6, 9, 12]
    assert found["epoch"].tolist() == [1, 2, 3, 4]


def test_rows_hold_the_options_of_their_task_and_the_state_at_its_length():
    small = "mqar[length=16,kv_pairs=2,vocabulary_size=16,train=40,validation=10,test=10]"
    (cell,) = plan.cells(
        Request.parse(suite="accuracy", models="transformer", tasks=small, seeds="0",
                      set=["steps=1", "evaluations=1", "d_model=8", "d_state=8", "heads=2"]), "cpu", "quick",
    )  # fmt: skip
    rows, _ = measure(cell)
    assert set(rows["state_reals"]) == {16 * 2 * 8}  # a key and a value of every position
    assert json.loads(rows["facts"].iloc[0])["task_options"]["kv_pairs"] == 2


def test_items_made_ahead_come_in_order_and_what_fails_in_making_them_comes_through():
    with Prefetch(iter(range(100))) as items:
        assert list(items) == list(range(100))

    def broken():
        yield 1
        raise OSError("no more")

    with Prefetch(broken()) as items:
        found = iter(items)
        assert next(found) == 1
        with pytest.raises(OSError, match="no more"):
            next(found)
    with Prefetch(iter(range(10**9))) as items:  # left early, its thread ends
        next(iter(items))


PAPER = ("listops", "text", "retrieval", "image", "pathfinder", "pathfinder[size=128]", "speech-commands")


@pytest.mark.parametrize("model", ["lru", "rotrnn", "s4d", "s5"])
@pytest.mark.parametrize("task", PAPER)
def test_published_recipes_exist_and_build(model, task):
    found = adaptation("paper", model, task)
    suite = build("suite accuracy", Accuracy, {**found.factors, **found.fixed})
    layer = bench.layer(model, d_model=suite.d_model, **found.options).layer
    assert found.depth in (6, 8)
    assert suite.recipe == "paper"
    network = Network(layer=layer, depth=1, inputs=2, tokens=True, classes=2, structure=suite.structure)
    groups = suite.training(1000).groups(network.roles())
    assert len({group for name, group in groups.items() if ".layer." in name}) >= (1 if model == "rotrnn" else 2) or (
        model == "s5" and task == "speech-commands"
    )


def test_published_recipes_say_what_the_sources_say():
    """Spot values: the LRU's Table 9, S5's scripts (roles too), S4D's configurations."""
    lru, s5, s4d = (adaptation("paper", model, "listops") for model in ("lru", "s5", "s4d"))
    assert lru.factors["steps"] == 80_000
    assert lru.options == {"d_state": 256, "r_min": 0.0, "r_max": 0.99}
    assert (s5.depth, s5.factors["epochs"], s5.factors["rate"], s5.factors["mix"]) == (8, 40, 3e-3, "half_glu2")
    roles = bench.layer("s5", d_model=8, **s5.options | {"d_state": 8, "blocks": 2}).layer
    network = Network(layer=roles, depth=1, inputs=2, tokens=True, classes=2)
    groups = build("suite accuracy", Accuracy, s5.factors).training(5000).groups(network.roles())
    assert groups["blocks.0.layer.B"] == (1.0, 0.04)
    assert groups["blocks.0.layer.Lambda_re"] == (pytest.approx(1 / 3), 0.0)
    assert s4d.factors["prenorm"] is False
    assert adaptation("paper", "lru", "pathfinder[size=128]").options["max_phase"] == pytest.approx(np.pi / 10)
    with pytest.raises(ValueError, match="recipe paper: it has nothing for lru on digits: it has image, listops"):
        adaptation("paper", "lru", "digits")
    assert adaptation("paper", "rotrnn", "pathfinder").factors["momentum"] == 0.9
    assert adaptation("paper", "lru", "listops[train=64,origin=generated]").factors["steps"] == 80_000


@pytest.mark.parametrize("task", ["pathfinder[size=256]", "pathfinder[difficulty=easy]", "listops[max_length=100]",
                                  "speech-commands[words=10]"])  # fmt: skip
def test_a_published_recipe_is_for_the_published_task_alone(task):
    with pytest.raises(ValueError, match="recipe paper: it has nothing for s5 on "):
        adaptation("paper", "s5", task)


def test_a_variant_that_gives_an_option_keeps_it_whatever_the_recipe_says():
    """The LRU's published recipe for Path-X has a ring of its own and small phases; the ladder begins without."""
    request = Request.parse(
        suite="accuracy", models="lru", variants=True, tasks="pathfinder[size=128]", seeds="0", set=["d_state=4"]
    )
    planned = {cell.model: cell.options for cell in plan.cells(request, "cpu", "paper")}
    ring = {"r_min": 0.999, "r_max": 0.9999, "max_phase": pytest.approx(np.pi / 10)}
    disc = {"r_min": 0.0, "r_max": 1.0, "max_phase": 2 * np.pi}
    for name, wanted in (
        ("lru[d_state=4]", ring),
        ("lru[d_state=4,gamma=none]", ring),
        ("lru[d_state=4,parameterisation=complex,r_max=1.0,gamma=none]", disc),
        ("lru[d_state=4,r_max=1.0,gamma=none]", disc),
    ):
        assert {option: planned[name][option] for option in ring} == wanted


def test_later_sections_go_first_and_the_user_before_them_all(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[default]\nrate = 1e-3\nsteps = 50\ndepth = 3\n[models.lru]\nrate = 2e-3\noptions = {r_max = 0.5}\n'
        '[tasks.listops]\nrate = 4e-3\nepochs = 2\n[lru."listops[max_length=24]"]\ndropout = 0.3\n'
    )  # fmt: skip
    found = adaptation(str(path), "lru", TASK)
    assert found.factors == {"rate": 4e-3, "epochs": 2, "dropout": 0.3}
    assert found.fixed == {"recipe": "mine"}
    assert (found.options, found.depth) == ({"r_max": 0.5}, 3)
    asked = {"suite": "accuracy", "models": "lru,rotrnn", "tasks": TASK, "seeds": "0"}
    from_file = plan.cells(
        Request.parse(**asked, set=[f"recipe={path}", "rotrnn.heads=2", "d_model=8"]), "cpu", "quick"
    )
    assert [cell.depth for cell in from_file] == [3, 3]
    assert [cell.options.get("r_max") for cell in from_file] == [0.5, None]
    assert [cell.columns()["recipe"] for cell in from_file] == ["mine", "mine"]
    own = ["rotrnn.heads=2", "rate=0.5", "steps=9", "r_max=0.7"]
    given = plan.cells(Request.parse(**asked, depths="1", set=[f"recipe={path}", *own]), "cpu", "quick")
    for cell in given:
        assert (cell.depth, cell.factors["rate"], cell.factors["steps"], cell.factors["epochs"]) == (1, 0.5, 9, None)
    assert given[0].options["r_max"] == 0.7


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[default]\nrat = 1", r"\[default\] has no option 'rat': did you mean 'rate'"),
        ("[default]\nrate = 'fast'", r"\[default\] option rate is 'fast': it must be a number"),
        ("[default]\ndepth = 0", "option depth is 0: it must be a whole number of at least 1"),
        ("[tasks.digits]\noptions = {d_state = 4}\n[default]", "has options of a model, and names none"),
        ("[models.lru]\noptions = {heads = 4}\n[default]", r"\[models.lru\] options has no option 'heads'"),
        ("rate = 1", "rate stands outside of a section"),
        ("[default", "recipe .*"),
        ("[default]\nrecipe = 'paper'", "names another recipe"),
        ("[default]\nsteps = 10\nepochs = 2", r"\[default\]: epochs and steps say the same"),
        ("[default]\n[models.rotrn]\nsteps = 9", r"unknown model in .*\[models.rotrn\] 'rotrn': did you mean 'rotrnn'"),
        ("[default]\n[tasks.digit]\nsteps = 9", r"unknown task in .*\[tasks.digit\] 'digit': did you mean 'digits'"),
        (
            "[default]\n[nosuch.digits]\nsteps = 9",
            r"unknown section in recipe .* 'nosuch'",
        ),
        ('[default]\n[lru."digits[foo=1]"]\nsteps = 9', r"\[lru.digits\[foo=1\]\] has no option 'foo'"),
    ],
)
def test_a_recipe_file_with_a_fault_is_refused_with_its_section(tmp_path, text, says):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        adaptation(str(path), "lru", "digits")


def test_a_recipe_that_is_not_there_is_refused_with_what_is():
    with pytest.raises(ValueError, match=r"allowed are default, quick, paper and a file that ends in \.toml"):
        adaptation("papers", "lru", "digits")
    with pytest.raises(ValueError, match=r"recipe nowhere\.toml: No such file"):
        adaptation("nowhere.toml", "lru", "digits")


def test_published_figures_stand_beside_the_models_that_have_them():
    assert figure(["LRA", "ListOps"], "lru") == "60.2"
    assert figure(("LRA", "ListOps"), "lru[r_max=0.9]") == "-"  # a rung of the ladder, say, is not the model
    assert figure(("LRA", "ListOps"), "rotrnn") == "-"
    assert figure(("LRA", "ListOps"), "s5").endswith(" (q)")
    assert figure(None, "lru") == figure(("LRA", "ListOps"), "mine") == "-"


def score(model, seed, test, status="ok", floors=None):
    common = {
        "cell_id": f"{model} {seed}", "suite": "accuracy", "model": model, "seed": seed, "status": status,
        "factors": json.dumps({"recipe": "quick", "steps": 2}), "task": "digits", "device": "cpu", "dtype": "float32",
        "backend": "torch", "compiled": False, "options": "{}", "d_model": 8, "depth": 2, "params": 10,
        "suite_version": 1, "state_reals": 4, "message": None, "layer": None, "t": None,
        "facts": json.dumps({"floors": floors or {"majority": 0.1}, "published": None}),
    }  # fmt: skip
    found = [("accuracy", "validation", 1, test - 0.1), ("accuracy", "validation", 2, test - 0.2),
             ("accuracy", "train", 2, 1.0), ("accuracy", "test", 1, test), ("selected_step", "validation", None, 1),
             ("seconds", None, 2, 3.0), ("waiting", None, None, 0.01)]  # fmt: skip
    return [common | dict(zip(("metric", "split", "step", "value"), one, strict=True)) for one in found]


def test_the_report_counts_seeds_and_marks_a_mean_over_those_that_are_left():
    rows = [*score("lru", 0, 0.9), *score("lru", 1, 0.7), *score("s5", 0, 0.8), *score("s5", 1, 0.2, "diverged")]
    found, course = (block for block in blocks(pd.DataFrame(rows)) if isinstance(block, Table))
    shown = {row[0]: dict(zip(found.columns, row, strict=True)) for row in found.rows}
    assert (shown["lru"]["ok"], shown["lru"]["test"], shown["lru"]["validation"]) == (
        "2/2",
        "80.0 ± 14.1",
        "70.0 ± 14.1",
    )
    assert (shown["s5"]["ok"], shown["s5"]["test"]) == ("1/2", "80.0!")
    assert any("majority 10.0" in note for note in found.notes)
    assert any(note.startswith("!:") for note in found.notes)
    assert [row[course.columns.index("chosen")] for row in course.rows] == ["1 1", "1"]
    assert Accuracy().report(pd.DataFrame(rows), View())


@pytest.mark.filterwarnings("error")
def test_what_was_not_recorded_is_a_dash(tmp_path):
    run = run_of(
        tmp_path / "run", [*seeds("a", [0.5, 0.6]), made_cell("a", 2, None, "error"), made_cell("b", 0, None, "oom")]
    )
    scores, course = (block for block in blocks(store.read_results(run)) if isinstance(block, Table))
    assert [row[3:5] for row in scores.rows] == [["2/3", "55.0 ± 7.1!"], ["0/1", "-"]]
    assert course.rows == [["digits", "a", "2", "32", "", "-", "", "-", "-", "-"]]
