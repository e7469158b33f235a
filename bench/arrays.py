"""The plain-array face of a layer, for notebooks and tests: numpy in, numpy out, on any backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from bench import backends
from bench.contract import DiagonalLayer, Layer, Params, Unsupported, require

Dtype = Literal["float32", "float64"]
Decoder = Callable[[np.ndarray, np.ndarray | None], tuple[np.ndarray, np.ndarray]]


class ArrayLayer:
    """A layer that is called with numpy arrays. `layer` is the dataclass behind it.

    Arrays: u, y (batch, length, d_model); u_t, y_t (batch, d_model); a state that is handed over is the complex
    diagonal one, (batch, *Lambda.shape). `dtype` is what is computed in; on `reference` parameters and u are rounded
    to it and the loop runs in float64. Wrong shapes and names raise ValueError.
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
        self._check(params, u, ndim=3)
        found = self._backend(backend)
        if state is None and not return_state:
            return found.apply(self.layer, params, u, lengths=lengths, dtype=dtype, device=device)
        self._require_state()
        require(lengths is None, "lengths and a state that is handed over exclude each other")
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
        self._check(params, u, ndim=3)
        self._require_state()
        require(coordinates in ("own", "diagonal"), f'coordinates must be "own" or "diagonal", not {coordinates!r}')
        return self._backend(backend).states(
            self.layer, params, u, state=state, coordinates=coordinates, dtype=dtype, device=device
        )

    def decoder(
        self, params: Params, *, backend: str = "torch", dtype: Dtype = "float32", device: str = "cpu"
    ) -> Decoder:
        """A function (u_t, state or None) -> (y_t, state) that builds the system once."""
        self._check(params)
        self._require_state()
        return self._backend(backend).decoder(self.layer, params, dtype=dtype, device=device)

    def step(
        self,
        params: Params,
        u_t: np.ndarray,
        state: np.ndarray | None = None,
        *,
        backend: str = "torch",
        dtype: Dtype = "float32",
        device: str = "cpu",
    ) -> tuple[np.ndarray, np.ndarray]:
        """(y_t, state after it); `state` None at the start. For many steps use `decoder`."""
        self._check(params, u_t, ndim=2)
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
        self._check(params, u, ndim=3)
        require(np.shape(cotangent) == np.shape(u), f"cotangent has shape {np.shape(cotangent)}, u has {np.shape(u)}")
        require(backend != "reference", "backend must be torch or jax for gradients, not reference")
        return backends.load(backend).gradients(
            self.layer, params, u, cotangent, lengths=lengths, dtype=dtype, device=device
        )

    def _backend(self, name: str) -> Any:
        if name == "reference" and not isinstance(self.layer, DiagonalLayer):
            raise Unsupported(f"{type(self.layer).__name__} is no diagonal layer, so it has no reference loop")
        return backends.load(name)

    def _require_state(self) -> None:
        if not isinstance(self.layer, DiagonalLayer):
            raise Unsupported(f"{type(self.layer).__name__} is no diagonal layer, so its state is not known")
        if self.layer.has_reverse:
            raise Unsupported("a bidirectional layer has no state to step or to hand over")

    def _check(self, params: Params, u: np.ndarray | None = None, ndim: int = 3) -> None:
        names = set(self.layer.roles())
        missing, unknown = names - set(params), set(params) - names
        require(not missing, f"params lack {', '.join(sorted(missing))}")
        require(not unknown, f"params hold {', '.join(sorted(unknown))}, which the layer does not know")
        if u is None:
            return
        shape = np.shape(u)
        wanted = "(batch, length, d_model)" if ndim == 3 else "(batch, d_model)"
        require(
            len(shape) == ndim and shape[-1] == self.layer.d_model,
            f"u must have shape {wanted} with d_model = {self.layer.d_model}, not {shape}",
        )
        require(all(size > 0 for size in shape), f"batch and length must be at least 1, but u has shape {shape}")
