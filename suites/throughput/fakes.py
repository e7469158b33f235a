"""Layers of known behaviour, which the suites `throughput` and `memory` must recover: `bench selftest`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

import bench
from suites.memory.selftest import ALLOCATED
from suites.throughput.selftest import BACKGROUND_S, SLEEP_S

PRINTED = 100_000_000

Does = Literal["nothing", "sleeps", "background", "allocates", "crashes", "clings", "prints", "leaves"]


@bench.register.model("fake")
@dataclass(frozen=True, kw_only=True)
class Fake(bench.Layer):
    """y = scale * u, and on the way what `does` says.

    nothing; sleeps 20 ms; background: goes on for 50 ms after it has returned; allocates 256 MiB and gives them back;
    crashes; clings: ignores SIGTERM and never ends; prints 100 MB; leaves a child behind.
    """

    does: Does = "nothing"

    threads: ClassVar[list[threading.Thread]] = []

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"scale": np.ones(self.d_model)}

    def roles(self):
        return {"scale": "skip"}

    @property
    def state_reals(self) -> int:
        return 0

    def act(self) -> None:
        getattr(self, f"_{self.does}")()

    def synchronize(self) -> None:
        """Waits for what goes on in the background."""
        while self.threads:
            self.threads.pop().join()

    def torch_module(self, params: Any) -> Any:
        import torch

        class Module(torch.nn.Module):
            def __init__(module) -> None:
                super().__init__()
                module.scale = torch.nn.Parameter(torch.tensor(params["scale"]))

            def forward(module, u, lengths=None):
                self.act()
                return module.scale * u

        return Module()

    def flax_module(self, params: Any) -> Any:
        import jax
        from flax import nnx

        class Module(nnx.Module):
            def __init__(module) -> None:
                module.scale = nnx.Param(jax.numpy.asarray(params["scale"]))

            def __call__(module, u, lengths=None):
                def act(u: np.ndarray) -> np.ndarray:
                    self.act()
                    self.synchronize()  # jax itself goes on while a callback runs
                    return u

                return module.scale[...] * jax.pure_callback(act, jax.ShapeDtypeStruct(u.shape, u.dtype), u)

        return Module()

    def _nothing(self) -> None:
        pass

    def _sleeps(self) -> None:
        time.sleep(SLEEP_S)

    def _background(self) -> None:
        thread = threading.Thread(target=time.sleep, args=(BACKGROUND_S,))
        thread.start()
        self.threads.append(thread)

    def _allocates(self) -> None:
        if "torch" in sys.modules:  # through the allocator that is watched
            import torch

            torch.ones(ALLOCATED // 4).sum()
        else:
            np.ones(ALLOCATED // 4, np.float32).sum()

    def _crashes(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def _clings(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)

    def _prints(self) -> None:
        for _ in range(PRINTED // 1_000_000):
            sys.stdout.write("x" * 999_999 + "\n")
        sys.stdout.flush()

    def _leaves(self) -> None:
        subprocess.Popen(["sleep", "600"])
