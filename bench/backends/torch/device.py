"""Which device torch computes on, and in which precision."""

from __future__ import annotations

import numpy as np
import torch

from bench.backends.allocator import keep_freed_memory

DTYPES = {"float32": torch.float32, "float64": torch.float64, "tf32": torch.float32, "bfloat16": torch.bfloat16}
PARAMETER_DTYPES = DTYPES | {"bfloat16": torch.float32}
"""Parameters, systems and states stay in float32 where activations and projections are bfloat16."""


def find(device: str) -> torch.device:
    """The device of this name: cpu, cuda or cuda:N. RuntimeError where torch cannot use it."""
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} cannot use {device} here")
    return found


def describe() -> dict[str, object]:
    """What torch finds on this machine: whether it can use a GPU, and the GPUs' names."""
    usable = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if usable else []
    return {"version": torch.__version__, "cuda": usable, "devices": names}


def set_process(dtype: str, threads: int) -> None:
    """Settings of a worker's own process: threads, and TF32 only where the dtype is called so."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"


def put(x: np.ndarray, device: torch.device, dtype: str | None = None) -> torch.Tensor:
    """A copy of the array on the device; floating-point arrays in `dtype`, integers as they are."""
    tensor = torch.tensor(np.ascontiguousarray(x), device=device)
    return tensor.to(DTYPES[dtype]) if dtype and tensor.is_floating_point() else tensor


def get(x: torch.Tensor) -> np.ndarray:
    """The tensor as a numpy array; bfloat16, which numpy lacks, as float32."""
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


def synchronize(device: torch.device) -> None:
    """Waits for all work on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
