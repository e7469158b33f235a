"""What a plugin must give: the words that layers, tasks and suites share with the harness. Imports no framework.

Shapes are written as in the papers: `d_model` features, `n` state numbers, `length` time steps.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from bench.report.measures import Measure

if TYPE_CHECKING:
    import pandas as pd

    from bench.measurement import Measurement
    from bench.network import Structure
    from bench.report.blocks import Block
    from bench.report.figures import Figure
    from bench.report.grid import Grid
    from bench.report.sheet import Published
    from bench.selftest import Selftest

Array = Any
"""An array of whichever framework is at work: numpy.ndarray, torch.Tensor or jax.Array."""

Params = Mapping[str, Array]
"""Named real arrays. Real and imaginary parts are kept apart, so no complex number reaches an optimiser."""

Role = Literal["dynamics", "step", "normaliser", "input", "output", "skip", "constant"]
"""What a parameter does in its layer; a recipe maps roles to rates and weight decay. `constant` is not trained."""

LAYER_ROLES: tuple[str, ...] = ("dynamics", "step", "normaliser", "input", "output", "skip", "constant")


class Unsupported(Exception):
    """Raised by a suite or layer for a combination that has no meaning: the cell ends `unsupported`, with the text."""


class Missing(Exception):
    """Raised when a dependency or a data set is not there: the cell ends `missing`, with the text."""


class Diverged(Exception):
    """Raised at the first non-finite loss, gradient or state: the cell ends `diverged`, with its step."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"non-finite {what} at step {step}")
        self.step = step


class CompileFailed(Exception):
    """Raised where a compiler refuses what is to be measured: the cell ends `compile_failed`, with the text."""


class DiagonalSystem(NamedTuple):
    """The linear recurrence x_t = Lambda x_{t-1} + B u_t, y_t = Re(C x_t) + D * u_t, in complex numbers.

    Either one system for all channels, or one system a channel:

    ===========  ================  ==============
    field        one system        one a channel
    ===========  ================  ==============
    `Lambda`     (n,)              (d_model, n)
    `B`          (n, d_model)      (d_model, n)
    `C`          (d_model, n)      (d_model, n)
    `D`          (d_model,) real   (d_model,) real
    `C_reverse`  like C, or None   like C, or None
    ===========  ================  ==============

    B is discretised and holds the normaliser; what conjugate pairs double is already in C. With `C_reverse`
    the layer is bidirectional: y_t += Re(C_reverse x'_t), where x' is the same recurrence run from the end.
    """

    Lambda: Array
    B: Array
    C: Array
    D: Array
    C_reverse: Array | None = None


class Ops(Protocol):
    """The functions beyond operators and methods that `system` may use; numpy, torch and jax each fill them.

    Common to all three and so not listed: `+ - * / @ abs()`, indexing, `.real`, `.imag`, `.conj()`, `.reshape(...)`,
    `.swapaxes(a, b)`, `.shape`.
    """

    def complex(self, re: Array, im: Array) -> Array: ...
    def exp(self, x: Array) -> Array: ...
    def expm1(self, x: Array) -> Array: ...
    def log(self, x: Array) -> Array: ...
    def sqrt(self, x: Array) -> Array: ...
    def sin(self, x: Array) -> Array: ...
    def cos(self, x: Array) -> Array: ...
    def sum(self, x: Array, axis: int | tuple[int, ...]) -> Array: ...
    def amax(self, x: Array, axis: int | tuple[int, ...]) -> Array: ...
    def minimum(self, x: Array, bound: float) -> Array: ...
    def stack(self, arrays: list[Array], axis: int) -> Array: ...
    def concatenate(self, arrays: list[Array], axis: int) -> Array: ...
    def expm(self, x: Array) -> Array: ...
    def det(self, x: Array) -> Array: ...
    def constant(self, x: np.ndarray, like: Array) -> Array: ...
    def stop_gradient(self, x: Array) -> Array: ...


