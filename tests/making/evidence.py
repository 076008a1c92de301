"""Writes fitted models beside a reranker, as `edge.models.evidence` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge.errors import CorruptBlock
from edge.files.sealed import read_sealed, write_sealed
from edge.models.evidence import FILE, Evidence


def save(directory: Path, name: str, fingerprint: str, evidence: Evidence) -> None:
    """Writes a model beside a reranker. Stored models that were fitted on other weights are dropped, and those of a
    damaged file.

    Raises:
        StorageError: the directory cannot be written.
    """
    path = directory / FILE
    try:
        stored: dict[str, Any] = read_sealed(path) or {}
    except CorruptBlock:
        stored = {}
    kept = stored.get("models", {}) if stored.get("fingerprint") == fingerprint else {}
    entry = {
        "signals": list(evidence.signals), **evidence.model.to_json(), "threshold": round(evidence.threshold, 4),
        "embedder": evidence.embedder, "examples": evidence.examples,
    }  # fmt: skip
    write_sealed(path, {"fingerprint": fingerprint, "models": {**kept, name: entry}})
