"""Small models that were fitted on a reranker's judgements and are stored beside it, for example for the probability
that the passages hold an answer. `evidence.json` holds one model per name, and a checksum."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.errors import CorruptBlock
from edge.files.sealed import read_sealed, write_sealed
from edge.models.logistic import Logistic
from edge.models.manifest import remedy

FILE = "evidence.json"
_log = logging.getLogger("edge")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fitted model.

    Attributes:
        signals: the names of the model's signals, in order; another list means that another version fitted the model.
        model: turns the signals into a probability.
        threshold: smallest probability that counts as found.
        embedder: name of the embedder that gave the cosines among the signals; the model is valid for this one only.
        examples: number of examples that the model was fitted on.
    """

    signals: tuple[str, ...]
    model: Logistic
    threshold: float
    embedder: str
    examples: int

    def probability(self, signals: tuple[float, ...] | list[float]) -> float:
        """The probability that values of `signals`, in their order, stand for."""
        return float(self.model.probability([signals])[0])


def load(directory: Path, name: str, fingerprint: str, signals: tuple[str, ...]) -> Evidence | None:
    """The model called `name` that is stored beside a reranker; None if there is none for these weights and signals.

    Raises:
        CorruptBlock: the file is damaged.
    """
    stored = _read(directory / FILE)
    entry = stored.get("models", {}).get(name) if stored.get("fingerprint") == fingerprint else None
    if entry is None:
        return None
    try:
        found = Evidence(
            tuple(entry["signals"]), Logistic.from_json(entry), float(entry["threshold"]), str(entry["embedder"]),
            int(entry["examples"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptBlock(
            f"{directory / FILE} is damaged: {error!r}; {remedy(directory)}, or fit it again with `edge bench`"
        ) from error
    return found if found.signals == signals else None


def verify(directory: Path) -> None:
    """Checks the file beside a reranker, if there is one.

    Raises:
        CorruptBlock: the file is damaged.
    """
    _read(directory / FILE)


def save(directory: Path, name: str, fingerprint: str, evidence: Evidence) -> None:
    """Writes a model beside a reranker. Stored models that were fitted on other weights are dropped.

    Raises:
        StorageError: the directory cannot be written.
    """
    path = directory / FILE
    try:
        stored = _read(path)
    except CorruptBlock as error:
        _log.warning("edge: %s; only %s is kept", error, name)
        stored = {}
    kept = stored.get("models", {}) if stored.get("fingerprint") == fingerprint else {}
    entry = {
        "signals": list(evidence.signals), **evidence.model.to_json(), "threshold": round(evidence.threshold, 4),
        "embedder": evidence.embedder, "examples": evidence.examples,
    }  # fmt: skip
    write_sealed(path, {"fingerprint": fingerprint, "models": {**kept, name: entry}})


def _read(path: Path) -> dict[str, Any]:
    try:
        stored = read_sealed(path)
    except CorruptBlock as error:
        raise CorruptBlock(f"{error}; {remedy(path.parent)}, or fit it again with `edge bench`") from error
    return stored or {}
