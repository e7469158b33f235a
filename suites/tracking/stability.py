"""Drift of the state's norm over a short training, as the suite `stability` takes it."""

from __future__ import annotations

import numpy as np

from bench import backends, registry
from bench.contract import DiagonalLayer
from bench.data import batches
from bench.network import Network
from bench.options import build
from bench.recipe import Recipe
from bench.training import Batch
from suites.stability import norms

from . import DEVICE, DTYPE, EachLayer, finite, layer

STEPS, EXAMPLES, PROBE = 20, 8, 16
RATE = 1e-2


class Layer(EachLayer):
    """log2 of the rms norm of the state after training over that before, in a network of one block."""

    unit = "log2"

    def track_drift(self, model: str, backend: str) -> float:
        sizes = {"max_length": 40, "train": STEPS * EXAMPLES, "validation": PROBE, "test": 1}
        task = build("task listops", registry.find("task", "listops"), sizes)
        data, built = task.load(0), layer(model)
        if not isinstance(built, DiagonalLayer):
            raise NotImplementedError(f"{model} is no diagonal layer, so the norm of its state is not known")
        network = Network.of(built, 1, task)
        recipe = Recipe(steps=STEPS, batch=EXAMPLES, rate=RATE)
        probe = Batch.of(data.validation, np.arange(PROBE))
        valid = norms.inside(probe.lengths, probe.inputs.shape[1])

        trainer = backends.load(backend).Trainer(network, network.initial(model, 0), recipe, DTYPE, DEVICE)

        def rms() -> float:
            (energies,) = trainer.state_energies(probe)
            return norms.rms_per_real(energies.sum(-1, dtype=np.float64)[valid], built.state_reals)

        before = rms()
        for step, rows in enumerate(batches(len(data.train), EXAMPLES, 0, STEPS)):
            trainer.step(Batch.of(data.train, rows), recipe.rate_at(step), None)
        return finite(norms.drift(np.array([before, rms()]))[-1])
