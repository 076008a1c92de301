"""What calibration found out about a packed model, stored beside it: how far the scores after each layer are from the
final ones, and where a per-layer probe sees more than the model's own head.

`calibration.json` holds errors, margins, what they were measured to keep and to save, and the probes, if there are any.
It is one file, so that errors and probes always belong together, and it carries a checksum.
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
VERSION = 5
_FORMER_LENS_FILE = "lens.safetensors"
_REMEDY = "`edge models calibrate` makes a new one in its place, and `--threshold inf` does without"


@dataclass(frozen=True, slots=True)
class Measured:
    """What pruning kept and saved on the calibration queries, for one number of results.

    Attributes:
        k: results wanted.
        candidates: size of the pools, cut to it where they were larger.
        mode: `top-k` or `ranked`.
        retrieved: whether the scores of retrieval were blended in.
        precision: Precision@K reached, and `full_precision` that of full depth.
        overlap: share of full depth's K that were among the K found.
        evaluations: share of layer x candidate evaluations that remained.
    """

    k: int
    candidates: int
    mode: Literal["top-k", "ranked"]
    retrieved: bool
    precision: float
    full_precision: float
    overlap: float
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
    """What is known of a model's scores after each layer, and what pruning by it keeps and saves.

    Attributes:
        fingerprint: of the packed model they were measured on; another model's are ignored.
        target: share of full depth's results that was asked for.
        queries, candidates: size of the calibration set.
        lens_layers: layers (the first is 1) after which the lens gives the scores; the head after the others.
        slopes, offsets: the final logit is predicted as slope * logit + offset after each layer [layers].
        errors: standard deviation of what that prediction misses, within a pool [layers]; infinite where it says no
            more than nothing at all.
        spread: standard deviation of the final logits within a pool, by which retrieval's share of a blend is scaled.
        margins: by mode, how many standard deviations of the difference of two errors make a candidate hopeless.
        points: what these margins kept and saved on the calibration queries.
    """

    fingerprint: str
    target: float
    queries: int
    candidates: int
    lens_layers: tuple[int, ...]
    slopes: tuple[float, ...]
    offsets: tuple[float, ...]
    errors: tuple[float, ...]
    spread: float
    margins: Mapping[str, float]
    points: tuple[Measured, ...]
    lens: Lens | None = field(default=None, compare=False)

    def save(self, directory: Path) -> None:
        """Writes the file beside the model, with a checksum, in place of an older one.

        Raises:
            StorageError: the directory cannot be written; the older calibration stays in force.
        """
        document = asdict(self)
        document["errors"] = [error if math.isfinite(error) else None for error in self.errors]
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
            for name in ("lens_layers", "slopes", "offsets"):
                document[name] = tuple(document[name])
            document["errors"] = tuple(math.inf if error is None else float(error) for error in document["errors"])
            document["lens"] = None if document["lens"] is None else Lens.from_json(document["lens"])
            document["points"] = tuple(Measured(**point) for point in document["points"])
            return cls(**document)
        except CorruptBlock as error:
            raise CorruptBlock(f"{error}; {_REMEDY}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptBlock(f"{path} is no calibration ({error}); {_REMEDY}") from error
