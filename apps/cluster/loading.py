"""`load`: brings passages whose vectors exist already into a collection in shards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.apps.cluster.cluster import Cluster
from edge.apps.cluster.documents import ShardDocument
from edge.apps.commands.texts import Lines
from edge.apps.documents.base import Chunk
from edge.errors import InputError
from edge.files.input_file import open_input

Floats = npt.NDArray[np.float32]

_BATCH = 500
"""Passages that are committed together, in whole documents."""

_UNIT = 1e-3
"""The most by which the length of a vector may differ from 1."""


def load(cluster: Cluster, texts: Path, vectors: Path, *, progress: Callable[[int], object]) -> tuple[int, int, int]:
    """Adds documents, and replaces those of the same path that differ. A load that was interrupted may be repeated.

    Args:
        texts: JSON Lines with `path`, `text`, and if wanted `title`. The passages of a document follow each other.
        vectors: of the passages in that order, by the collection's embedder: a .npy file [n, dim] of float32.
        progress: called with the number of passages so far.

    Returns:
        The number of documents that were added, of those that replaced one of the same path, and of those that were
        there.

    Raises:
        InputError: the files cannot be read, or do not fit each other. What was added before stays.
        BudgetExceeded: a document does not fit the memory limit.
        ShardLost: a copy of a shard is gone.
    """
    told, done = Counter[str](), 0
    with cluster.writing():
        identity, limit = cluster.models.identity(), cluster.budget.limit
        assert identity is not None
        rows = _rows(vectors, identity.dim)
        count = sum(1 for _ in _passages(texts, limit))  # before anything changes
        if count != len(rows):
            raise InputError(f"{texts} has {count:,} passages, and {vectors} has {len(rows):,} vectors")
        batch: dict[str, ShardDocument] = {}
        for path, group in groupby(_passages(texts, limit), lambda passage: passage[0]):
            passages = list(group)
            own = np.array(rows[done : done + len(passages)])
            wrong = np.flatnonzero(~(np.abs(np.linalg.norm(own, axis=1) - 1) <= _UNIT))  # also where it is not finite
            if len(wrong):
                raise InputError(f"{vectors}: row {done + int(wrong[0]):,} is no vector of length 1")
            if path in batch or sum(len(one.chunks) for one in batch.values()) >= _BATCH:
                told += _put(cluster, batch)
                progress(done)
                batch = {}
            batch[path] = _document(passages, own)
            done += len(passages)
        told += _put(cluster, batch)
        progress(done)
        cluster.finish()
    return told["added"], told["replaced"], told["there"]


def _put(cluster: Cluster, batch: Mapping[str, ShardDocument]) -> Counter[str]:
    """Adds the documents that are not there, and counts all."""
    known = cluster.known(list(batch))
    new = [one for path, one in batch.items() if known.get(path, [""])[-1] != one.hash.hex()]
    cluster.put(new)
    replaced = sum(one.path in known for one in new)
    return Counter(added=len(new) - replaced, replaced=replaced, there=len(batch) - len(new))


def _rows(path: Path, dim: int) -> Floats:
    """The vectors [n, dim], mapped."""
    try:
        found: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as .npy: {error}") from error
    if not isinstance(found, np.ndarray) or found.dtype != np.float32 or found.shape[1:] != (dim,):
        raise InputError(f"{path} does not hold vectors of the collection's model: float32, [n, {dim}]")
    return found


def _passages(path: Path, limit: int) -> Iterator[tuple[str, str, str]]:
    """Path, title and text of each passage of a file, of which one line at a time is in memory."""
    try:
        with open_input(path, pipes=False) as file:
            lines = Lines(file, str(path), limit)
            for number, line in lines:
                lines.taken = 0
                try:
                    value = {"title": "", **json.loads(line)}
                    found = value["path"], value["title"], value["text"]
                except (ValueError, RecursionError, TypeError, KeyError):
                    found = ("", "", "")
                if not (all(isinstance(part, str) for part in found) and found[0]):
                    raise InputError(f'{path}, line {number}: no object of JSON with the texts "path" and "text"')
                yield found
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _document(passages: Sequence[tuple[str, str, str]], vectors: Floats) -> ShardDocument:
    (path, name, _), chunks, line = passages[0], [], 1
    for _, title, text in passages:
        chunks.append(Chunk(text, title, line, line + text.count("\n"), None))
        line = chunks[-1].line_end + 1
    digest = blake2b(json.dumps(passages).encode() + vectors.tobytes(), digest_size=16).digest()
    return ShardDocument(path, "", "text", name, digest, tuple(chunks), vectors)
