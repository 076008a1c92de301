"""What was fitted on a reranker's judgements and stored beside it: when an answer is there, what a memory's relevance
means. `evidence.json` holds one model per name, and a checksum."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.errors import CorruptBlock
from edge.models.logistic import Logistic
from edge.models.manifest import remedy
from edge.sealed import read_sealed, write_sealed

FILE = "evidence.json"
_log = logging.getLogger("edge")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fitted model.

    Attributes:
        signals: the names of its signals, in order; another list means that another version fitted it.
        model: turns them into a probability.
        threshold: probability from which on something counts as found.
        embedder: name of the embedder whose cosines are among the signals; it holds for no other.
        examples: how many it was fitted on.
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
    """The model of a name stored beside a reranker; None if there is none for these weights and signals.

    Raises:
        CorruptBlock: the file is there but cannot be read.
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


def save(directory: Path, name: str, fingerprint: str, evidence: Evidence) -> None:
    """Writes a model beside a reranker. Models fitted on other weights are dropped.

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
