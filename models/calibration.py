"""What calibration found out about a packed model, stored beside it: when its scores may be pruned on, and where a
per-layer probe sees more than the model's own head.

`calibration.json` holds thresholds per number of results and mode; `lens.safetensors` the probes, if there are any.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.errors import CorruptBlock, StorageError

FILE = "calibration.json"
LENS_FILE = "lens.safetensors"
VERSION = 3


@dataclass(frozen=True, slots=True)
class Operating:
    """Where pruning may start for one number of results.

    Attributes:
        k: results wanted.
        mode: `top-k` or `ranked`.
        retrieved: whether what retrieval found is blended in.
        threshold: dispersion (coefficient of variation) above which clusters are trusted.
        first_layer: layers to run before scores are looked at.
        precision: Precision@K reached on the calibration queries, and `full_precision` that of full depth.
        evaluations: share of layer x candidate evaluations that remain.
    """

    k: int
    mode: Literal["top-k", "ranked"]
    retrieved: bool
    threshold: float
    first_layer: int
    precision: float
    full_precision: float
    evaluations: float


@dataclass(frozen=True, slots=True)
class Lens:
    """Linear probes to the final logit after each layer, from the vector `edge.runtimes.heads.lens_input` takes.

    Attributes:
        weight: [layers, hidden] fp32.
        bias: [layers] fp32.
    """

    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]

    def logits(self, layer: int, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Predicted final logits [n] from vectors [n, hidden] after `layer` layers."""
        return np.asarray(vectors @ self.weight[layer - 1] + self.bias[layer - 1], np.float64)


@dataclass(frozen=True, slots=True)
class Calibration:
    """All operating points of a model.

    Attributes:
        fingerprint: of the packed model they were measured on; another model's are ignored.
        target: Precision@K relative to full depth that was asked for.
        queries, candidates: size of the calibration set.
        lens_layers: layers (the first is 1) after which the lens gives the scores; the head after the others.
    """

    fingerprint: str
    target: float
    queries: int
    candidates: int
    lens_layers: tuple[int, ...]
    points: tuple[Operating, ...]
    lens: Lens | None = field(default=None, compare=False)

    def find(self, k: int, mode: str, retrieved: bool) -> Operating | None:
        """The operating point for `k` results: that of the smallest calibrated number not below it, or None."""
        fitting = [p for p in self.points if p.mode == mode and p.retrieved == retrieved and p.k >= k]
        return min(fitting, key=lambda point: point.k, default=None)

    def save(self, directory: Path) -> None:
        """Writes the files beside the model, replacing older ones at once.

        Raises:
            StorageError: the directory cannot be written.
        """
        from safetensors.numpy import save

        document = asdict(self)
        del document["lens"]
        document["version"] = VERSION
        try:
            if self.lens is not None:
                data = save({"weight": self.lens.weight, "bias": self.lens.bias})
                _replace(directory / LENS_FILE, data)
            # The JSON names the layers of the lens, so it goes last: killed in between, the older one stays in force.
            _replace(directory / FILE, json.dumps(document, indent=1).encode())
        except OSError as error:
            raise StorageError(f"the calibration cannot be written to {directory}: {error.strerror}") from error

    @classmethod
    def load(cls, directory: Path, fingerprint: str) -> Calibration | None:
        """The calibration stored beside a model; None if there is none, or it belongs to other weights.

        Raises:
            CorruptBlock: a file is there but cannot be read.
        """
        path = directory / FILE
        if not path.is_file():
            return None
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if document.pop("version") != VERSION or document["fingerprint"] != fingerprint:
                return None
            points = tuple(Operating(**point) for point in document.pop("points"))
            document["lens_layers"] = tuple(document["lens_layers"])
            lens = _load_lens(directory / LENS_FILE) if document["lens_layers"] else None
            if any(not math.isfinite(p.threshold) for p in points):
                points = tuple(p for p in points if math.isfinite(p.threshold))
            return cls(**document, points=points, lens=lens)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptBlock(
                f"{path} cannot be read ({error}); remove the file and calibrate again with `edge models calibrate`"
            ) from error


def _load_lens(path: Path) -> Lens:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return Lens(tensors["weight"], tensors["bias"])


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
