"""`Reader`: reads, cuts and embeds files, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from edge.apps.cluster.messages import ShardDocument, answered, packed
from edge.apps.collection.catalog import passage
from edge.apps.collection.preparation import content_hash, is_racy
from edge.apps.documents.base import Reason, Skipped, Stamp
from edge.apps.documents.extraction import Extractor
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import InputError, ModelError
from edge.resident import Closing
from edge.runtimes.embedder import Embedder
from edge.trace import Trace

Send = Callable[[str, bytes, bytes], Future[tuple[bytes, bytes]]]
"""Sends a request to a reader."""


class Reader(Closing):
    """Reads, cuts and embeds files; see `answer`. For one thread."""

    def __init__(self, *, memory: int, config: Config) -> None:
        """`memory` is the limit of its process. The model is opened with the first file."""
        self._budget = MemoryBudget(memory)
        self._config = config
        self._trace = Trace()
        self._extractor = Extractor(budget=self._budget, trace=self._trace)
        self._embedder: Embedder | None = None

    def answer(self, verb: str, head: bytes, raw: bytes) -> tuple[bytes, bytes]:
        """The answer to a request (see `edge.apps.cluster.messages`); the only verb is `read`."""
        return answered(self._read, head, raw)

    def _read(self, raw: bytes, *, files: list[tuple[str, str]], source: str, fingerprint: str) -> tuple[Any, bytes]:
        """The documents of files, each with its root, and the others with their outcome and its reason."""
        embedder = self._opened(source, fingerprint)
        documents: list[ShardDocument] = []
        others: list[tuple[str, str, str]] = []
        for path, root in files:
            found = self._outcome(Path(path), root, embedder)
            if isinstance(found, ShardDocument):
                documents.append(found)
            else:
                others.append((path, *found))
        about, beside = packed(documents)
        return {"documents": about, "others": others}, beside

    def _outcome(self, path: Path, root: str, embedder: Embedder) -> ShardDocument | tuple[str, str]:
        """A file as a document; or its outcome and the reason."""
        try:
            return self._document(path, root, embedder)
        except FileNotFoundError:
            return "gone", ""
        except Skipped as error:
            return "unreadable" if error.reason is Reason.UNREADABLE else "skipped", str(error)
        except OSError as error:
            return "unreadable", f"cannot be read: {error.strerror or error}"
        except InputError as error:
            return "failed", str(error)

    def _document(self, path: Path, root: str, embedder: Embedder) -> ShardDocument:
        stamp = Stamp.of(path.stat())
        racy, digest = is_racy(stamp, time.time()), content_hash(path)
        found = self._extractor.extract(path)
        vectors = np.empty((0, embedder.dim), np.float32)
        if found.chunks:
            vectors = embedder.embed([passage(chunk.context, chunk.text) for chunk in found.chunks])
        return ShardDocument(
            str(path), root, found.kind, found.title, digest, found.chunks, vectors, stamp, racy, found.warning,
            found.mails,
        )  # fmt: skip

    def _opened(self, source: str, fingerprint: str) -> Embedder:
        if self._embedder is None:
            self._embedder = Embedder(source, budget=self._budget, config=self._config, trace=self._trace)
        if self._embedder.model.fingerprint != fingerprint:
            raise ModelError(f"{source} on this machine is another build of the model that made the vectors")
        return self._embedder

    def close(self) -> None:
        """Closes the model and the worker."""
        self._extractor.close()
        if self._embedder is not None:
            self._embedder.close()
