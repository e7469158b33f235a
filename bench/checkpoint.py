"""What a long cell goes on from when it was interrupted: arrays and a little JSON in one file, written whole."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file


class Checkpoint:
    """One file. `code` is the hash of the sources: what other code has left is not gone on from.

    With `path` None nothing is kept.
    """

    def __init__(self, path: Path | None, code: str) -> None:
        self.path, self.code = path, code

    def save(self, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
        """Replaces what was there; a reader sees the old file or the new one. `about` is JSON, numbers exact."""
        if self.path is None:
            return
        self.path.parent.mkdir(exist_ok=True)
        part = self.path.with_suffix(".part")
        text = json.dumps({"code": self.code, "about": about})
        save_file({name: np.asarray(value, order="C") for name, value in arrays.items()}, part, {"state": text})
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(self.path)

    def load(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Arrays and JSON; None where nothing is there, where it is damaged or where other code has left it."""
        if self.path is None or not self.path.exists():
            return None
        with contextlib.suppress(SafetensorError, ValueError, KeyError), safe_open(self.path, "np") as file:
            state = json.loads(file.metadata()["state"])
            if state["code"] == self.code:
                return {name: file.get_tensor(name) for name in file.keys()}, state["about"]  # noqa: SIM118
        return None

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()
