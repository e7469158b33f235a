"""A diagonal layer in torch: its system, its module, and what the plain-array face calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.arrays import ArrayLayer, dataclass_of, diagonal_of
from bench.backends.torch import ops
from bench.backends.torch.convolution import convolution_kernel, convolve
from bench.backends.torch.device import PARAMETER_DTYPES, find, get, put
from bench.backends.torch.scan import Pair, algorithm, filtered, products, scan
from bench.contract import Decoder, DiagonalLayer, DiagonalSystem, Layer, Missing, Params, Unsupported, require


def system(layer: DiagonalLayer | ArrayLayer, params: Params) -> DiagonalSystem:
    """The layer's system, differentiable in params: complex Lambda, B (discretised, normaliser included) and C.

    `layer` is what `bench.layer` returns, or the dataclass.
    `params` are tensors or numpy arrays and keep their dtype and device. vmap, checkpoint and second derivatives work.
    """
    return diagonal_of(layer).system({name: torch.as_tensor(value) for name, value in params.items()}, ops)


def layer_module(layer: Layer | ArrayLayer, params: Params, dtype: str = "float32") -> nn.Module:
    """The layer as a module called as (u, lengths=None), u (batch, length, d_model); params become nn.Parameter.

    `layer` is what `bench.layer` returns, or the dataclass.
    `lengths`, (batch,), are the true lengths: what lies beyond never reaches an earlier output. Reverse mode to any
    order, vmap and checkpoint work; forward mode is refused where a scan runs, that is, not in S4D's convolution.
    With dtype "bfloat16" parameters, system and states are float32; u, y and the projections are bfloat16.
    A layer's own `torch_module` goes before what is built from its system. Raises `Missing` where there is neither.
    """
    layer = dataclass_of(layer)
    if hasattr(layer, "torch_module"):
        return layer.torch_module(params).to(PARAMETER_DTYPES[dtype])
    if not isinstance(layer, DiagonalLayer):
        raise Missing(f"{type(layer).__name__} has no torch module")
    return DiagonalModule(layer, params, dtype)


class DiagonalModule(nn.Module):
    """Any diagonal layer. Its parameters are named as the layer names them."""

    def __init__(self, layer: DiagonalLayer, params: Params, dtype: str = "float32") -> None:
        super().__init__()
        self.layer = layer
        roles = layer.roles()
        for name, value in params.items():
            tensor = torch.tensor(
                np.asarray(value), dtype=PARAMETER_DTYPES[dtype]
            )  # a copy: training must not change `params`
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=roles[name] != "constant"))

    def forward(self, u: Tensor, lengths: Tensor | None = None) -> Tensor:
        return outputs(system(self.layer, dict(self.named_parameters())), u, lengths)


class FunctionModule(nn.Module):
    """A layer from a causal function (params, u) -> y; its parameters are named as the layer names them.

    Causal: padding at the end reaches no earlier position, so nothing depends on `lengths`. Where u is bfloat16 the
    function decides what it computes in; y comes back as u is.
    """

    def __init__(self, layer: Layer, params: Params, function: Callable[[Params, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        roles = layer.roles()
        for name, value in params.items():
            tensor = torch.tensor(np.asarray(value))  # a copy: training must not change `params`
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=roles[name] != "constant"))

    def forward(self, u: Tensor, lengths: Tensor | None = None) -> Tensor:
        require(u.shape[1] >= 1, "length must be at least 1, not 0")
        return self.function(dict(self.named_parameters()), u).to(u.dtype)


def layer_decoder(layer: Layer) -> Decoder:
    """The layer step by step: its own decoder, or that of its system. `Unsupported` where there is neither."""
    if hasattr(layer, "torch_decoder"):
        return layer.torch_decoder()
    if not isinstance(layer, DiagonalLayer):
        raise Unsupported(f"{type(layer).__name__} is no diagonal layer and has no decoder, so it has no step")

    def start(built: DiagonalSystem, batch: int, length: int) -> Pair:
        zero = built.D.new_zeros((batch, *built.Lambda.shape))
        return zero, zero

    return Decoder(lambda params: system(layer, params), start, decode_step)


def outputs(system: DiagonalSystem, u: Tensor, lengths: Tensor | None = None) -> Tensor:
    """y, (batch, length, d_model), from a zero state."""
    _require_sizes(u)
    if system.Lambda.ndim == 2:
        return _convolved(system, u, lengths)
    y = _filtered(system, system.C, system.D, u)
    if system.C_reverse is not None:
        y = y + _filtered(system, system.C_reverse, None, _before_end(u, lengths).flip(1)).flip(1)
    return y.to(u.dtype)


def _require_sizes(u: Tensor) -> None:
    """ValueError for a u, (batch, length, d_model), that holds nothing."""
    require(u.shape[0] >= 1, "batch must be at least 1, not 0")
    require(u.shape[1] >= 1, "length must be at least 1, not 0")


def stateful_outputs(system: DiagonalSystem, u: Tensor, state: Pair | None) -> tuple[Tensor, Pair]:
    """y, (batch, length, d_model), and the state after the last step, from a state, (batch, *Lambda.shape)."""
    _require_sizes(u)
    if u.shape[1] == 1:
        y, state = decode_step(system, u[:, 0], state)
        return y[:, None], state
    if system.Lambda.ndim == 1:
        x = _states(system, u, state)
        return _read(system, x, u), (x[0][-1], x[1][-1])
    pieces = []
    for piece in u.split(STATE_CHUNK, dim=1):
        x = _states(system, piece, state)
        pieces.append(_read(system, x, piece))
        state = (x[0][-1], x[1][-1])
    assert state is not None
    return torch.cat(pieces, 1), state


def decode_step(system: DiagonalSystem, u: Tensor, state: Pair | None) -> tuple[Tensor, Pair]:
    """y_t and the state after it, from u_t, (batch, d_model), and the state before; None at the start.

    Complex products in the system's own dtype, bfloat16 or not: a step waits for the system to be read, not for sums.
    """
    wide = u.to(system.D.dtype)
    x = wide.to(system.B.dtype) @ system.B.T if system.Lambda.ndim == 1 else system.B * wide[..., None]
    if state is not None:
        x = x + system.Lambda * torch.complex(*state)
    y = (x @ system.C.T if system.Lambda.ndim == 1 else (x * system.C).sum(-1)).real + system.D * wide
    return y.to(u.dtype), (x.real, x.imag)


def state_energy(layer: DiagonalLayer, params: Params, u: Tensor, coordinates: str = "own") -> Tensor:
    """Squared norm of the state at every time step and in every head, (batch, length, heads); one head without groups.

    Computed piece by piece over time: the states themselves are never all there.
    """
    groups = layer.groups if coordinates == "own" else None
    pieces = []
    for x in _state_pieces(layer, params, u, coordinates):
        squares = (x.abs() ** 2).flatten(2)
        if groups is None:
            pieces.append(squares.sum(-1, keepdim=True))
        else:
            index = torch.as_tensor(groups, device=u.device)
            heads = squares.new_zeros((*squares.shape[:2], int(groups.max()) + 1))
            pieces.append(heads.index_add(2, index, squares))
    return torch.cat(pieces, 1)


STATE_CHUNK = 64
"""Time steps whose states are held at once where all of them would be too many."""


def _state_pieces(layer: DiagonalLayer, params: Params, u: Tensor, coordinates: str) -> Iterator[Tensor]:
    """States, (batch, steps, ...), complex or in the layer's own coordinates."""
    built = system(layer, params)
    state = None
    for piece in u.split(STATE_CHUNK, dim=1):
        re, im = _states(built, piece, state)
        state = (re[-1], im[-1])
        x = torch.complex(re, im).movedim(0, 1)
        yield x if coordinates == "diagonal" else layer.coordinates(params, x, ops)


