"""The plain-array face of a layer, for notebooks and tests: numpy in, numpy out, on any backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from bench import backends
from bench.contract import DiagonalLayer, Layer, Params, Unsupported, require

Dtype = Literal["float32", "float64", "bfloat16"]
Decoder = Callable[..., tuple[np.ndarray, Any]]

_FRAMEWORKS = {"torch": "torch", "jax": "flax"}


def dataclass_of(layer: Layer | ArrayLayer) -> Layer:
    """The dataclass behind what `bench.layer` returns; a layer that is one already as it is. ValueError for neither."""
    found = layer.layer if isinstance(layer, ArrayLayer) else layer
    if not isinstance(found, Layer):  # no `require`: its text would be made at every call, which torch.compile traces
        raise ValueError(f"layer must be what bench.layer returns, or a Layer, not {layer!r}")
    return found


def diagonal_of(layer: DiagonalLayer | ArrayLayer) -> DiagonalLayer:
    """The same where only a diagonal layer will do. ValueError for another."""
    found = dataclass_of(layer)
    if not isinstance(found, DiagonalLayer):
        raise ValueError(f"{type(found).__name__} is no diagonal layer, so it has no system")
    return found


class ArrayLayer:
    """A layer that is called with numpy arrays. `layer` is the dataclass behind it.

    Arrays: u, y (batch, length, d_model); u_t, y_t (batch, d_model); a state that is handed over is the complex
    diagonal one, (batch, *Lambda.shape). `dtype` is what is computed in; on `reference` parameters and u are rounded
    to it and the loop runs in float64. With "bfloat16" u, y and the products with B and C are bfloat16, parameters and
    states float32, and arrays come back as float32. Wrong shapes and names raise ValueError.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def __repr__(self) -> str:
        return f"ArrayLayer({self.layer!r})"

    def init(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Parameters at initialisation, float64."""
        return self.layer.initial(np.random.default_rng(seed))

    def apply(
        self,
        params: Params,
        u: np.ndarray,
        *,
        state: np.ndarray | None = None,
        return_state: bool = False,
        lengths: np.ndarray | None = None,
        backend: str = "torch",
        dtype: Dtype = "float32",
        device: str = "cpu",
    ) -> Any:
        """y, or (y, state after the last step) with `return_state`."""
        u = self._check(params, u, dtype)
        found = self._backend(backend, device)
        lengths = self._lengths(lengths, u)
        if state is None and not return_state:
            return found.apply(self.layer, params, u, lengths=lengths, dtype=dtype, device=device)
        self._require_state()
        require(lengths is None, "lengths and a state that is handed over exclude each other")
        state = self._state(state, len(u))
        y, state = found.apply_from(self.layer, params, u, state, dtype=dtype, device=device)
        return (y, state) if return_state else y

    def states(
        self,
        params: Params,
        u: np.ndarray,
        *,
        state: np.ndarray | None = None,
        coordinates: Literal["own", "diagonal"] = "own",
        backend: str = "torch",
        dtype: Dtype = "float32",
        device: str = "cpu",
    ) -> np.ndarray:
        """All states, (batch, length, ...): in the layer's own coordinates, or the complex diagonal ones."""
        u = self._check(params, u, dtype)
        self._require_state()
        state = self._state(state, len(u))
        require(coordinates in ("own", "diagonal"), f'coordinates must be "own" or "diagonal", not {coordinates!r}')
        return self._backend(backend, device).states(
            self.layer, params, u, state=state, coordinates=coordinates, dtype=dtype, device=device
        )

    def decoder(
        self, params: Params, *, backend: str = "torch", dtype: Dtype = "float32", device: str = "cpu"
    ) -> Decoder:
        """A function (u_t, state or None) -> (y_t, state) that builds the system once.

        The state of a layer that is not diagonal is its decoder's own: to be given back, once, and not looked into.
        """
        self._check(params, None, dtype)
        own = not isinstance(self.layer, DiagonalLayer) and hasattr(self.layer, f"{_FRAMEWORKS.get(backend)}_decoder")
        if not own:
            self._require_state()
        decode = self._backend(backend, device).decoder(self.layer, params, dtype=dtype, device=device)

        def checked(u_t: np.ndarray, state: Any = None) -> tuple[np.ndarray, Any]:
            u_t = self._input(u_t, ndim=2)
            return decode(u_t, state if own else self._state(state, len(u_t)))

        return checked

    def step(
        self,
        params: Params,
        u_t: np.ndarray,
        state: Any = None,
        *,
        backend: str = "torch",
        dtype: Dtype = "float32",
        device: str = "cpu",
    ) -> tuple[np.ndarray, Any]:
        """(y_t, state after it); `state` None at the start. For many steps use `decoder`."""
        return self.decoder(params, backend=backend, dtype=dtype, device=device)(u_t, state)

    def gradients(
        self,
        params: Params,
        u: np.ndarray,
        cotangent: np.ndarray,
        *,
        lengths: np.ndarray | None = None,
        backend: str = "torch",
        dtype: Dtype = "float32",
        device: str = "cpu",
    ) -> dict[str, np.ndarray]:
        """Gradients of sum(cotangent * y) with respect to every parameter and "u"; on torch and jax."""
        u = self._check(params, u, dtype)
        require(np.shape(cotangent) == np.shape(u), f"cotangent has shape {np.shape(cotangent)}, u has {np.shape(u)}")
        require(backend != "reference", "backend must be torch or jax for gradients, not reference")
        cotangent = np.asarray(cotangent, np.float64)
        return self._backend(backend, device).gradients(
            self.layer, params, u, cotangent, lengths=self._lengths(lengths, u), dtype=dtype, device=device
        )

    def _backend(self, name: str, device: str) -> Any:
        if name == "reference" and not isinstance(self.layer, DiagonalLayer):
            raise Unsupported(f"{type(self.layer).__name__} is no diagonal layer, so it has no reference loop")
        kind, _, number = device.partition(":")
        require(
            device in ("cpu", "cuda") or (kind == "cuda" and number.isdecimal()),
            f"device must be cpu, cuda or cuda:N, not {device!r}",
        )
        require(name != "reference" or device == "cpu", f"the reference runs on cpu, not on {device}")
        return backends.load(name)

    def _require_state(self) -> DiagonalLayer:
        if not isinstance(self.layer, DiagonalLayer):
            raise Unsupported(f"{type(self.layer).__name__} is no diagonal layer, so its state is not known")
        if self.layer.has_reverse:
            raise Unsupported("a bidirectional layer has no state to step or to hand over")
        return self.layer

    def _check(self, params: Params, u: np.ndarray | None, dtype: str) -> np.ndarray:
        """u, float64, after a look at everything that would otherwise be broadcast or cast silently."""
        known = get_args(Dtype)
        require(dtype in known, f"dtype must be {', '.join(known[:-1])} or {known[-1]}, not {dtype!r}")
        names = set(self.layer.roles())
        missing, unknown = names - set(params), set(params) - names
        require(not missing, f"params lack {', '.join(sorted(missing))}")
        require(not unknown, f"params hold {', '.join(sorted(unknown))}, which the layer does not know")
        for name, shape in self._shapes.items():
            found = np.asarray(params[name])
            require(found.shape == shape, f"{name} must have shape {shape}, not {found.shape}")
            require(not np.iscomplexobj(found), f"{name} must be real: real and imaginary parts are parameters apart")
        return np.zeros(0) if u is None else self._input(u, ndim=3)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: value.shape for name, value in self.init(0).items()}

    def _input(self, u: np.ndarray, ndim: int) -> np.ndarray:
        found = np.asarray(u)
        wanted = "(batch, length, d_model)" if ndim == 3 else "(batch, d_model)"
        require(
            found.ndim == ndim and found.shape[-1] == self.layer.d_model,
            f"u must have shape {wanted} with d_model = {self.layer.d_model}, not {found.shape}",
        )
        require(found.size > 0, f"batch and length must be at least 1, but u has shape {found.shape}")
        require(found.dtype.kind in "fiub", f"u must be real numbers, not {found.dtype}")
        return found.astype(np.float64)

    def _state(self, state: np.ndarray | None, batch: int) -> np.ndarray | None:
        if state is None:
            return None
        found, wanted = np.asarray(state), (batch, *self._require_state().state_shape)
        require(found.shape == wanted, f"state must have shape {wanted}, (batch, *Lambda.shape), not {found.shape}")
        return found

    def _lengths(self, lengths: np.ndarray | None, u: np.ndarray) -> np.ndarray | None:
        if lengths is None:
            return None
        found = np.asarray(lengths)
        require(found.shape == (len(u),), f"lengths must have shape ({len(u)},), one an example, not {found.shape}")
        require(
            found.dtype.kind in "iu" and found.min() >= 1 and found.max() <= u.shape[1],
            f"lengths must be whole numbers from 1 to {u.shape[1]}, not {found.tolist()}",
        )
        return found
