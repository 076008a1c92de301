"""The calibration of a packed model, stored beside it as `calibration.json`: how far the scores after each layer are
from the final ones, and after which layers a probe predicts them better than the model's own head."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.errors import CorruptBlock
from edge.files.sealed import read_sealed, write_sealed

FILE = "calibration.json"
VERSION = 7
TARGET = 0.98
"""Share of full depth's results that margins keep, if nothing else is said."""

_REMEDY = "`edge models calibrate` makes a new one in its place, and `--threshold inf` does without"


@dataclass(frozen=True, slots=True)
class Measured:
    """The effect of pruning on the calibration queries for `k` results of pools of `candidates`: Precision@K with and
    without it, the share of full depth's results found, and of layer x candidate evaluations computed."""

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
    """Linear probes that predict the final logit after each layer from `edge.runtimes.scoring.lens_input`: weight
    [layers, hidden] and bias [layers], fp32."""

    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]

    def to_json(self) -> dict[str, Any]:
        """The probes as JSON: fp32 values, little-endian, in base64."""
        layers, hidden = self.weight.shape
        packed = [base64.b64encode(part.astype("<f4").tobytes()).decode() for part in (self.weight, self.bias)]
        return {"layers": layers, "hidden": hidden, "weight": packed[0], "bias": packed[1]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Lens:
        """The probes from a document that `to_json` wrote; ValueError, KeyError or TypeError if it has another form."""
        weight, bias = (np.frombuffer(base64.b64decode(document[name]), "<f4") for name in ("weight", "bias"))
        shape = document["layers"], document["hidden"]
        return cls(weight.reshape(shape).astype(np.float32), bias.reshape(shape[0]).astype(np.float32))

    def logits(self, layer: int, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Predicted final logits [n] from vectors [n, hidden] after `layer` layers."""
        return np.asarray(vectors @ self.weight[layer - 1] + self.bias[layer - 1], np.float64)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction of a pool's final logits, with the errors and margins by which pruning uses it; lists have [layers +
    1] entries, the first for candidates that no layer has read.

    The final logit is slope * logit + pull * z + offset, with z the standardized retrieval score. `errors` are standard
    deviations within a pool, infinite where useless. `margins`, by mode: pairs of a share of results in the pool and
    the deviations below the results beyond which a candidate is pruned."""

    slopes: tuple[float, ...]
    pulls: tuple[float, ...]
    offsets: tuple[float, ...]
    errors: tuple[float, ...]
    margins: Mapping[str, tuple[tuple[float, float], ...]]

    def margin(self, mode: str, k: int, candidates: int) -> float | None:
        """The margin for the best `k` of some candidates, between those of the nearest shares; None without margins."""
        if not (points := self.margins.get(mode)):
            return None
        shares, margins = zip(*points, strict=True)
        return float(np.interp(k / candidates, shares, margins))

    def __call__(
        self, layer: int, logits: npt.NDArray[np.float64], places: npt.NDArray[np.float64] | float = 0.0
    ) -> npt.NDArray[np.float64]:
        """The final logits [n] predicted after `layer` layers from logits [n] and standardized retrieval scores [n]."""
        found = self.slopes[layer] * logits + self.pulls[layer] * places + self.offsets[layer]
        return np.asarray(found, np.float64)

    def to_json(self) -> dict[str, Any]:
        """The forecast as JSON, where None stands for an infinite error."""
        errors = [error if math.isfinite(error) else None for error in self.errors]
        return {**asdict(self), "errors": errors, "margins": dict(self.margins)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Forecast:
        """The forecast that `to_json` wrote; ValueError, KeyError or TypeError for another form."""
        slopes, pulls, offsets = (tuple(map(float, document[name])) for name in ("slopes", "pulls", "offsets"))
        errors = tuple(math.inf if error is None else float(error) for error in document["errors"])
        margins = {
            str(mode): tuple((float(share), float(margin)) for share, margin in points)
            for mode, points in dict(document["margins"]).items()
        }
        if any(not points or list(points) != sorted(points) for points in margins.values()):
            raise ValueError("the margins are not in the order of their shares")
        if not len(slopes) == len(pulls) == len(offsets) == len(errors):
            raise ValueError("a forecast has lists of unequal length")
        return cls(slopes, pulls, offsets, errors, margins)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Predictions of a model's final scores after each layer, and the measured effect of pruning by them.

    `fingerprint` is the measured model's, `target` the share of full depth's results to keep. The lens scores after
    `lens_layers` (the first is 1). The forecast is `alone` for texts in no order, `blended` for those that a retriever
    found. `spread`: standard deviation of the final logits within a pool, by which retrieval's share is scaled."""

    fingerprint: str
    target: float
    queries: int
    candidates: int
    lens_layers: tuple[int, ...]
    alone: Forecast
    blended: Forecast
    spread: float
    points: tuple[Measured, ...]
    lens: Lens | None = field(default=None, compare=False)

    def forecast(self, *, retrieved: bool) -> Forecast:
        return self.blended if retrieved else self.alone

    def save(self, directory: Path) -> None:
        """Writes the file in place of an older one. StorageError if it cannot; the older one stays."""
        document = asdict(self)
        document |= {"alone": self.alone.to_json(), "blended": self.blended.to_json()}
        document["version"] = VERSION
        document["lens"] = None if self.lens is None else self.lens.to_json()
        write_sealed(directory / FILE, document)

    @classmethod
    def load(cls, directory: Path, fingerprint: str) -> Calibration | None:
        """The calibration beside a model; None without one for its weights. CorruptBlock if damaged."""
        path = directory / FILE
        try:
            document = read_sealed(path)
            if document is None or document["fingerprint"] != fingerprint:
                return None
            if document.pop("version") != VERSION:
                raise CorruptBlock(f"{path} is of another version of this program")
            document["lens_layers"] = tuple(document["lens_layers"])
            for name in ("alone", "blended"):
                document[name] = Forecast.from_json(document[name])
            document["lens"] = None if document["lens"] is None else Lens.from_json(document["lens"])
            document["points"] = tuple(Measured(**point) for point in document["points"])
            return cls(**document)
        except CorruptBlock as error:
            raise CorruptBlock(f"{error}; {_REMEDY}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptBlock(f"{path} is no calibration ({error}); {_REMEDY}") from error
