"""torch's side of `bench.contract.Ops`."""

from __future__ import annotations

import numpy as np
import torch

complex = torch.complex
exp, expm1, log, sqrt, sin, cos = torch.exp, torch.expm1, torch.log, torch.sqrt, torch.sin, torch.cos
sum, amax, expm, det = torch.sum, torch.amax, torch.linalg.matrix_exp, torch.linalg.det
stack, concatenate = torch.stack, torch.cat


def minimum(x: torch.Tensor, bound: float) -> torch.Tensor:
    return torch.clamp(x, max=bound)


def constant(x: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(x, dtype=like.real.dtype, device=like.device)


def stop_gradient(x: torch.Tensor) -> torch.Tensor:
    return x.detach()
