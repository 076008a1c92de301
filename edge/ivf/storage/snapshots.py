"""`Snapshots`: the committed state of an index as a searcher takes it; and `verify`: whether its files are whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from edge.budget import MemoryBudget
from edge.errors import ConfigError, CorruptBlock, StorageError
from edge.ivf.base import NO_ROWS, Codec, Codecs, CodecSpec, Connection, Ids, ListPart, Snapshot, Vectors
from edge.ivf.storage.manifest import IndexManifest, State, flat
from edge.ivf.storage.segments import HEADER, IndexSegment, OpenSegments

_LIST_NBYTES = 120
"""Bytes a snapshot holds for a list, apart from the list's parts."""


class SnapshotLease:
    """Memory under a lease that is released with the last reference to this object."""

    def __init__(self, budget: MemoryBudget, nbytes: int) -> None:
        self._lease = budget.reserve("index tables", nbytes)

    def __del__(self) -> None:
        if hasattr(self, "_lease"):
            self._lease.release()


@dataclass(frozen=True, slots=True)
class Training:
    """Codec and centroids [nlist, dim] of one training. Its stamp tells trainings apart."""

    stamp: int
    codec: Codec
    centroids: Vectors
    held: SnapshotLease = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Pending:
    """Pending rows by their stamps: ids [n], stamps [n], vectors [n, dim], and lists [n] if the lists are shared."""

    ids: Ids
    stamps: Ids
    vectors: Vectors
    lists: Ids | None
    held: SnapshotLease


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A snapshot, and the data from which it was made."""

    stamp: tuple[int, int]
    training: Training
    segments: dict[str, IndexSegment]
    chunks: dict[tuple[str, int], tuple[int, Ids]]
    deleted: dict[str, Ids]
    pending: _Pending
    snapshot: Snapshot


class Snapshots:
    """Makes snapshots of one index. Thread-safe."""

    def __init__(self, segments: OpenSegments, codecs: Codecs, dim: int, budget: MemoryBudget) -> None:
        self.dim = dim
        self._open = segments
        self._codecs = codecs
        self._budget = budget
        self._lock = threading.RLock()
        self._loaded: _Loaded | None = None
        self._training: Training | None = None
        self._segments: dict[str, IndexSegment] = {}

    def current(self, db: Connection) -> Snapshot:
        """The state that `db` sees: the state in its transaction, or else the last committed one."""
        loaded = self._loaded
        if loaded is not None and loaded.stamp == IndexManifest(db).stamp():
            return loaded.snapshot
        with self._lock:
            if db.in_transaction:
                return self._load(IndexManifest(db))
            for last_try in (False, True):
                db.execute("BEGIN")
                try:
                    return self._load(IndexManifest(db))
                except StorageError:
                    if last_try:
                        raise
                finally:
                    db.execute("ROLLBACK")
        raise AssertionError("the last try returns or raises")

    def state(self, manifest: IndexManifest) -> State:
        state = manifest.state()
        if state.dim not in (0, self.dim):
            raise ConfigError(
                f"the index in {self._open.folder.parent} holds vectors of width {state.dim}, not {self.dim}: use the "
                f"embedding model it was made with, or index again into another folder"
            )
        return state

    def training(self, manifest: IndexManifest) -> Training:
        with self._lock:
            state = self.state(manifest)
            known = self._training
            if known is None or known.stamp != state.training or known.codec.spec.dim != self.dim:
                spec = manifest.codec() if state.training else flat(self.dim)
                codec = known.codec if known is not None and known.codec.spec == spec else self._codecs.open(spec)
                held = SnapshotLease(self._budget, manifest.list_count() * self.dim * 4)
                known = Training(state.training, codec, manifest.centroids(self.dim), held)
                self._training = known
            return known

    def segments(self, manifest: IndexManifest) -> dict[str, IndexSegment]:
        """The open segments that `manifest` names, oldest first. They stay open until the next call."""
        with self._lock:
            spec = self.training(manifest).codec.spec
            names = manifest.segment_names()
            if names != list(self._segments):
                self._segments = {
                    name: self._segments.get(name) or self._open.open(manifest.segment(name), spec) for name in names
                }
            return dict(self._segments)

    def forget(self) -> None:
        with self._lock:
            self._loaded = self._training = None
            self._segments = {}

    def _load(self, manifest: IndexManifest) -> Snapshot:
        state = self.state(manifest)
        stamp = (state.generation, state.stamp)
        old = self._loaded
        if old is not None and old.stamp == stamp:
            return old.snapshot
        training = self.training(manifest)
        segments = self.segments(manifest)
        chunks = self._chunks(manifest, old)
        deleted = self._deleted(segments, chunks, old)
        pending = self._pending(manifest, old, training if state.quantizer else None)
        if old is not None and old.training is training:
            lists = _changed(old, segments, deleted)
        else:
            lists = list_parts(len(training.centroids), segments, deleted)
        nbytes = _LIST_NBYTES * len(lists) + 2 * sum(rows.nbytes for rows in deleted.values())
        snapshot = Snapshot(
            generation=state.generation,
            dim=self.dim,
            codec=training.codec,
            centroids=training.centroids,
            lists=lists,
            pending_ids=pending.ids,
            pending_vectors=pending.vectors,
            recall=state.recall,
            rows=state.rows,
            tuned=manifest.tuned(),
            pending_lists=pending.lists,
            held=(training.held, pending.held, SnapshotLease(self._budget, nbytes)),
        )
        self._loaded = _Loaded(stamp, training, segments, chunks, deleted, pending, snapshot)
        return snapshot

    def _chunks(self, manifest: IndexManifest, old: _Loaded | None) -> dict[tuple[str, int], tuple[int, Ids]]:
        known = old.chunks if old is not None else {}
        chunks = {}
        for key, (stamp, _) in manifest.deleted_stamps().items():
            held = known.get(key)
            chunks[key] = held if held is not None and held[0] == stamp else (stamp, manifest.deleted_rows(*key))
        return chunks

    def _deleted(
        self, segments: Iterable[str], chunks: dict[tuple[str, int], tuple[int, Ids]], old: _Loaded | None
    ) -> dict[str, Ids]:
        by_segment: dict[str, list[Ids]] = {name: [] for name in segments}
        changed = set()
        for key in sorted(chunks):
            by_segment[key[0]].append(chunks[key][1])
            if old is None or old.chunks.get(key) is not chunks[key]:
                changed.add(key[0])
        deleted: dict[str, Ids] = {}
        for name, rows in by_segment.items():
            known = old.deleted.get(name) if old is not None else None
            if known is not None and name not in changed and len(known) == sum(map(len, rows)):
                deleted[name] = known
            else:
                deleted[name] = np.concatenate([np.empty(0, np.int64), *rows])
        return deleted

    def _pending(self, manifest: IndexManifest, old: _Loaded | None, shared: Training | None) -> _Pending:
        ids, stamps = manifest.pending_stamps()
        held = SnapshotLease(self._budget, len(ids) * (16 + 4 * self.dim))
        vectors = np.empty((len(ids), self.dim), np.float32)
        known, at = np.zeros(len(ids), np.bool_), np.full(len(ids), -1)
        if old is not None and len(old.pending.ids):
            place = {key: at for at, key in enumerate(_keys(old.pending.ids, old.pending.stamps))}
            at = np.array([place.get(key, -1) for key in _keys(ids, stamps)], np.int64)
            known = at >= 0
            vectors[known] = old.pending.vectors[at[known]]
        vectors[~known] = manifest.pending_vectors(ids[~known], self.dim)
        if shared is None or len(shared.centroids) == 1:
            return _Pending(ids, stamps, vectors, None, held)
        from edge.ivf.storage.segment_writer import assign, assign_nbytes

        lists = np.empty(len(ids), np.int64)
        if old is not None and old.pending.lists is not None and old.training is shared:
            lists[known] = old.pending.lists[at[known]]
        else:
            known[:] = False
        with self._budget.reserve("index tables", assign_nbytes(len(shared.centroids))):
            lists[~known] = assign(vectors[~known], shared.centroids)[0]
        return _Pending(ids, stamps, vectors, lists, held)


def _keys(ids: Ids, stamps: Ids) -> Iterable[tuple[int, int]]:
    return zip(ids.tolist(), stamps.tolist(), strict=True)


def _parts(segment: IndexSegment, deleted: Ids, numbers: Iterable[int] | None = None) -> Iterable[tuple[int, ListPart]]:
    cuts = np.searchsorted(deleted, segment.starts).tolist()
    starts = segment.starts.tolist()
    lists = segment.parts["list"].tolist()
    for number in range(len(lists)) if numbers is None else numbers:
        low, high, start = cuts[number], cuts[number + 1], starts[number]
        if high - low < starts[number + 1] - start:
            own = (deleted[low:high] - start).astype(np.int32) if high > low else NO_ROWS
            yield lists[number], segment.list_part(number, own)


def list_parts(nlist: int, segments: dict[str, IndexSegment], deleted: dict[str, Ids]) -> list[tuple[ListPart, ...]]:
    lists: list[list[ListPart]] = [[] for _ in range(nlist)]
    for name, segment in segments.items():
        for number, part in _parts(segment, deleted[name]):
            lists[number].append(part)
    return [tuple(parts) for parts in lists]


def _changed(old: _Loaded, segments: dict[str, IndexSegment], deleted: dict[str, Ids]) -> list[tuple[ListPart, ...]]:
    """The old lists with the changes applied: segments that are gone or new, and parts with more deleted rows."""
    gone = old.segments.keys() - segments.keys()
    replaced: set[tuple[str, int]] = set()
    fresh: list[tuple[int, ListPart]] = []
    touched: set[int] = set()
    for name in gone:
        touched.update(old.segments[name].parts["list"].tolist())
    for name, segment in segments.items():
        if name not in old.segments:
            fresh += _parts(segment, deleted[name])
        elif deleted[name] is not old.deleted[name]:
            numbers = np.unique(segment.part_of(np.setxor1d(deleted[name], old.deleted[name]))).tolist()
            replaced.update((name, number) for number in numbers)
            touched.update(segment.parts["list"][numbers].tolist())
            fresh += _parts(segment, deleted[name], numbers)
    added: dict[int, list[ListPart]] = {}
    for number, part in fresh:
        added.setdefault(number, []).append(part)
    place = {name: at for at, name in enumerate(segments)}
    lists = list(old.snapshot.lists)
    for number in touched | added.keys():
        kept = [part for part in lists[number] if part.key[0] not in gone and part.key not in replaced]
        kept += added.get(number, [])
        lists[number] = tuple(sorted(kept, key=lambda part: (place[part.key[0]], part.key[1])))
    return lists


_GAP_NBYTES = 1 << 20
"""Bytes of the gaps between blocks that are read at a time."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification: `ids` [n] that can be read, ascending (None if not all bytes were read), `problems`
    as sentences, and the damaged files."""

    ids: Ids | None
    problems: tuple[str, ...]
    segments: tuple[str, ...]
    nbytes: int


def verify(
    manifest: IndexManifest, spec: CodecSpec, opened: OpenSegments, budget: MemoryBudget, *, read_data: bool
) -> Verification:
    """Checks that the files of the state that `manifest` sees are complete; with `read_data`, every byte of them."""
    problems: list[str] = []
    damaged: list[str] = []
    found: list[Ids] = []
    nbytes = 0
    with budget.reserve("index check", 3 * 8 * manifest.state().rows + (_GAP_NBYTES if read_data else 0)):
        for name in manifest.segment_names():
            said = len(problems)
            segment = _tried(problems, lambda name=name: opened.open(manifest.segment(name), spec))
            if segment is not None:
                problems += _outside(segment, read_data=read_data)
            if segment is not None and read_data:
                nbytes += segment.size
                deleted = _tried(problems, manifest.all_deleted_rows, name)
                for number in range(len(segment.parts) if deleted is not None else 0):
                    ids = _tried(problems, _ids, segment, number, deleted)
                    found += [] if ids is None else [ids]
            if len(problems) > said:
                damaged.append(name)
        if not read_data:
            return Verification(None, tuple(problems), tuple(damaged), nbytes)
        pending, _ = manifest.pending_stamps()
        for number in pending:
            one = np.array([number])
            vector = _tried(problems, manifest.pending_vectors, one, spec.dim)
            found += [] if vector is None else [one]
        ids = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    return Verification(ids, tuple(problems), tuple(damaged), nbytes)


def _tried(problems: list[str], read: Callable[..., Result], *arguments: object) -> Result | None:
    try:
        return read(*arguments)
    except (CorruptBlock, StorageError) as error:
        problems.append(str(error))
        return None


def _ids(segment: IndexSegment, number: int, deleted: Ids) -> Ids:
    """Ids of a part's live rows, after all bytes of the part were read and verified."""
    nothing = np.empty(0, np.int64)
    for _ in segment.stream(nothing, [number]):
        pass
    rows = np.arange(segment.starts[number], segment.starts[number + 1])
    return segment.ids(np.setdiff1d(rows, deleted, assume_unique=True))