def _states(system: DiagonalSystem, u: Tensor, state: Pair | None) -> Pair:
    """States, time first, (length, batch, *Lambda.shape)."""
    u, B = u.transpose(0, 1), (system.B.real, system.B.imag)
    if system.Lambda.ndim == 1:
        v = products(u.dtype, B[0].dtype, (u, B[0].T)), products(u.dtype, B[0].dtype, (u, B[1].T))
    else:
        v = B[0] * u[..., None], B[1] * u[..., None]
    if state is None:
        zero = torch.zeros_like(v[0][0])
        state = (zero, zero)
    return scan((system.Lambda.real, system.Lambda.imag), v, state)


def _read(system: DiagonalSystem, x: Pair, u: Tensor) -> Tensor:
    """Re(C x) + D * u, (batch, length, d_model), from states with time first."""
    if system.Lambda.ndim == 1:
        x_ = torch.cat(x, -1)
        y = products(u.dtype, x_.dtype, (x_, torch.cat([system.C.real, -system.C.imag], -1).T))
    else:
        y = (x[0] * system.C.real - x[1] * system.C.imag).sum(-1)
    return (y.transpose(0, 1) + system.D * u).to(u.dtype)


def _filtered(system: DiagonalSystem, C: Tensor, D: Tensor | None, u: Tensor) -> Tensor:
    Lambda, B, out = ((z.real, z.imag) for z in (system.Lambda, system.B, C))
    return filtered(Lambda, B, out, D, u.transpose(0, 1)).transpose(0, 1)


