"""`SeenPairs`: the logits of the latest pairs of query and text after each layer that was examined. A pair's logits do
not depend on the others of its pass, so a pass leaves out pairs that it would only compute again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

_KEY_NBYTES = 16
_MOST = 512


class SeenPairs:
    """The latest `most` pairs of one model. Thread-safe. An engine's headroom covers their 0.2 KB each."""

    def __init__(self, layers: int, most: int = _MOST) -> None:
        self._logits = np.full((most, layers + 1), np.nan)
        self._rows: dict[bytes, int] = {}
        self._owners = [b""] * most
        self._next = 0
        self._lock = threading.Lock()

    def keys(self, query: str, texts: Sequence[str]) -> list[bytes]:
        begun = blake2b(f"{len(query)} {query}".encode(), digest_size=_KEY_NBYTES)
        keys = []
        for text in texts:
            pair = begun.copy()
            pair.update(text.encode())
            keys.append(pair.digest())
        return keys

    def read(self, keys: Sequence[bytes]) -> npt.NDArray[np.float64]:
        """The logits after each layer [n, layers + 1]; nan where they are unknown."""
        with self._lock:
            rows = [self._rows.get(key, -1) for key in keys]
            found = self._logits[rows]
        found[np.array(rows) < 0] = np.nan
        return found

    def note(self, keys: Sequence[bytes], layer: int, logits: npt.NDArray[np.float64]) -> None:
        with self._lock:
            self._logits[[self._row(key) for key in keys], layer] = logits

    def _row(self, key: bytes) -> int:
        if key not in self._rows:
            row, self._next = self._next, (self._next + 1) % len(self._owners)
            self._rows.pop(self._owners[row], None)
            self._rows[key], self._owners[row] = row, key
            self._logits[row] = np.nan
        return self._rows[key]
