"""How a layer is executed: `reference` (numpy, float64, a plain loop), `torch` and `jax`, which mirror each other."""

from __future__ import annotations

import importlib
from types import ModuleType

from bench.contract import Missing

NAMES = ("torch", "jax")
"""The backends that train networks; `reference` is the oracle that both are checked against."""

REQUIREMENTS = {"torch": ("torch",), "jax": ("jax", "flax", "optax"), "reference": ()}
INSTALL = {
    ("torch", "cpu"): 'pip install "linrec-bench[torch]"',
    ("torch", "cuda"): 'pip install "linrec-bench[torch]"',
    ("jax", "cpu"): 'pip install "linrec-bench[jax]"',
    ("jax", "cuda"): 'pip install "linrec-bench[jax-cuda]"',
}


def load(name: str) -> ModuleType:
    """The backend's package; its framework is imported here and nowhere earlier.

    Raises ValueError for an unknown name and `Missing`, with the line that installs it, where the framework is not.
    """
    if name not in REQUIREMENTS:
        raise ValueError(f"unknown backend {name!r}: allowed are {', '.join(REQUIREMENTS)}")
    try:
        return importlib.import_module(f"bench.backends.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in REQUIREMENTS[name]:
            raise
        raise Missing(f"{error.name} is not installed: {INSTALL[name, 'cpu']}") from error


def __getattr__(name: str) -> ModuleType:
    if name in REQUIREMENTS:
        return load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
