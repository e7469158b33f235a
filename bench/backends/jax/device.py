"""Which device jax computes on, and in which precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from bench.backends.allocator import keep_freed_memory

DTYPES = {"float32": np.float32, "float64": np.float64, "tf32": np.float32, "bfloat16": jnp.bfloat16}
PARAMETER_DTYPES = DTYPES | {"bfloat16": np.float32}
"""Parameters, systems and states stay in float32 where activations and projections are bfloat16."""
PRECISIONS = {"float32": "highest", "float64": "highest", "tf32": "tensorfloat32", "bfloat16": "highest"}


def find(device: str) -> jax.Device:
    """The device of this name: cpu, cuda or cuda:N. RuntimeError where jax cannot use it."""
    kind, _, number = device.partition(":")
    return jax.devices(kind)[int(number or 0)]


def describe() -> dict[str, object]:
    """What jax finds on this machine: whether it can use a GPU, and the GPUs' names."""
    try:
        found = jax.devices("cuda")
    except RuntimeError:
        found = []
    return {"version": jax.__version__, "cuda": bool(found), "devices": [device.device_kind for device in found]}


def set_process(dtype: str, threads: int) -> None:
    """Settings of a worker's own process. jax takes its threads from the processors that the process may use."""
    keep_freed_memory()
    jax.config.update("jax_enable_x64", dtype == "float64")
    jax.config.update("jax_default_matmul_precision", PRECISIONS[dtype])


@contextlib.contextmanager
def computing(dtype: str, device: jax.Device) -> Iterator[None]:
    """Inside, arrays have this precision and device; nothing outside changes."""
    with (
        jax.enable_x64(dtype == "float64"),
        jax.default_matmul_precision(PRECISIONS[dtype]),
        jax.default_device(device),
    ):
        yield


def put(x: np.ndarray, device: jax.Device, dtype: str | None = None) -> jax.Array:
    """The array on the device; floating-point arrays in `dtype`, integers as they are."""
    array = np.asarray(x)
    if dtype and np.issubdtype(array.dtype, np.floating):
        array = array.astype(DTYPES[dtype])
    return jax.device_put(array, device)


def get(x: jax.Array) -> np.ndarray:
    """The array as a numpy array; bfloat16, which numpy lacks, as float32."""
    return np.array(x, np.float32 if x.dtype == jnp.bfloat16 else x.dtype)


def synchronize(device: jax.Device) -> None:
    """Waits for all work on the device."""
    jax.block_until_ready(jax.device_put(np.zeros(()), device) + 0)
