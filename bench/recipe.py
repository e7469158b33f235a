"""How a network is trained: rates and weight decay by role, the schedule, clipping. Imports no framework."""

from __future__ import annotations

import dataclasses
import math

from bench.contract import LAYER_ROLES, require

SLOW_ROLES = ("dynamics", "step", "normaliser", "input")
"""The recurrent roles: the small rate, and no weight decay."""
DECAYED_ROLES = ("output", "skip", "weight")
PLAIN_ROLES = ("norm", "bias")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """AdamW with linear warm-up and a cosine decay to 0 that ends exactly at the last step.

    `rate` is the peak rate; recurrent parameters (roles dynamics, step, normaliser, input) train at `rate *
    recurrent_factor` without weight decay. Gradients are scaled down to a global norm of `clip`.
    """

    steps: int
    batch: int
    rate: float = 3e-3
    recurrent_factor: float = 1 / 3
    weight_decay: float = 0.05
    warmup: float = 0.1
    dropout: float = 0.0
    clip: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"steps must be at least 1, not {self.steps}")
        require(self.batch >= 1, f"batch must be at least 1, not {self.batch}")
        require(self.rate >= 0, f"rate must not be negative, but is {self.rate}")
        require(0 <= self.warmup <= 1, f"warmup is a share of the steps, between 0 and 1, not {self.warmup}")
        require(0 <= self.dropout < 1, f"dropout must be at least 0 and below 1, not {self.dropout}")
        require(self.clip > 0, f"clip must be above 0, not {self.clip}")

    def rate_at(self, step: int) -> float:
        """The peak-group rate of a step, 0 <= step < steps. Steps after the warm-up follow half a cosine down to 0."""
        warm = round(self.warmup * self.steps)
        if step < warm:
            return self.rate * (step + 1) / warm
        return self.rate * 0.5 * (1 + math.cos(math.pi * (step + 1 - warm) / (self.steps - warm)))

    def groups(self, roles: dict[str, str]) -> dict[str, tuple[float, float]]:
        """Rate factor and weight decay of every trained parameter; ValueError for one without a known role."""
        groups = {}
        for name, role in roles.items():
            if role in SLOW_ROLES:
                groups[name] = (self.recurrent_factor, 0.0)
            elif role in DECAYED_ROLES:
                groups[name] = (1.0, self.weight_decay)
            elif role in PLAIN_ROLES:
                groups[name] = (1.0, 0.0)
            else:
                allowed = ", ".join((*LAYER_ROLES, "weight", *PLAIN_ROLES))
                require(role == "constant", f"parameter {name} has the role {role!r}: allowed are {allowed}")
        return groups