def _convolved(system: DiagonalSystem, u: Tensor, lengths: Tensor | None) -> Tensor:
    def kernel(C: Tensor) -> Tensor:
        Lambda, B, out = ((z.real, z.imag) for z in (system.Lambda, system.B, C))
        return convolution_kernel(Lambda, B, out, u.shape[1])

    y = convolve(kernel(system.C), u) + system.D * u
    if system.C_reverse is not None:
        y = y + convolve(kernel(system.C_reverse), _before_end(u, lengths).flip(1)).flip(1)
    return y.to(u.dtype)


def _before_end(u: Tensor, lengths: Tensor | None) -> Tensor:
    """u with zeros at padding, so that a reversed scan starts at the true end."""
    if lengths is None:
        return u
    inside = torch.arange(u.shape[1], device=u.device)[None, :] < lengths[:, None]
    return torch.where(inside[..., None], u, u.new_zeros(()))


def kernel_name(layer: Layer | ArrayLayer, device: str = "cpu", dtype: str = "float32") -> str:
    """The algorithm that the module runs on a device; shapes do not decide.

    * "module": the layer brings its own.
    * "fft": one system a channel. A scan would carry d_model * n numbers a step: (batch, length, d_model, n) of them.
    * "triton-scan": else, on cuda where triton is installed, but not in float64: a fused kernel, forward and adjoint.
    * "chunked-scan": else. On a CPU forward and backward at (8, 1024, 128) take 0.8 to 1.4 times as long as jax's loop.
    """
    layer = dataclass_of(layer)
    if hasattr(layer, "torch_module") or not isinstance(layer, DiagonalLayer):
        return "module"
    return "fft" if len(layer.state_shape) == 2 else algorithm(device.partition(":")[0], PARAMETER_DTYPES[dtype])


# What the plain-array face calls: numpy in, numpy out.


def apply(
    layer: Layer,
    params: Params,
    u: np.ndarray,
    *,
    lengths: np.ndarray | None = None,
    dtype: str = "float32",
    device: str = "cpu",
) -> np.ndarray:
    """y from a zero state, as a network computes it."""
    place = find(device)
    with torch.no_grad():
        ends = None if lengths is None else put(np.asarray(lengths), place)
        return get(layer_module(layer, params, dtype).to(place)(put(u, place, dtype), ends))


def apply_in_turn(
    layer: Layer, params: Params, inputs: Sequence[np.ndarray], *, dtype: str = "float32", device: str = "cpu"
) -> list[np.ndarray]:
    """y for each of several u, all from one module that is called with one after the other."""
    place = find(device)
    with torch.no_grad():
        module = layer_module(layer, params, dtype).to(place)
        return [get(module(put(u, place, dtype))) for u in inputs]


