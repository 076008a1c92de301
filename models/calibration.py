"""What calibration found out about a packed model, stored beside it: when its scores may be pruned on, and where a
per-layer probe sees more than the model's own head.

`calibration.json` holds thresholds per number of results and mode, and the probes, if there are any. It is one file, so
that thresholds and probes always belong together, and it carries a checksum.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.errors import CorruptBlock
from edge.sealed import read_sealed, write_sealed

FILE = "calibration.json"
VERSION = 4
_FORMER_LENS_FILE = "lens.safetensors"
_REMEDY = "`edge models calibrate` makes a new one in its place, and `--threshold inf` does without"


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

    def to_json(self) -> dict[str, Any]:
        """The probes as JSON: fp32 values, little-endian, in base64."""
        layers, hidden = self.weight.shape
        packed = [base64.b64encode(part.astype("<f4").tobytes()).decode() for part in (self.weight, self.bias)]
        return {"layers": layers, "hidden": hidden, "weight": packed[0], "bias": packed[1]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Lens:
        """The probes that `to_json` wrote.

        Raises:
            ValueError, KeyError, TypeError: it did not write these.
        """
        weight, bias = (np.frombuffer(base64.b64decode(document[name]), "<f4") for name in ("weight", "bias"))
        shape = document["layers"], document["hidden"]
        return cls(weight.reshape(shape).astype(np.float32), bias.reshape(shape[0]).astype(np.float32))

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
        """Writes the file beside the model, with a checksum, in place of an older one.

        Raises:
            StorageError: the directory cannot be written; the older calibration stays in force.
        """
        document = asdict(self)
        document["version"] = VERSION
        document["lens"] = None if self.lens is None else self.lens.to_json()
        write_sealed(directory / FILE, document)
        # What earlier versions kept the lens in; nothing reads it.
        with suppress(OSError):
            (directory / _FORMER_LENS_FILE).unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path, fingerprint: str) -> Calibration | None:
        """The calibration stored beside a model; None if there is none, or it belongs to other weights.

        Raises:
            CorruptBlock: a file is there but it is damaged, or of another version.
        """
        path = directory / FILE
        try:
            document = read_sealed(path)
            if document is None or document["fingerprint"] != fingerprint:
                return None
            if document.pop("version") != VERSION:
                raise CorruptBlock(f"{path} is of another version of this program")
            document["lens_layers"] = tuple(document["lens_layers"])
            document["lens"] = None if document["lens"] is None else Lens.from_json(document["lens"])
            points = (Operating(**point) for point in document.pop("points"))
            return cls(**document, points=tuple(point for point in points if math.isfinite(point.threshold)))
        except CorruptBlock as error:
            raise CorruptBlock(f"{error}; {_REMEDY}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptBlock(f"{path} is no calibration ({error}); {_REMEDY}") from error