def _outside(segment: IndexSegment, *, read_data: bool) -> Iterator[str]:
    """Finds damage in a file outside its lists: wrong size, header, pages of ids, or gaps."""
    size = segment.path.stat().st_size
    if size != segment.size:
        yield f"{segment.path} has {size:,} bytes instead of {segment.size:,}"
    if not read_data:
        return
    said: list[str] = []
    for number in range(len(segment.pages)):
        _tried(said, segment.read_page, number)
    yield from said
    with segment.path.open("rb") as file:
        if file.read(len(HEADER)) != HEADER:
            yield f"{segment.path} does not begin as a segment does"
        for start, end in _gaps(segment):
            file.seek(start)
            while start < end:
                piece = file.read(min(_GAP_NBYTES, end - start))
                if piece.strip(b"\0"):
                    yield f"{segment.path} has bytes between its blocks, at {start:,}, that were not written there"
                    break
                if not piece:
                    break
                start += len(piece)


def _gaps(segment: IndexSegment) -> Iterator[tuple[int, int]]:
    spans = [(extent.offset, extent.offset + extent.nbytes) for extent in segment.extents.values()]
    for number in range(len(segment.parts)):
        table = segment.list_part(number).vectors
        if table is not None:
            spans.append((table.offset, table.offset + table.rows * table.row_nbytes))
    last = len(HEADER)
    for start, end in sorted(spans):
        if start > last:
            yield last, start
        last = max(last, end)
    if last < segment.size:
        yield last, segment.size
