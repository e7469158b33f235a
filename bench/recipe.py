"""How a network is trained: rates and weight decay by role, the schedule, clipping. Imports no framework."""

from __future__ import annotations

import dataclasses
import math

from bench.contract import LAYER_ROLES, require

GROUPS = ("slow", "slow-decayed", "fast", "fast-decayed")
"""What a parameter can be: at the recurrent rate or the full one, with weight decay or without."""

GROUP_OF = {
    **dict.fromkeys(("dynamics", "step", "normaliser", "input"), "slow"),
    **dict.fromkeys(("output", "skip", "weight"), "fast-decayed"),
    **dict.fromkeys(("norm", "bias"), "fast"),
}
"""The group of each role, unless a recipe moves it."""

ROLES = (*LAYER_ROLES, "weight", "norm", "bias")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """AdamW with linear warm-up from `rate_start`, and a cosine down to `rate_end` that ends exactly at the last step.

    `rate` is the peak rate; recurrent parameters (roles dynamics, step, normaliser, input) train at `rate *
    recurrent_factor` without weight decay. `moved` puts roles, or parameters of the layer by name, into other groups:
    "input:fast-decayed theta:slow"; a name goes before its role. Gradients are scaled down to a global norm of `clip`.
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
    rate_start: float = 0.0
    rate_end: float = 0.0
    moved: str = ""

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"steps must be at least 1, not {self.steps}")
        require(self.batch >= 1, f"batch must be at least 1, not {self.batch}")
        require(self.rate >= 0, f"rate must not be negative, but is {self.rate}")
        require(0 <= self.warmup <= 1, f"warmup is a share of the steps, between 0 and 1, not {self.warmup}")
        require(0 <= self.dropout < 1, f"dropout must be at least 0 and below 1, not {self.dropout}")
        require(self.clip > 0, f"clip must be above 0, not {self.clip}")
        for name in ("rate_start", "rate_end"):
            value = getattr(self, name)
            require(0 <= value <= self.rate, f"{name} must lie between 0 and rate = {self.rate}, not {value}")
        self.moves()

    def moves(self) -> dict[str, str]:
        """`moved` as role or parameter -> group. ValueError: no such form or group, or a name that is there twice."""
        found: dict[str, str] = {}
        for word in self.moved.split():
            name, _, group = word.partition(":")
            require(group in GROUPS, f"moved: {word!r} should read NAME:GROUP with one of {', '.join(GROUPS)}")
            require(name not in found, f"moved: {name} is there twice")
            found[name] = group
        return found

    def rate_at(self, step: int) -> float:
        """The full rate of a step, 0 <= step < steps. Steps after the warm-up follow half a cosine down."""
        warm = round(self.warmup * self.steps)
        if step < warm:
            return self.rate_start + (self.rate - self.rate_start) * (step + 1) / warm
        share = 0.5 * (1 + math.cos(math.pi * (step + 1 - warm) / (self.steps - warm)))
        return self.rate_end + (self.rate - self.rate_end) * share

    def groups(self, roles: dict[str, str]) -> dict[str, tuple[float, float]]:
        """Rate factor and weight decay of every trained parameter.

        ValueError: a parameter without a known role, or a name in `moved` that is neither role nor parameter.
        """
        moves, groups = self.moves(), {}
        own = {name.partition(".layer.")[2] for name in roles if ".layer." in name}
        for name in moves:
            allowed = sorted(own | GROUP_OF.keys())
            require(
                name in allowed, f"moved: {name!r} is neither a role nor a parameter: allowed are {', '.join(allowed)}"
            )
        for name, role in roles.items():
            if role == "constant":
                continue
            require(role in GROUP_OF, f"parameter {name} has the role {role!r}: allowed are {', '.join(ROLES)}")
            group = moves.get(name.partition(".layer.")[2]) or moves.get(role) or GROUP_OF[role]
            rate, _, decayed = group.partition("-")
            groups[name] = (self.recurrent_factor if rate == "slow" else 1.0, self.weight_decay if decayed else 0.0)
        return groups
