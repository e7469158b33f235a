"""A diagonal layer in jax: its system, its function and module, and what the plain-array face calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from bench.arrays import ArrayLayer, dataclass_of, diagonal_of
from bench.backends.jax import ops
from bench.backends.jax.convolution import convolution_kernel, convolve
from bench.backends.jax.device import PARAMETER_DTYPES, computing, find, get, put
from bench.backends.jax.scan import Pair, filtered, product, scan
from bench.contract import Decoder, DiagonalLayer, DiagonalSystem, Layer, Missing, Params, Unsupported, require


def system(layer: DiagonalLayer | ArrayLayer, params: Params) -> DiagonalSystem:
    """The layer's system, differentiable in params: complex Lambda, B (discretised, normaliser included) and C.

    `layer` is what `bench.layer` returns, or the dataclass.
    `params` are jax, traced or numpy arrays and keep their dtype (float64, as everywhere in jax, where jax_enable_x64
    is on). Matrix products are in full precision whatever the configuration. vmap, checkpoint and second derivatives
    work.
    """
    with jax.default_matmul_precision("highest"):
        return diagonal_of(layer).system({name: jnp.asarray(value) for name, value in params.items()}, ops)


def layer_function(layer: DiagonalLayer | ArrayLayer) -> Callable[[Params, Array], Array]:
    """A traceable function (params, u) -> y, u and y (batch, length, d_model).

    `layer` is what `bench.layer` returns, or the dataclass.
    Arrays keep their dtype, and matrix products are in full precision, as in `system`. Reverse mode to any order, vmap
    and checkpoint work; forward mode is refused.
    """

    diagonal = diagonal_of(layer)

    def function(params: Params, u: Array) -> Array:
        with jax.default_matmul_precision("highest"):
            return outputs(system(diagonal, params), jnp.asarray(u))

    return function


def layer_module(layer: Layer | ArrayLayer, params: Params, dtype: str = "float32") -> nnx.Module:
    """The layer as a module called as (u, lengths=None), u (batch, length, d_model); params become nnx.Param.

    `layer` is what `bench.layer` returns, or the dataclass.
    `lengths`, (batch,), are the true lengths: what lies beyond never reaches an earlier output. With dtype "bfloat16"
    parameters, system and states are float32; u, y and the projections are bfloat16. A layer's own `flax_module` goes
    before what is built from its system. Raises `Missing` where there is neither.
    """
    layer = dataclass_of(layer)
    if hasattr(layer, "flax_module"):
        return layer.flax_module(params)
    if not isinstance(layer, DiagonalLayer):
        raise Missing(f"{type(layer).__name__} has no flax module")
    return DiagonalModule(layer, params, dtype)


class DiagonalModule(nnx.Module):
    """Any diagonal layer. Its parameters are named as the layer names them."""

    def __init__(self, layer: DiagonalLayer, params: Params, dtype: str = "float32") -> None:
        self.layer = layer
        for name, value in params.items():
            setattr(self, name, nnx.Param(jnp.asarray(value, PARAMETER_DTYPES[dtype])))

    def params(self) -> dict[str, Array]:
        return {name: getattr(self, name)[...] for name in self.layer.roles()}

    def __call__(self, u: Array, lengths: Array | None = None) -> Array:
        return outputs(system(self.layer, self.params()), u, lengths)


class FunctionModule(nnx.Module):
    """A layer from a causal function (params, u) -> y; its parameters are named as the layer names them.

    Causal: padding at the end reaches no earlier position, so nothing depends on `lengths`. Where u is bfloat16 the
    function decides what it computes in; y comes back as u is.
    """

    def __init__(self, layer: Layer, params: Params, function: Callable[[Params, Array], Array]) -> None:
        self.function, self.names = function, tuple(params)
        for name, value in params.items():
            setattr(self, name, nnx.Param(jnp.asarray(value)))

    def __call__(self, u: Array, lengths: Array | None = None) -> Array:
        require(u.shape[1] >= 1, "length must be at least 1, not 0")
        return self.function({name: getattr(self, name)[...] for name in self.names}, u).astype(u.dtype)


def layer_decoder(layer: Layer) -> Decoder:
    """The layer step by step: its own decoder, or that of its system. `Unsupported` where there is neither."""
    if hasattr(layer, "flax_decoder"):
        return layer.flax_decoder()
    if not isinstance(layer, DiagonalLayer):
        raise Unsupported(f"{type(layer).__name__} is no diagonal layer and has no decoder, so it has no step")

    def start(built: DiagonalSystem, batch: int, length: int) -> Pair:
        shape = (batch, *built.Lambda.shape)
        return jnp.zeros(shape, built.D.dtype), jnp.zeros(shape, built.D.dtype)  # two: each is given away to a step

    return Decoder(lambda params: system(layer, params), start, decode_step)


def outputs(system: DiagonalSystem, u: Array, lengths: Array | None = None) -> Array:
    """y, (batch, length, d_model), from a zero state."""
    _require_sizes(u)
    if system.Lambda.ndim == 2:
        return _convolved(system, u, lengths)
    y = _filtered(system, system.C, u) + system.D * u
    if system.C_reverse is not None:
        y = y + jnp.flip(_filtered(system, system.C_reverse, jnp.flip(_before_end(u, lengths), 1)), 1)
    return y.astype(u.dtype)


def _require_sizes(u: Array) -> None:
    """ValueError for a u, (batch, length, d_model), that holds nothing."""
    require(u.shape[0] >= 1, "batch must be at least 1, not 0")
    require(u.shape[1] >= 1, "length must be at least 1, not 0")


def stateful_outputs(system: DiagonalSystem, u: Array, state: Pair | None) -> tuple[Array, Pair]:
    """y, (batch, length, d_model), and the state after the last step, from a state, (batch, *Lambda.shape)."""
    _require_sizes(u)
    if u.shape[1] == 1:
        y, state = decode_step(system, u[:, 0], state)
        return y[:, None], state
    if system.Lambda.ndim == 1:
        x = _states(system, u, state)
        return _read(system, x, u), (x[0][-1], x[1][-1])

    def piece(state: Pair, u: Array) -> tuple[Pair, Array]:
        x = _states(system, u, state)
        return (x[0][-1], x[1][-1]), _read(system, x, u)

    zero = jnp.zeros((len(u), *system.Lambda.shape), system.D.dtype)
    last = (zero, zero) if state is None else state
    batch, length, _ = u.shape
    whole = length // STATE_CHUNK * STATE_CHUNK
    pieces = []
    if whole:
        split = jnp.moveaxis(u[:, :whole].reshape(batch, -1, STATE_CHUNK, u.shape[-1]), 1, 0)
        last, y = jax.lax.scan(piece, last, split)
        pieces.append(jnp.moveaxis(y, 0, 1).reshape(batch, whole, -1))
    if whole < length:
        last, y = piece(last, u[:, whole:])
        pieces.append(y)
    return jnp.concatenate(pieces, 1), last


@jax.jit
def decode_step(system: DiagonalSystem, u: Array, state: Pair | None) -> tuple[Array, Pair]:
    """y_t and the state after it, from u_t, (batch, d_model), and the state before; None at the start.

    Complex products in the system's own dtype, bfloat16 or not: a step waits for the system to be read, not for sums.
    """
    wide = u.astype(system.D.dtype)
    x = wide.astype(system.B.dtype) @ system.B.T if system.Lambda.ndim == 1 else system.B * wide[..., None]
    if state is not None:
        x = x + system.Lambda * jax.lax.complex(*state)
    y = (x @ system.C.T if system.Lambda.ndim == 1 else (x * system.C).sum(-1)).real + system.D * wide
    return y.astype(u.dtype), (x.real, x.imag)


def state_energy(layer: DiagonalLayer, params: Mapping[str, Array], u: Array, coordinates: str = "own") -> Array:
    """Squared norm of the state at every time step and in every head, (batch, length, heads); one head without groups.

    Computed piece by piece over time: the states themselves are never all there.
    """
    built = system(layer, params)
    groups = layer.groups if coordinates == "own" else None
    batch, length, _ = u.shape
    steps = min(STATE_CHUNK, length)
    count = -(-length // steps)
    padded = jnp.pad(u, ((0, 0), (0, count * steps - length), (0, 0)))
    zero = jnp.zeros((batch, *built.Lambda.shape), built.D.dtype)

    def piece(state: Pair, u: Array) -> tuple[Pair, Array]:
        re, im = _states(built, u, state)
        x = jnp.moveaxis(jax.lax.complex(re, im), 0, 1)
        x = x if coordinates == "diagonal" else layer.coordinates(params, x, ops)
        squares = (abs(x) ** 2).reshape(batch, steps, -1)
        if groups is None:
            return (re[-1], im[-1]), squares.sum(-1, keepdims=True)
        heads = jnp.zeros((batch, steps, int(groups.max()) + 1), squares.dtype)
        return (re[-1], im[-1]), heads.at[:, :, groups].add(squares)

    pieces = jnp.moveaxis(padded.reshape(batch, count, steps, -1), 1, 0)
    energies = jax.lax.scan(piece, (zero, zero), pieces)[1]
    return jnp.moveaxis(energies, 0, 1).reshape(batch, count * steps, -1)[:, :length]


STATE_CHUNK = 64
"""Time steps whose states are held at once where all of them would be too many."""


def _states(system: DiagonalSystem, u: Array, state: Pair | None) -> Pair:
    """States, time first, (length, batch, *Lambda.shape)."""
    u, B = jnp.swapaxes(u, 0, 1), (system.B.real, system.B.imag)
    if system.Lambda.ndim == 1:
        v = product(u, B[0].T, u.dtype), product(u, B[1].T, u.dtype)
    else:
        v = B[0] * u[..., None], B[1] * u[..., None]
    if state is None:
        zero = jnp.zeros_like(v[0][0])
        state = (zero, zero)
    return scan((system.Lambda.real, system.Lambda.imag), v, state)


def _read(system: DiagonalSystem, x: Pair, u: Array) -> Array:
    """Re(C x) + D * u, (batch, length, d_model), from states with time first."""
    if system.Lambda.ndim == 1:
        y = product(jnp.concatenate(x, -1), jnp.concatenate([system.C.real, -system.C.imag], -1).T, u.dtype)
    else:
        y = (x[0] * system.C.real - x[1] * system.C.imag).sum(-1)
    return (jnp.swapaxes(y, 0, 1) + system.D * u).astype(u.dtype)


def _filtered(system: DiagonalSystem, C: Array, u: Array) -> Array:
    Lambda, B, out = ((z.real, z.imag) for z in (system.Lambda, system.B, C))
    return jnp.swapaxes(filtered(Lambda, B, out, jnp.swapaxes(u, 0, 1)), 0, 1)


def _convolved(system: DiagonalSystem, u: Array, lengths: Array | None) -> Array:
    def kernel(C: Array) -> Array:
        Lambda, B, out = ((z.real, z.imag) for z in (system.Lambda, system.B, C))
        return convolution_kernel(Lambda, B, out, u.shape[1])

    y = convolve(kernel(system.C), u) + system.D * u
    if system.C_reverse is not None:
        y = y + jnp.flip(convolve(kernel(system.C_reverse), jnp.flip(_before_end(u, lengths), 1)), 1)
    return y.astype(u.dtype)


def _before_end(u: Array, lengths: Array | None) -> Array:
    """u with zeros at padding, so that a reversed scan starts at the true end."""
    if lengths is None:
        return u
    inside = jnp.arange(u.shape[1])[None, :] < lengths[:, None]
    return jnp.where(inside[..., None], u, 0)


def kernel_name(layer: Layer | ArrayLayer, device: str = "cpu", dtype: str = "float32") -> str:
    """The algorithm that the module runs on a device; shapes do not decide.

    * "module": the layer brings its own.
    * "fft": one system a channel. A scan would carry d_model * n numbers a step: (batch, length, d_model, n) of them.
    * "fused-loop-scan": else, on a CPU. One loop over time that writes in place; its adjoint sums Lambda's gradient on
      the way. At (8, 1024, 128) forward and backward take a fourth to a sixth of `associative_scan`'s time with 128
      states, and a fifth of its time to compile; a `lax.scan` with stacked outputs was half as fast as the loop, a loop
      over real and imaginary parts in one array a fiftieth, as XLA then copies the array at every step.
    * "chunked-scan": else, elsewhere, where one step is too small to keep a device busy.
    """
    layer = dataclass_of(layer)
    if hasattr(layer, "flax_module") or not isinstance(layer, DiagonalLayer):
        return "module"
    if len(layer.state_shape) == 2:
        return "fft"
    return "fused-loop-scan" if device == "cpu" else "chunked-scan"


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
    with computing(dtype, place):
        ends = None if lengths is None else put(np.asarray(lengths), place)
        if hasattr(layer, "flax_module") or not isinstance(layer, DiagonalLayer):
            return get(_module_outputs(*nnx.split(layer_module(layer, params, dtype)), put(u, place, dtype), ends))
        return get(_apply(layer, _arrays(params, place, dtype), put(u, place, dtype), ends))


def apply_in_turn(
    layer: Layer, params: Params, inputs: Sequence[np.ndarray], *, dtype: str = "float32", device: str = "cpu"
) -> list[np.ndarray]:
    """y for each of several u, all from one module, or one compiled function, called with one after the other."""
    if isinstance(layer, DiagonalLayer) and not hasattr(layer, "flax_module"):
        return [apply(layer, params, u, dtype=dtype, device=device) for u in inputs]
    place = find(device)
    with computing(dtype, place):
        module = layer_module(layer, params, dtype)
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
    with computing(dtype, place):
        arrays, pair = _arrays(params, place, dtype), _state_pair(state, place, dtype)
        y, last = _apply_from(layer, arrays, put(u, place, dtype), pair)
        return get(y), get(last)


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
    with computing(dtype, place):
        arrays = _arrays(params, place, dtype)
        return get(_all_states(layer, coordinates, arrays, put(u, place, dtype), _state_pair(state, place, dtype)))


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
    with computing(dtype, place):
        return get(_energies(layer, coordinates, _arrays(params, place, dtype), put(u, place, dtype)))


def decoder(
    layer: Layer, params: Params, *, length: int = 1024, dtype: str = "float32", device: str = "cpu"
) -> Callable[[np.ndarray, Any], tuple[np.ndarray, Any]]:
    """A function (u_t, state) -> (y_t, state); what does not change from step to step is built here, once.

    The state of a layer with a decoder of its own is the decoder's, on the device; it has room for `length` steps.
    """
    place, found = find(device), layer_decoder(layer)
    with computing(dtype, place):
        built = jax.jit(found.build)(_arrays(params, place, dtype))
    step = jax.jit(found.step)

    def decode(u: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        with computing(dtype, place):
            if hasattr(layer, "flax_decoder"):
                before = found.start(built, len(u), length) if state is None else state
                y, after = step(built, put(u, place, dtype), before)
                return get(y), after
            x = np.zeros((len(u), *built.Lambda.shape)) if state is None else state  # compiled once, not twice
            y, (re, im) = decode_step(built, put(u, place, dtype), _state_pair(x, place, dtype))
            return get(y), get(re) + 1j * get(im)

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
    with computing(dtype, place):
        g, ends = put(cotangent, place, dtype), None if lengths is None else put(np.asarray(lengths), place)
        if isinstance(layer, DiagonalLayer) and not hasattr(layer, "flax_module"):
            found, du = _gradients(layer, _arrays(params, place, dtype), put(u, place, dtype), ends, g)
            return {name: get(value) for name, value in {**found, "u": du}.items()}
        parts = nnx.split(layer_module(layer, params, dtype))
        state_gradient, du = _module_gradients(*parts, put(u, place, dtype), ends, g)
        return {name: get(value) for name, value in {**nnx.to_pure_dict(state_gradient), "u": du}.items()}


@partial(jax.jit, static_argnums=0)
def _module_outputs(graph: nnx.GraphDef, state: nnx.State, u: Array, lengths: Array | None) -> Array:
    return nnx.merge(graph, state)(u, lengths)


@partial(jax.jit, static_argnums=0)
def _module_gradients(
    graph: nnx.GraphDef, state: nnx.State, u: Array, lengths: Array | None, cotangent: Array
) -> tuple[nnx.State, Array]:
    def loss(state: nnx.State, u: Array) -> Array:
        return (nnx.merge(graph, state)(u, lengths) * cotangent).sum()

    return jax.grad(loss, (0, 1))(state, u)


@partial(jax.jit, static_argnums=0)
def _apply(layer: DiagonalLayer, params: Params, u: Array, lengths: Array | None) -> Array:
    return outputs(system(layer, params), u, lengths)


@partial(jax.jit, static_argnums=0)
def _apply_from(layer: DiagonalLayer, params: Params, u: Array, state: Pair | None) -> tuple[Array, Array]:
    y, last = stateful_outputs(system(layer, params), u, state)
    return y, jax.lax.complex(*last)


@partial(jax.jit, static_argnums=(0, 1))
def _all_states(layer: DiagonalLayer, coordinates: str, params: Params, u: Array, state: Pair | None) -> Array:
    x = jnp.moveaxis(jax.lax.complex(*_states(system(layer, params), u, state)), 0, 1)
    return x if coordinates == "diagonal" else layer.coordinates(params, x, ops)


@partial(jax.jit, static_argnums=(0, 1))
def _energies(layer: DiagonalLayer, coordinates: str, params: Params, u: Array) -> Array:
    return state_energy(layer, params, u, coordinates)


@partial(jax.jit, static_argnums=0)
def _gradients(
    layer: DiagonalLayer, params: Params, u: Array, lengths: Array | None, cotangent: Array
) -> tuple[dict[str, Array], Array]:
    def loss(params: Params, u: Array) -> Array:
        return (outputs(system(layer, params), u, lengths) * cotangent).sum()

    return jax.grad(loss, (0, 1))(params, u)


def _arrays(params: Params, place: jax.Device, dtype: str) -> dict[str, Array]:
    return {name: put(np.asarray(value, PARAMETER_DTYPES[dtype]), place) for name, value in params.items()}


def _state_pair(state: np.ndarray | None, place: jax.Device, dtype: str) -> Pair | None:
    if state is None:
        return None
    x = np.asarray(state)
    return put(x.real.astype(PARAMETER_DTYPES[dtype]), place), put(x.imag.astype(PARAMETER_DTYPES[dtype]), place)