def apply_from(
    layer: DiagonalLayer,
    params: Params,
    u: np.ndarray,
    state: np.ndarray | None,
    *,
    dtype: str = "float32",
    device: str = "cpu",
) -> tuple[np.ndarray, np.ndarray]:
    """y and the state after the last step."""
    place = find(device)
    with torch.no_grad():
        built = system(layer, _tensors(params, place, dtype))
        y, last = stateful_outputs(built, put(u, place, dtype), _state_pair(state, place, dtype))
        return get(y), get(torch.complex(*last))


def states(
    layer: DiagonalLayer,
    params: Params,
    u: np.ndarray,
    *,
    state: np.ndarray | None = None,
    coordinates: str = "own",
    dtype: str = "float32",
    device: str = "cpu",
) -> np.ndarray:
    """All states, (batch, length, ...)."""
    place = find(device)
    with torch.no_grad():
        tensors = _tensors(params, place, dtype)
        re, im = _states(system(layer, tensors), put(u, place, dtype), _state_pair(state, place, dtype))
        x = torch.complex(re, im).movedim(0, 1)
        return get(x if coordinates == "diagonal" else layer.coordinates(tensors, x, ops))


def energies(
    layer: DiagonalLayer,
    params: Params,
    u: np.ndarray,
    *,
    coordinates: str = "diagonal",
    dtype: str = "float32",
    device: str = "cpu",
) -> np.ndarray:
    """|x|^2 at every time step, (batch, length, 1); in the layer's "own" coordinates (batch, length, heads)."""
    place = find(device)
    with torch.no_grad():
        return get(state_energy(layer, _tensors(params, place, dtype), put(u, place, dtype), coordinates))


def decoder(
    layer: Layer, params: Params, *, length: int = 1024, dtype: str = "float32", device: str = "cpu"
) -> Callable[[np.ndarray, Any], tuple[np.ndarray, Any]]:
    """A function (u_t, state) -> (y_t, state); what does not change from step to step is built here, once.

    The state of a layer with a decoder of its own is the decoder's, on the device; it has room for `length` steps.
    """
    place, found = find(device), layer_decoder(layer)
    with torch.no_grad():
        built = found.build(_tensors(params, place, dtype))

    def decode(u: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        with torch.no_grad():
            if hasattr(layer, "torch_decoder"):
                before = found.start(built, len(u), length) if state is None else state
                y, after = found.step(built, put(u, place, dtype), before)
                return get(y), after
            y, last = decode_step(built, put(u, place, dtype), _state_pair(state, place, dtype))
            return get(y), get(torch.complex(*last))

    return decode


def gradients(
    layer: Layer,
    params: Params,
    u: np.ndarray,
    cotangent: np.ndarray,
    *,
    lengths: np.ndarray | None = None,
    dtype: str = "float32",
    device: str = "cpu",
) -> dict[str, np.ndarray]:
    """Gradients of sum(cotangent * y): one per trained parameter, and "u"; zero for constants."""
    place = find(device)
    module = layer_module(layer, params, dtype).to(place)
    u_ = put(u, place, dtype).requires_grad_()
    ends = None if lengths is None else put(np.asarray(lengths), place)
    module(u_, ends).backward(put(cotangent, place, dtype))
    leaves = [*module.named_parameters(), ("u", u_)]
    return {name: get(x.grad if x.grad is not None else torch.zeros_like(x)) for name, x in leaves}


def _tensors(params: Params, place: torch.device, dtype: str) -> dict[str, Tensor]:
    return {name: put(np.asarray(value), place).to(PARAMETER_DTYPES[dtype]) for name, value in params.items()}


def _state_pair(state: np.ndarray | None, place: torch.device, dtype: str) -> Pair | None:
    if state is None:
        return None
    x = np.asarray(state)
    return put(x.real, place).to(PARAMETER_DTYPES[dtype]), put(x.imag, place).to(PARAMETER_DTYPES[dtype])
