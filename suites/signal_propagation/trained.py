"""Networks that another run has trained, with the parameters that it kept."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import load_file

from bench import store
from bench.contract import Missing, Params, require
from bench.measurement import Measurement
from bench.network import Network
from bench.plan import Cell


def check(folder: Path) -> None:
    """ValueError where the folder is no run that has kept parameters."""
    kept = (folder / "run.json").is_file() and (folder / "params").is_dir()
    require(kept, f"trained is {str(folder)!r}: a run's folder with run.json and params/ is needed")


def find(folder: Path, cell: Measurement) -> tuple[Network, Params]:
    """The network of the cell's model, options, depth and d_model, and its weights; of its seed, or the first.

    `Missing` where the run has none, with what it has.
    """
    wanted = cell.cell
    found: list[tuple[Cell, Network, Path]] = []
    for content in store.load_json(folder / "run.json")["cells"]:
        other = Cell(**content["cell"])
        path = folder / "params" / f"{other.id}.safetensors"
        if path.is_file() and (network := other.network):
            found.append((other, network, path))
    fitting = [
        (other, network, path) for other, network, path in found
        if (other.layer, other.depth) == (wanted.layer, wanted.depth)  # an older run may not know all options
    ]  # fmt: skip
    if not fitting:
        has = sorted({f"{other.model} of depth {other.depth}, d_model {other.d_model}" for other, *_ in found})
        raise Missing(f"{folder} has no {wanted.model} of depth {wanted.depth}, d_model {wanted.d_model}: it has "
                      + ("; ".join(has) or "no parameters"))  # fmt: skip
    other, network, path = next((one for one in fitting if one[0].seed == wanted.seed), fitting[0])
    cell.fact(trained={"cell": other.id, "task": other.task, "seed": other.seed, "backend": other.backend})
    return network, load_file(path)
