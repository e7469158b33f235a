"""States of a recurrence with a dense matrix, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.dense import Activation, activated


def dense_states(W: Tensor, v: Tensor, activation: Activation = "linear") -> Tensor:
    """h_t = phi(W h_{t-1}) + v_t from h_0 = 0: all h_t, (batch, length, n), like v.

    W is (n, n), or (batch, n, n) with a matrix for each sequence; complex if v is.
    """
    h, states, many = v[:, 0], [v[:, 0]], W.ndim == 3
    W_T = W.mT.contiguous()
    for v_t in v.unbind(1)[1:]:
        if activation != "linear":
            before = torch.einsum("bi,bij->bj", h, W_T) if many else h @ W_T
            h = activated(activation, before, torch.maximum) + v_t
        elif many:
            h = torch.baddbmm(v_t[:, None], h[:, None], W_T)[:, 0]
        else:
            h = torch.addmm(v_t, h, W_T)
        states.append(h)
    return torch.stack(states, 1)