class Decoder(NamedTuple):
    """A layer step by step, in one framework: three pure functions of arrays, or of tuples and dicts of arrays.

    `build(params)` is done once. `start(built, batch, length)` is the state before the first step; one that grows has
    room for `length` steps, and what comes after them is written over the last. `step(built, u, state)` gives y and the
    state after it, u and y (batch, d_model); the state that went in is used up.
    """

    build: Callable[[Params], Any]
    start: Callable[[Any, int, int], Any]
    step: Callable[[Any, Array, Any], tuple[Array, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer(ABC):
    """A map (batch, length, d_model) -> (batch, length, d_model): what a model plugin defines.

    A layer that is no diagonal linear system also defines `torch_module(params)` and/or `flax_module(params)`:
    modules called as (u, lengths=None), whose parameters are named like the keys of `initial`. Positions at or
    beyond `lengths` must not influence earlier ones. Such a layer may also define

    * `loop(params, u)`: y by a plain loop in numpy float64, which its modules are checked against;
    * `torch_decoder()`, `flax_decoder()`: a `Decoder`, so that it can be run step by step;
    * `work(mode, batch, length)`: the floating-point operations of a forward pass, or of a step of decoding at the
      position `length`, and how many numbers a backward pass, or the next step, finds stored.
    """

    d_model: int

    comparator: ClassVar[bool] = False
    """Whether it is there for the others to be compared with: it takes part only where it is named."""
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Variants of interest, name -> options that differ from the defaults."""
    source: ClassVar[str] = ""
    """The paper that the layer comes from."""

    def __post_init__(self) -> None:
        require(self.d_model >= 1, f"d_model must be at least 1, not {self.d_model}")

    @abstractmethod
    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Parameters at initialisation, float64."""

    @abstractmethod
    def roles(self) -> dict[str, Role]:
        """The role of every parameter that `initial` gives."""

    @property
    @abstractmethod
    def state_reals(self) -> int:
        """How many real numbers a sequence carries from one step to the next; of a state that grows, a step's share."""

    def state_at(self, length: int) -> int:
        """How many real numbers a sequence carries after `length` steps."""
        return self.state_reals


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiagonalLayer(Layer):
    """A layer that is a map from its parameters to a `DiagonalSystem`; the backends give all the rest.

    One that brings a faster `torch_module` or `flax_module` of its own is run by that, and checked against its system.
    """

    @abstractmethod
    def system(self, params: Params, ops: Ops) -> DiagonalSystem:
        """The recurrence that the parameters stand for."""

    def coordinates(self, params: Params, x: Array, ops: Ops) -> Array:
        """From the diagonal state, (..., *Lambda.shape), to the layer's own coordinates. Default: the same."""
        return x

    @property
    def groups(self) -> np.ndarray | None:
        """The head of each of the layer's own state numbers, shape (own state numbers,), or None without heads."""
        return None

    def diagnostics(self, params: Params, ops: Ops) -> dict[str, Array]:
        """Scalars worth watching while the layer trains."""
        return {}

    @cached_property
    def _shape(self) -> tuple[tuple[int, ...], bool]:
        from bench.backends import reference

        system = reference.system(self, self.initial(np.random.default_rng(0)))
        return tuple(system.Lambda.shape), system.C_reverse is not None

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of Lambda, and of one sequence's complex diagonal state."""
        return self._shape[0]

    @property
    def has_reverse(self) -> bool:
        """Whether a second output matrix reads the reversed scan: then there is no step and no state to hand over."""
        return self._shape[1]

    @property
    def state_reals(self) -> int:
        return 2 * int(np.prod(self.state_shape)) * (2 if self.has_reverse else 1)


NOT_ASKED = -1
"""The target at a position where nothing is asked."""

NEAR_ENOUGH = 0.04
"""A predicted number is right when it is nearer than this (Hochreiter and Schmidhuber 1997, for the adding problem)."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Examples of one split, padded at the end to a common length.

    `inputs`: (examples, length) int32 token ids, or (examples, length, features) float32. `lengths`: (examples,)
    int32, the true lengths, each at least 1. `targets`: (examples,) int32 class numbers; where a task asks at each
    position, (examples, length) int32 with `NOT_ASKED` wherever it does not; where it asks for a number, (examples,)
    float32. A task on pairs has (examples, 2, length) token ids and (examples, 2) lengths.
    """

    inputs: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The three splits of a task, and a sha256 over everything in them."""

    train: Split
    validation: Split
    test: Split
    checksum: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A data set with its splits, vocabulary, lengths, floors and metric. Its options are its dataclass fields."""

    source: ClassVar[str] = ""
    """Who made the data, and where they were published."""
    licence: ClassVar[str] = ""
    """The licence of the data, and of the package that holds them where there is one."""
    pairs: ClassVar[bool] = False
    """Whether an example is two sequences, each encoded by the same network, and a class for both."""
    per_position: ClassVar[bool] = False
    """Whether positions have targets of their own; else the whole sequence has one."""
    numeric: ClassVar[bool] = False
    """Whether the target is a number; else a class. Then `classes` is 1."""

    @property
    def published(self) -> tuple[str, str] | None:
        """(benchmark, task) of the published table whose figures stand beside scores on this task, with its options."""
        return None

    @property
    @abstractmethod
    def length(self) -> int:
        """The length that every example is padded to."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """The number of classes."""

    @property
    def vocabulary(self) -> tuple[str, ...] | None:
        """The symbols behind the token ids, or None where inputs are real numbers."""
        return None

    @property
    def features(self) -> int:
        """The number of real features per time step; 0 for tokens."""
        return 0

    def locate(self) -> str:
        """Where the data are, in a word or two, found without reading them; "" where only `load` can tell.

        Missing: they are not there.
        """
        return ""

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """The data of this seed; a task whose data are given once ignores the seed."""

    @property
    def step_scale(self) -> float:
        """By how much time steps of the test split are longer than those that were trained on."""
        return 1.0

    def floors(self, data: Dataset) -> dict[str, float]:
        """Accuracy on the test split of what needs no sequence model, fitted on the training split; name -> accuracy.

        Default: "majority", the most frequent class; for numbers the training targets' mean.
        """
        train, test = data.train.targets, data.test.targets
        if self.numeric:
            return {"mean": float((np.abs(train.mean(dtype=np.float64) - test) < NEAR_ENOUGH).mean())}
        asked = train[train != NOT_ASKED]
        guess = int(np.bincount(asked).argmax())
        logits = np.zeros((*test.shape, self.classes), np.float32)
        logits[..., guess] = 1
        return {"majority": float(self.metric(logits, test).mean())}

    def metric(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The score of each example, (examples,), from logits (examples, classes), or (examples, length, classes).

        Right or wrong; where positions are asked the share that is right; for a number whether it is near enough.
        """
        if self.numeric:
            return (np.abs(logits[:, 0].astype(np.float64) - targets) < NEAR_ENOUGH).astype(np.float64)
        right = np.argmax(logits, axis=-1) == targets
        if not self.per_position:
            return right.astype(np.float64)
        asked = targets != NOT_ASKED
        return (right & asked).sum(-1) / asked.sum(-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """How a reader wants results shown: `baseline` is the model that others are compared with, None the first one."""

    baseline: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adaptation:
    """What a suite asks of one model on one task where the user says nothing else; `fixed`: whatever the user says."""

    factors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    depth: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite(ABC):
    """A protocol: which factors it varies, what it measures in one cell, how its results are shown.

    The dataclass fields are the suite's own factors, in the values that one cell has. `presets` maps a preset's name
    (`quick`, `default`, ...) to factor -> list of values; besides the suite's own fields it may set `tasks`, `depths`,
    `models`, `seeds` and `dtypes`, and options of tasks and models as `NAME.OPTION`.
    """

    d_model: int = 64

    version: ClassVar[int] = 1
    presets: ClassVar[Mapping[str, Mapping[str, list[Any]]]] = {"quick": {}, "default": {}}
    exclusive: ClassVar[bool] = False
    """Whether a cell needs its device to itself, as timings do."""
    isolation: ClassVar[Literal["shared", "cell", "rounds"]] = "shared"
    """`shared`: cells follow one another in a worker. `cell`: each has a fresh process. `rounds`: each is measured in
    as many processes as its factor `rounds` says; in a round each (model, backend) gets one, in random order."""
    alternatives: ClassVar[Mapping[str, str]] = {}
    """Factor -> another that says the same: where a user gives the first, a preset's second is dropped."""
    takes_tasks: ClassVar[bool] = True
    """Whether cells of the suite have a task."""
    compiles: ClassVar[bool] = False
    """Whether a cell can be measured under torch.compile."""
    measures: ClassVar[Mapping[str, Measure]] = {}
    """The numbers of a cell that tables and comparisons are made of, the most usual first."""

    @abstractmethod
    def measure(self, cell: Measurement) -> None:
        """Measures one cell: calls `cell.record(...)`, raises `Unsupported`, `Missing` or `Diverged`."""

    def adapt(self, model: str, task: str | None) -> Adaptation:
        """Values that go before a preset's, for a model's plain name and a task with its options. Default: none."""
        return Adaptation()

    def check(self, layer: Layer) -> None:
        """ValueError where a factor does not go with a layer, said when the plan is made. Default: all do."""
        return

    @property
    def structure(self) -> Structure | None:
        """How its networks' blocks are built; None is as `bench.network.Structure` has it."""
        return None

    @classmethod
    def selftest(cls) -> Selftest | None:
        """Fakes of known behaviour that the suite must recover; None where it has none."""
        return None

    @abstractmethod
    def report(self, results: pd.DataFrame, view: View) -> list[Block]:
        """Tables and notes computed from the records of this suite, and from nothing else."""

    def figures(self, results: pd.DataFrame, view: View) -> list[Figure]:
        """Figures, likewise: those that the records have numbers for. Default: none."""
        return []

    def published(self, results: pd.DataFrame, grid: Grid, summaries: bool) -> Published:
        """Published figures for a table's columns: rows, and footnotes with their sources. Default: there are none."""
        raise ValueError("--published: there are no published figures of this suite's measures")


def require(condition: bool, message: str) -> None:
    """Raises ValueError(message) unless the condition holds (an `assert` would vanish under `python -O`)."""
    if not condition:
        raise ValueError(message)
