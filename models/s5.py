"""The simplified state space layer, S5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.linalg import block_diag

from bench.contract import Array, DiagonalLayer, DiagonalSystem, Ops, Params, Role, require
from bench.sampling import normal, open_uniform, truncated_normal
from bench.state_space import Discretization, discretize, hippo_normal


@dataclass(frozen=True, kw_only=True)
class S5(DiagonalLayer):
    """One state space for all channels, x' = Lambda x + B u, y = C x + D * u, with a step size for every state.

    At the start Lambda is the spectrum of `blocks` HiPPO-N matrices, and B and C are drawn in real coordinates and
    turned into the eigenbasis (not C with `C_init="complex_normal"`). d_state counts states before `conj_sym` keeps
    one of each conjugate pair and doubles the real part. Lambda is free: stability is not enforced, `clip_eigs` only
    keeps Re Lambda <= -1e-4. Bidirectional: C1 reads the forward scan, C2 the reversed one.

    Shapes, with P' = d_state / 2 under `conj_sym`, else d_state: Lambda_re, Lambda_im (P',), B (P', d_model, 2),
    C or C1, C2 (d_model, P', 2), or bidirectional with complex_normal C (d_model, 2 P', 2), forward half first;
    D (d_model,), log_step (P', 1). The last axis of length 2 holds real and imaginary part.
    """

    d_state: int = 128
    blocks: int = 8
    conj_sym: bool = True
    discretization: Discretization = "zoh"
    C_init: Literal["trunc_standard_normal", "lecun_normal", "complex_normal"] = "trunc_standard_normal"
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    clip_eigs: bool = False
    bidirectional: bool = False

    source: ClassVar[str] = "Smith et al. 2023, arXiv 2208.04933"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.d_state >= 1 and self.blocks >= 1 and self.d_state % self.blocks == 0,
            f"blocks must divide d_state, not blocks = {self.blocks}, d_state = {self.d_state}",
        )
        require(
            not self.conj_sym or self.d_state // self.blocks % 2 == 0,
            f"conj_sym needs blocks of even size, not d_state = {self.d_state} in blocks = {self.blocks}",
        )
        require(
            0 < self.dt_min <= self.dt_max,
            f"0 < dt_min <= dt_max must hold, not dt_min = {self.dt_min}, dt_max = {self.dt_max}",
        )

    @property
    def kept(self) -> int:
        """The number of complex states that are kept, P'."""
        return self.d_state // 2 if self.conj_sym else self.d_state

    @property
    def output_names(self) -> list[str]:
        return ["C1", "C2"] if self.bidirectional and self.C_init != "complex_normal" else ["C"]

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        h, kept = self.d_model, self.kept
        size = self.d_state // self.blocks
        rates, vectors = hippo_normal(size)
        if self.conj_sym:  # the half with negative imaginary part
            rates, vectors = rates[: size // 2], vectors[:, : size // 2]
        rates, V = np.tile(rates, self.blocks), block_diag(*[vectors] * self.blocks)

        real_B = truncated_normal(rng, (self.d_state, h), 1 / self.d_state)  # fan-in is taken over the states
        params = {
            "Lambda_re": rates.real,
            "Lambda_im": rates.imag,
            "B": _split(V.conj().T @ real_B),
        }
        for name in self.output_names:
            params[name] = self._initial_output(rng, V)
        params["D"] = normal(rng, (h,))
        params["log_step"] = open_uniform(rng, (kept, 1), np.log(self.dt_min), np.log(self.dt_max))
        return params

    def _initial_output(self, rng: np.random.Generator, V: np.ndarray) -> np.ndarray:
        h, n = self.d_model, self.d_state
        if self.C_init == "complex_normal":
            return normal(rng, (h, 2 * self.kept if self.bidirectional else self.kept, 2), 1 / 2)
        # lecun_normal takes the whole array as one kernel, so its fan-in counts the channels too
        fan_in = n if self.C_init == "trunc_standard_normal" else n * h
        C = truncated_normal(rng, (h, n, 2), 1 / fan_in)
        return _split((C[..., 0] + 1j * C[..., 1]) @ V)

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {"Lambda_re": "dynamics", "Lambda_im": "dynamics", "B": "input"}
        for name in self.output_names:
            roles[name] = "output"
        return roles | {"D": "skip", "log_step": "step"}

    def system(self, params: Params, ops: Ops) -> DiagonalSystem:
        decay = ops.minimum(params["Lambda_re"], -1e-4) if self.clip_eigs else params["Lambda_re"]
        step = ops.exp(params["log_step"])[:, 0]
        Lambda, scale = discretize(ops.complex(decay, params["Lambda_im"]), step, self.discretization, ops)
        B = scale[:, None] * ops.complex(params["B"][..., 0], params["B"][..., 1])

        doubled = 2 if self.conj_sym else 1
        outputs: list[Array] = [
            doubled * ops.complex(params[name][..., 0], params[name][..., 1]) for name in self.output_names
        ]
        if self.bidirectional and len(outputs) == 1:
            outputs = [outputs[0][:, : self.kept], outputs[0][:, self.kept :]]
        return DiagonalSystem(Lambda, B, outputs[0], params["D"], outputs[1] if self.bidirectional else None)


def _split(x: np.ndarray) -> np.ndarray:
    """Real and imaginary part on a last axis of length 2."""
    return np.stack([x.real, x.imag], axis=-1)
