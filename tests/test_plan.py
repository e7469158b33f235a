"""From what the user asks for to cells: which there are, what they are called, and what is refused."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
import typing
from importlib.metadata import PathDistribution

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bench
from bench import plan, registry, runner, store
from bench.backends import reference
from bench.options import build, fields, parse_name
from bench.plan import Request


def cells(found="cpu", **given):
    """The plan of one small request, with changes, on a machine where this kind of device was found."""
    request = Request.parse(**{"suite": "stability", "models": "lru", "seeds": "0", "depths": "1"} | given)
    return plan.cells(request, found, request.preset or "quick")


def ids(**given):
    return [cell.id for cell in cells(**given)]


def models(**given):
    return [cell.model for cell in cells(**given)]


def refusal(**given):
    with pytest.raises(ValueError) as error:
        cells(**given)
    return str(error.value)


@pytest.mark.parametrize("typed", ["rotrnn,lru", "RotRNN, LRU", "rotrnn,,lru,", ["rotrnn", "LRU"], "rotrnn,lru,LRU"])
def test_models_are_the_same_however_they_are_typed(typed):
    assert models(models=typed) == ["rotrnn", "lru"]


def test_without_models_the_ones_of_this_distribution_are_compared():
    assert sorted(models(models=None)) == ["lru", "rotrnn", "s4d", "s5"]


def test_preset_gives_tasks_and_depths_and_three_seeds_are_the_default():
    found = cells(depths=None, seeds=None)
    assert {cell.depth for cell in found} == {2, 4}
    assert {cell.seed for cell in found} == {0, 1, 2}
    assert {parse_name(cell.task)[0] for cell in found} == {"listops"}


def test_seed_zero_is_a_seed():
    assert [cell.seed for cell in cells(seeds="0")] == [0]
    assert [cell.seed for cell in cells(seeds=[0, 1])] == [0, 1]


def test_every_cell_of_a_large_plan_is_another_one():
    found = ids(
        models="rotrnn,lru,s4d,s5", backends="torch,jax", depths="1,2,4", seeds="0-3", variants=True,
        tasks="digits,listops", set=["steps=10,20", "evaluations=4"], dtypes="float32,float64",
    )  # fmt: skip
    assert len(set(found)) == len(found)
    assert len(found) % (2 * 3 * 4 * 2 * 2 * 2) == 0


def test_the_id_of_a_cell_does_not_depend_on_the_order_of_what_is_asked_for():
    one = ids(models="lru,rotrnn", seeds="0,1", depths="1,2", set=["steps=8,9", "evaluations=2"])
    other = ids(models="rotrnn,lru", seeds="1,0", depths="2,1", set=["evaluations=2", "steps=9,8"])
    assert one != other
    assert sorted(one) == sorted(other)


def test_another_process_plans_the_same_ids_and_makes_the_same_splits():
    tasks = "listops[max_length=30,train=40,validation=10,test=10],digits"
    program = (
        "from bench import plan; from bench.plan import Request;"
        f"r = Request.parse(suite='stability', models='lru,s5', seeds='0', depths='1', tasks={tasks!r});"
        "[print(c.id, c.task_object.load(0).checksum) for c in plan.cells(r, 'cpu', 'quick')]"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert [tuple(line.split()) for line in done.stdout.splitlines()] == [
        (cell.id, cell.task_object.load(0).checksum) for cell in cells(models="lru,s5", tasks=tasks)
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"seeds": "1"},
        {"depths": "2"},
        {"models": "rotrnn"},
        {"models": "lru[gamma=tied]"},
        {"backends": "jax"},
        {"dtypes": "float64"},
        {"tasks": "digits"},
        {"tasks": "listops[max_length=90]"},
        {"set": ["steps=100"]},
        {"set": ["d_model=32"]},
        {"found": "cuda"},
    ],
)
def test_whatever_a_number_may_depend_on_changes_the_id(other):
    assert ids(**other) != ids()


def test_wording_does_not_change_the_id(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(
        """
        suite = "stability"
        models = ["rotrnn"]
        seeds = 0
        depths = [1]
        [set]
        rotrnn.heads = 4
        listops.max_length = 90
        """
    )
    request, _ = runner.merge(file, {})
    wordings = [
        ids(models="rotrnn", set=["rotrnn.heads=4", "listops.max_length=90"]),
        ids(models="rotrnn", set=["heads=4", "max_length=90"]),
        ids(models="RotRNN[heads=4]", tasks="listops[max_length=90]"),
        ids(models="rotrnn[heads=4,d_state=128]", tasks="ListOps[max_length=90]", set=["d_model=64"]),
        ids(models="rotrnn", set={"heads": 4, "listops": {"max_length": 90}}),
        ids(models="rotrnn", set={"RotRNN.heads": [4], "max_length": "90"}),
        ids(suite="stability[steps=200]", models="rotrnn[heads=4]", set=["max_length=90"]),
        [cell.id for cell in plan.cells(request, "cpu", "quick")],
    ]
    assert [found for found in wordings if found != wordings[0]] == []
    assert len(wordings[0]) == 1


def test_a_value_equal_to_the_default_changes_neither_name_nor_id():
    assert ids(models="lru[d_state=64,gamma=trained]") == ids(models="lru")
    assert models(models="lru[d_state=64],lru") == ["lru"]


def test_the_row_of_a_variant_has_its_bracketed_name():
    assert models(models="lru,lru[gamma=tied]") == ["lru", "lru[gamma=tied]"]


def test_set_varies_an_option_for_each_chosen_model_that_has_it():
    found = models(models="rotrnn,lru,s4d", set=["heads=4,8", "d_state=16"])
    assert found == [
        "rotrnn[d_state=16,heads=4]", "rotrnn[d_state=16,heads=8]", "lru[d_state=16]", "s4d[d_state=16]",
    ]  # fmt: skip


def test_set_for_one_model_leaves_the_others_alone():
    assert models(models="rotrnn,lru", set=["rotrnn.d_state=64"]) == ["rotrnn[d_state=64]", "lru"]
    assert models(models="lru,s4d", set=["d_state=32", "lru.d_state=8"]) == ["lru[d_state=8]", "s4d[d_state=32]"]


def test_one_option_set_twice_takes_all_its_values():
    assert models(models="rotrnn", set=["heads=4", "heads=8,4"]) == ["rotrnn[heads=4]", "rotrnn[heads=8]"]


def test_a_name_that_suite_and_model_both_have_is_the_suites(own_registry):
    @bench.register.model("stepper")
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Stepper(registry.find("model", "lru")):
        steps: int = 7

    found = cells(models="stepper", set=["steps=12", "evaluations=2"])
    assert [(cell.factors["steps"], cell.options["steps"]) for cell in found] == [(12, 7)]
    (found,) = cells(models="stepper", set=["stepper.steps=9"])
    assert (found.factors["steps"], found.options["steps"]) == (200, 9)


def test_a_factor_of_the_suite_can_be_addressed_by_the_suites_name():
    assert ids(set=["stability.steps=12", "evaluations=2"]) == ids(set=["steps=12", "evaluations=2"])
    assert ids(suite="stability[steps=12,evaluations=2]") == ids(set=["steps=12", "evaluations=2"])


def test_several_values_of_a_factor_are_all_measured():
    found = cells(set=["steps=8,16", "evaluations=2,4"])
    assert {(cell.factors["steps"], cell.factors["evaluations"]) for cell in found} == {
        (8, 2),
        (8, 4),
        (16, 2),
        (16, 4),
    }


def test_options_of_tasks_by_bracket_and_by_set():
    found = cells(tasks="listops[max_length=150,train=100],digits")
    assert [parse_name(cell.task)[0] for cell in found] == ["listops", "digits"]
    assert (found[0].task_options["max_length"], found[0].task_options["train"]) == (150, 100)
    assert [cell.task_options["max_length"] for cell in cells(set=["listops.max_length=80,120"])] == [80, 120]
    assert ids(tasks="listops[max_length=80]") == ids(set=["max_length=80"])


def test_which_options_of_a_task_were_used_is_in_the_plan():
    (cell,) = cells(tasks="listops[max_length=150]")
    assert cell.task_options == {
        "max_length": 150, "min_length": None, "train": 2000, "validation": 200, "test": 200, "origin": "generated",
    }  # fmt: skip


def test_variants_adds_all_that_the_chosen_models_declare():
    found = models(models="rotrnn,lru", variants=True)
    for name in ("rotrnn", "lru"):
        declared = registry.find("model", name).variants
        assert len([model for model in found if parse_name(model)[0] == name]) == 1 + len(declared)
    assert "lru[gamma=tied]" in found
    again = models(models="s4d[A_init=inv]", variants=True)
    assert again == ["s4d[A_init=inv]", "s4d[A_init=legs]", "s4d[A_init=real]"]


def test_a_variant_that_does_not_go_with_what_was_given_names_the_option():
    given = {"suite": "stability", "models": "lru[parameterisation=complex]"}
    with pytest.raises(ValueError, match=r"^--variants: model lru\[parameterisation=complex,gamma=tied\]: "):
        plan.cells(Request.parse(**given, variants=True), "cpu", "quick")
    with pytest.raises(ValueError, match=r"^model lru\[r_max=2.0\]: "):
        plan.cells(Request.parse(suite="stability", models="lru[r_max=2]", variants=True), "cpu", "quick")


def test_variants_are_varied_too():
    found = models(models="s4d", variants=True, set=["d_state=8,16"])
    spectra = ("", ",A_init=inv", ",A_init=legs", ",A_init=real")
    assert found == [f"s4d[d_state={size}{spectrum}]" for spectrum in spectra for size in (8, 16)]


def test_each_dtype_is_a_cell_of_its_own():
    assert [cell.dtype for cell in cells(dtypes="float32,float64,tf32")] == ["float32", "float64", "tf32"]


def test_options_of_the_cell_are_those_of_the_built_layer():
    (cell,) = cells(models="rotrnn", set=["heads=4"])
    layer = cell.layer
    assert {name: getattr(layer, name) for name in cell.options} == dict(cell.options)
    assert (cell.options["heads"], cell.options["d_state"]) == (4, 128)
    assert json.loads(cell.columns()["options"]) == dict(cell.options)


def test_a_cell_survives_the_way_through_json():
    for cell in cells(models="rotrnn,lru,s4d,s5", set=["listops.max_length=90"]):
        again = plan.Cell(**json.loads(json.dumps(dataclasses.asdict(cell))))
        assert again == cell
        assert again.id == cell.id
        assert again.layer == cell.layer
        assert again.task_object == cell.task_object
        assert again.suite_object == cell.suite_object


def described(layer):
    """What a layer is made of: parameters at the start, their roles, and the systems of two sets of parameters."""
    start = layer.initial(np.random.default_rng(0))
    found = [*sorted(layer.roles().items()), *(start[name].tobytes() for name in sorted(start))]
    for params in (start, {name: value + 1 for name, value in start.items()}):
        found += [None if part is None else np.asarray(part).tobytes() for part in reference.system(layer, params)]
    return found


def other_values(kind, default):
    """Legal values of an option other than the default."""
    if typing.get_origin(kind) is typing.Literal:
        return [value for value in typing.get_args(kind) if value != default]
    if kind is bool:
        return [not default]
    if default is None:
        return [2]
    return [2 * default] if kind is int else [0.995 * default or 0.25]


@pytest.mark.parametrize("model", ["rotrnn", "lru", "s4d", "s5"])
def test_every_option_of_a_model_changes_what_is_built(model):
    cls = registry.find("model", model)
    small = {"d_model": 8, "d_state": 16, "heads": 4, "blocks": 2}
    small |= {"bidirectional": True} if "offset" in fields(cls) else {}  # an offset is of the reversed half
    sizes = {name: value for name, value in small.items() if name in fields(cls)}
    plain = build(model, cls, sizes)
    for name, kind in fields(cls).items():
        for value in other_values(kind, getattr(plain, name)):
            other = build(model, cls, sizes | {name: value})
            assert described(other) != described(plain), f"{name}={value} changes nothing"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"models": "rotrn"}, "unknown model 'rotrn': did you mean 'rotrnn'?"),
        ({"suite": "stabilty"}, "unknown suite 'stabilty': did you mean 'stability'?"),
        ({"tasks": "listop"}, "unknown task 'listop': did you mean 'listops'?"),
        ({"backends": "pytorch"}, "unknown backend 'pytorch': did you mean 'torch'?"),
        ({"backends": "reference"}, "unknown backend 'reference'"),
        ({"dtypes": "float16"}, "unknown dtype 'float16': did you mean "),
        ({"preset": "quik"}, "unknown preset of suite stability 'quik': did you mean 'quick'?"),
        ({"set": ["hed=4"], "models": "rotrnn"}, "unknown option in --set 'hed': did you mean 'heads'?"),
        ({"set": ["heads=4"], "models": "lru"}, "unknown option in --set 'heads'"),
        ({"set": ["rotrnn.heads=4"], "models": "lru"}, "unknown option in --set 'rotrnn.heads'"),
        ({"models": "lru[gama=tied]"}, "model lru has no option 'gama': did you mean 'gamma'?"),
        ({"models": "lru[gamma=tide]"}, "model lru option gamma is 'tide': allowed are trained, tied, none"),
        ({"models": "lru[d_model=8]"}, "d_model is the suite's, write --set d_model=8"),
        ({"suite": "stability[step=8]"}, "suite stability has no option 'step': did you mean 'steps'?"),
        ({"tasks": "listops[length=9]"}, "task listops has no option 'length'"),
        ({"models": "rotrnn[heads=7]"}, "7"),
        ({"models": "rotrnn", "set": ["heads=7"]}, "heads"),
        ({"set": ["listops.max_length=0"]}, "max_length"),
        ({"set": ["steps=0"]}, "steps must be at least 1, not 0"),
        ({"set": ["d_model=0"]}, "d_model must be at least 1, not 0"),
        ({"set": ["steps=2"]}, "evaluations = 10 is more than steps = 2"),
        ({"set": ["steps=many"]}, "suite stability option steps is 'many': it must be a whole number"),
        ({"set": ["steps"]}, "--set 'steps' should read OPTION=VALUE"),
        ({"set": ["=4"]}, "should read OPTION=VALUE"),
        ({"set": ["steps="]}, "--set steps is empty"),
        ({"models": ""}, "--models is empty"),
        ({"models": ","}, "--models is empty"),
        ({"suite": ""}, "--suite is empty"),
        ({"suite": None}, "--suite is not given: name one of accuracy, memory, signal_propagation, stability"),
        ({"seeds": ""}, "--seeds is empty"),
        ({"seeds": []}, "--seeds is empty"),
        ({"seeds": "-1"}, "--seeds: '-1' is no whole number"),
        ({"seeds": "3-1"}, "--seeds: '3-1' is an empty range"),
        ({"depths": ""}, "--depths is empty"),
        ({"depths": "0"}, "--depths: a depth must be at least 1, not 0"),
        ({"backends": ""}, "--backends is empty"),
        ({"dtypes": ""}, "--dtypes is empty"),
        ({"tasks": ""}, "--tasks is empty"),
        ({"preset": ""}, "--preset is ''"),
        ({"device": "gpu"}, "--device is 'gpu': allowed are auto, cpu, cuda, cuda:N"),
        ({"device": "cuda:x"}, "--device is 'cuda:x'"),
        ({"models": 3}, "--models"),
        ({"seeds": 1.5}, "--seeds"),
        ({"variants": "yes"}, "--variants is 'yes'"),
        ({"modles": "lru"}, "unknown option 'modles': did you mean 'models'?"),
        ({"plugin": "no/such.py"}, "there is no such file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_any_work(given, says):
    assert says in refusal(**given)


def test_a_preset_of_a_suite_that_sets_something_unknown_is_an_error(own_registry):
    @bench.register.suite("odd")
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Odd(bench.Suite):
        presets = {"quick": {"size": [1]}}

        def measure(self, cell):
            raise NotImplementedError

        def report(self, results, view):
            raise NotImplementedError

    assert refusal(suite="odd") == "suite odd: its preset sets 'size'"


def test_a_suite_declares_its_own_models_seeds_dtypes_and_task_options(own_registry):
    @bench.register.suite("narrow")
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Narrow(bench.Suite):
        presets = {
            "quick": {"models": ["lru[d_state=8]"], "seeds": [42], "dtypes": ["float64"], "depths": [3],
                      "tasks": ["listops"], "listops.max_length": [20, 30], "d_model": [4, 8]},
        }  # fmt: skip

        def measure(self, cell):
            raise NotImplementedError

        def report(self, results, view):
            raise NotImplementedError

    found = plan.cells(Request.parse(suite="narrow"), "cpu", "quick")
    assert [(c.model, c.seed, c.dtype, c.depth) for c in found] == [("lru[d_state=8]", 42, "float64", 3)] * 4
    assert {(c.d_model, c.task_options["max_length"]) for c in found} == {(4, 20), (4, 30), (8, 20), (8, 30)}
    assert models(suite="narrow", models="rotrnn") == ["rotrnn"] * 4


def test_two_suites_in_one_plan_keep_their_own_factors(own_registry):
    @bench.register.suite("second")
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Second(bench.Suite):
        heads: int = 1

        def measure(self, cell):
            raise NotImplementedError

        def report(self, results, view):
            raise NotImplementedError

    found = cells(suite="stability,second", models="rotrnn", set=["heads=4"])
    assert [(c.suite, c.options["heads"], c.factors.get("heads")) for c in found] == [
        ("stability", 4, None), ("second", 32, 4),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def thirty():
    return cells(seeds="0-29")


@settings(deadline=None)
@given(count=st.integers(1, 9), size=st.integers(0, 30))
def test_shards_share_a_plan_out_completely_and_once(thirty, count, size):
    planned = thirty[:size]
    shards = [plan.shard(planned, f"{i}/{count}") for i in range(1, count + 1)]
    together = [cell.id for shard in shards for cell in shard]
    assert sorted(together) == sorted(cell.id for cell in planned)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_a_shard_is_the_same_in_whatever_order_the_plan_is():
    planned = cells(seeds="0-9")
    assert plan.shard(planned, "2/3") == plan.shard(planned[::-1], "2/3")


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "1", "/2", "a/b", "1/2/3", "-1/2", ""])
def test_a_shard_that_is_none_is_an_error(text):
    with pytest.raises(ValueError, match="--shard is"):
        plan.shard([], text)


def test_the_columns_of_a_cell_are_columns_of_the_store():
    for cell in cells(models="rotrnn,lru,s4d,s5"):
        columns = cell.columns()
        assert columns.keys() <= store.CELL_COLUMNS.keys()
        assert store.table(columns, []).to_pylist()[0] | columns == store.table(columns, []).to_pylist()[0]


def test_models_and_suites_do_not_import_one_another_and_the_harness_neither():
    def imported(path):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                yield node.module or ""
            elif isinstance(node, ast.Import):
                yield from (name.name for name in node.names)

    for package, foreign in (("models", {"suites"}), ("suites", {"models"}), ("bench", {"models", "suites"})):
        for path in (registry.ROOT / package).rglob("*.py"):
            assert not {name.partition(".")[0] for name in imported(path)} & foreign, path


def test_no_check_of_layers_suites_and_tasks_vanishes_under_optimised_python():
    files = [path for package in ("models", "suites") for path in (registry.ROOT / package).rglob("*.py")]
    assert len(files) > 8
    for path in files:
        asserts = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
        assert not asserts, path.name


def test_what_is_installed_is_not_read_again_for_each_name(monkeypatch):
    registry.find("suite", "stability")
    read = []
    monkeypatch.setattr(PathDistribution, "read_text", lambda *about: read.append(about))
    plan.cells(Request.parse(suite="stability", models="rotrnn,lru", depths="1,2"), "cpu", "quick")
    assert read == []
