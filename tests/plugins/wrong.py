"""Eleven layers, each wrong in one way. What they state, their `system`, is right: what runs in torch is not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import bench
from bench.backends.torch import system
from models.lru import LRU
from models.rotrnn import RotRNN


class Module(nn.Module):
    """Any of them: a plain loop over time, with the places to go wrong in as methods of the layer."""

    def __init__(self, layer, params):
        super().__init__()
        self.layer = layer
        for name, value in params.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(value)))

    def forward(self, u: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.layer.outputs(dict(self.named_parameters()), u, lengths)


class Own:
    """A layer that brings its own torch module."""

    def torch_module(self, params):
        return Module(self, params)

    def outputs(self, params, u, lengths):
        found = self.wrong_system(params)
        x = self.scan(found.Lambda, u.to(found.B.dtype) @ found.B.T)
        return (x @ found.C.T).real + found.D * u

    def wrong_system(self, params):
        return system(self, params)

    def scan(self, Lambda, v):
        return loop(Lambda, v)


def loop(Lambda, v):
    """x_t = Lambda x_{t-1} + v_t, (batch, length, n)."""
    x, states = torch.zeros_like(v[:, 0]), []
    for t in range(v.shape[1]):
        x = Lambda * x + v[:, t]
        states.append(x)
    return torch.stack(states, 1)


@bench.register.model("wrong-swapped")
@dataclass(frozen=True, kw_only=True)
class Swapped(Own, LRU):
    """A parallel scan whose operator takes the later element for the earlier one."""

    d_state: int = 6

    def scan(self, Lambda, v):
        a, b, shift = Lambda.expand_as(v), v, 1
        while shift < v.shape[1]:
            a_early, b_early, a_late, b_late = a[:, :-shift], b[:, :-shift], a[:, shift:], b[:, shift:]
            b = torch.cat([b[:, :shift], a_early * b_late + b_early], 1)  # right is a_late * b_early + b_late
            a = torch.cat([a[:, :shift], a_late * a_early], 1)
            shift *= 2
        return b


@bench.register.model("wrong-transposed")
@dataclass(frozen=True, kw_only=True)
class Transposed(Own, RotRNN):
    """C reads P^T x where it should read P x."""

    d_state: int = 8
    heads: int = 2

    def wrong_system(self, params):
        other = system(self, params | {"M": params["M"].swapaxes(-1, -2)})  # exp(M^T - M) is P^T
        return system(self, params)._replace(C=other.C)


@bench.register.model("wrong-log-gamma")
@dataclass(frozen=True, kw_only=True)
class LogGamma(Own, LRU):
    """B is scaled by log gamma instead of gamma."""

    d_state: int = 6

    def wrong_system(self, params):
        gamma_log = params["gamma_log"][:, None]
        found = system(self, params)
        return found._replace(B=gamma_log * torch.exp(-gamma_log) * found.B)


class _ScanWithWrongAdjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Lambda, v):
        x = loop(Lambda, v)
        ctx.save_for_backward(Lambda, x)
        return x

    @staticmethod
    def backward(ctx, g):
        Lambda, x = ctx.saved_tensors
        h = loop(Lambda.conj(), g.flip(1)).flip(1)
        return (h * x.conj()).sum((0, 1)), h  # right is h_t conj(x_{t-1})


@bench.register.model("wrong-adjoint")
@dataclass(frozen=True, kw_only=True)
class WrongAdjoint(Own, LRU):
    """Outputs are exact, the gradient for Lambda is off by one step."""

    d_state: int = 6

    def scan(self, Lambda, v):
        return _ScanWithWrongAdjoint.apply(Lambda, v)


@bench.register.model("wrong-anti-causal")
@dataclass(frozen=True, kw_only=True)
class AntiCausal(Own, LRU):
    """y_t reads x_{t+1}."""

    d_state: int = 6

    def scan(self, Lambda, v):
        x = loop(Lambda, v)
        return torch.cat([x[:, 1:], x[:, -1:]], 1)


@bench.register.model("wrong-padding")
@dataclass(frozen=True, kw_only=True)
class PaddingLeak(Own, LRU):
    """The reversed scan starts in the padding."""

    d_state: int = 6
    bidirectional: bool = True

    def outputs(self, params, u, lengths):
        found = system(self, params)
        x = loop(found.Lambda, u.flip(1).to(found.B.dtype) @ found.B.T).flip(1)
        return super().outputs(params, u, lengths) + (x @ found.C_reverse.T).real


@bench.register.model("wrong-shared-state")
@dataclass(frozen=True, kw_only=True)
class SharedState(Own, LRU):
    """Each example starts from the last state of the one before it."""

    d_state: int = 6

    def scan(self, Lambda, v):
        return loop(Lambda, v.reshape(1, -1, v.shape[-1])).reshape(v.shape)


@bench.register.model("wrong-group")
@dataclass(frozen=True, kw_only=True)
class NoGroup(LRU):
    """Its parameter `scale` has no role, so no optimiser would move it."""

    d_state: int = 6

    def initial(self, rng: np.random.Generator):
        return super().initial(rng) | {"scale": np.ones(self.d_model)}

    def system(self, params, ops):
        found = super().system(params, ops)
        return found._replace(D=params["scale"] * found.D)


@bench.register.model("wrong-large-batches")
@dataclass(frozen=True, kw_only=True)
class LargeBatches(Own, LRU):
    """From three examples on each sees the mean of all."""

    d_state: int = 6

    def outputs(self, params, u, lengths):
        y = super().outputs(params, u, lengths)
        return y + 0.5 * u.mean(0, keepdim=True) if len(u) > 2 else y


@bench.register.model("wrong-one-position")
@dataclass(frozen=True, kw_only=True)
class OnePosition(Own, LRU):
    """y_2, and no other, sees the next input."""

    d_state: int = 6

    def outputs(self, params, u, lengths):
        y = super().outputs(params, u, lengths)
        if u.shape[1] < 4:
            return y
        return torch.cat([y[:, :2], y[:, 2:3] + 1e-2 * u[:, 3:4], y[:, 3:]], 1)


class Keeping(Module):
    """A module that adds something of its last output to the next one."""

    last: Tensor | float = 0.0

    def forward(self, u: Tensor, lengths: Tensor | None = None) -> Tensor:
        y = super().forward(u, lengths) + 1e-3 * self.last
        self.last = y.mean().detach()
        return y


@bench.register.model("wrong-kept-state")
@dataclass(frozen=True, kw_only=True)
class KeptState(Own, LRU):
    """Its first output is right."""

    d_state: int = 6

    def torch_module(self, params):
        return Keeping(self, params)
