"""An IVF index as plain arrays, written to a file of blocks; and the search of it by definition."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockFile, BlockId, Extent, RowTable
from edge.devices.faiss_codec import FaissCodec, FaissCodecs
from edge.ivf.base import RESCORE, Bytes, CodecSpec, Ids, ListPart, Snapshot, Vectors


class NaiveScanner:
    """Row by row; keeps a min-heap's contents, in no order."""

    def __init__(self, codec: NaiveCodec) -> None:
        self._codec = codec
        self._query: Vectors = np.empty(0, np.float32)

    def set_query(self, query: Vectors) -> None:
        self._query = query

    def scan(self, codes: Bytes, labels: Ids, scores: Vectors, found: Ids) -> None:
        for score, label in zip(self._codec.decode(codes) @ self._query, labels, strict=True):
            worst = int(np.argmin(scores))
            if score > scores[worst]:
                scores[worst], found[worst] = score, label


class NaiveCodec:
    """Flat, or rounded to a grid so that rows tie."""

    def __init__(self, name: str, dim: int) -> None:
        self.spec = CodecSpec(name, dim, 4 * dim if name == "flat" else dim)
        self.scans = 0

    def encode(self, vectors: Vectors) -> Bytes:
        if self.spec.exact:
            return np.ascontiguousarray(vectors).view(np.uint8).reshape(len(vectors), -1)
        return np.clip(np.round(vectors * 8) + 128, 0, 255).astype(np.uint8)

    def decode(self, codes: Bytes) -> Vectors:
        if self.spec.exact:
            return np.ascontiguousarray(codes).view(np.float32)
        return (codes.astype(np.float32) - 128) / 8

    def deviation(self, query: Vectors) -> float:
        return 0.0 if self.spec.exact else float(np.linalg.norm(query)) / 8 / 12**0.5

    def scanner(self) -> NaiveScanner:
        self.scans += 1
        return NaiveScanner(self)


class WatchedFile(BlockFile):
    """Remembers its reads, and can be broken."""

    def __init__(self, path: Path, extents: dict[BlockId, Extent]) -> None:
        super().__init__(path, extents)
        self.reads: list[int] = []
        self.rows_read = 0
        self.announced: list[tuple[int, int]] = []

    def read_scattered(self, offsets: Sequence[int], out: npt.NDArray[np.uint8]) -> None:
        self.rows_read += len(offsets)
        super().read_scattered(offsets, out)

    def read_resident(self, offsets: Sequence[int], out: npt.NDArray[np.uint8]) -> int:
        count = super().read_resident(offsets, out)
        self.rows_read += count
        return count

    def announce(self, ranges: Iterable[tuple[int, int]]) -> None:
        ranges = list(ranges)
        self.announced += ranges
        super().announce(ranges)

    def read(self, block: BlockId, into: memoryview) -> None:
        self.reads.append(block.index)
        super().read(block, into)


@dataclass
class Lists:
    """A snapshot and the arrays it was made from. The list of a pending row is -1, and `live` rows count."""

    snapshot: Snapshot
    ids: Ids
    vectors: Vectors
    list_of: npt.NDArray[np.int64]
    live: npt.NDArray[np.bool_]
    files: list[WatchedFile]

    def search(
        self, query: Vectors, k: int, nprobe: int, *, allowed: Sequence[int] | None = None
    ) -> tuple[list[int], list[float]]:
        """By definition: exact scores of the candidates in the nearest lists, sorted by (-score, id). Candidates are
        all rows, or where codes are not exact those that score at least as the RESCORE * k-th best code. With a filter
        further lists follow, twice as many in all, until k are found."""
        centroids = self.snapshot.centroids
        order = sorted(range(len(centroids)), key=lambda i: (-float(centroids[i] @ query), i))
        permitted = self.live if allowed is None else self.live & np.isin(self.ids, list(allowed))
        chosen = set(np.flatnonzero(permitted & (self.list_of < 0)).tolist())
        low = 0
        while True:
            rows = np.flatnonzero(permitted & np.isin(self.list_of, order[low:nprobe]))
            codec = self.snapshot.codec
            if not codec.spec.exact and len(rows):
                coded = codec.decode(codec.encode(self.vectors[rows])) @ query
                rows = rows[coded >= sorted(coded)[-min(RESCORE * k, len(rows))]]
            chosen |= set(rows.tolist())
            every = np.array(sorted(chosen), np.int64)
            scores = np.einsum("ij,j->i", self.vectors[every], query)
            best = sorted(zip(scores.tolist(), self.ids[every].tolist(), strict=True), key=lambda x: (-x[0], x[1]))[:k]
            if len(best) == k or allowed is None or nprobe >= len(order):
                return [i for _, i in best], [s for s, _ in best]
            low, nprobe = nprobe, nprobe * 2

    def close(self) -> None:
        for file in self.files:
            file.close()


def write_lists(
    folder: Path,
    vectors: Vectors,
    *,
    codec: object,
    nlist: int = 8,
    files: int = 2,
    pending: int = 0,
    deleted: float = 0.0,
    seed: int = 0,
) -> Lists:
    """Cuts rows into files, rows of a file into lists by nearest centroid, and writes them. Every file holds a part of
    every list that has rows in it. `deleted` is the share of the rows in files that do not count."""
    random = np.random.default_rng(seed)
    count, dim = vectors.shape
    ids = random.permutation(count * 3)[:count].astype(np.int64)
    centroids = vectors[random.permutation(count)[:nlist]].copy()
    list_of = np.argmax(vectors @ centroids.T, axis=1).astype(np.int64)
    live = np.ones(count, np.bool_)
    list_of[count - pending :] = -1
    lists: list[list[ListPart]] = [[] for _ in range(nlist)]
    opened = []
    for number, rows_of_file in enumerate(np.array_split(np.arange(count - pending), files)):
        path = folder / f"lists-{number}.blk"
        data, extents, parts = bytearray(), {}, []
        for index in range(nlist):
            rows = rows_of_file[list_of[rows_of_file] == index]
            if not len(rows):
                continue
            codes = codec.encode(vectors[rows])
            raw = [zlib.crc32(v.tobytes()) for v in vectors[rows]]
            block = ids[rows].tobytes() + codes.tobytes() + np.array(raw, np.uint32).tobytes()
            data += b"\0" * (-len(data) % 64)
            extents[BlockId("codes", index)] = Extent(len(data), len(block), zlib.crc32(block))
            table = None
            start = len(data)
            data += block
            if not codec.spec.exact:
                data += b"\0" * (-len(data) % 64)
                table = RowTable(len(data), len(rows), 4 * dim)
                data += vectors[rows].tobytes()
            gone = np.flatnonzero(random.random(len(rows)) < deleted).astype(np.int32)
            live[rows[gone]] = False
            parts.append((index, table, len(rows), len(block), gone))
            assert start % 64 == 0
        path.write_bytes(data)
        file = WatchedFile(path, extents)
        opened.append(file)
        for index, table, size, nbytes, gone in parts:
            if len(gone) < size:
                key = (path.name, index)
                lists[index].append(ListPart(file, BlockId("codes", index), table, size, nbytes, key, gone))
    tail = slice(count - pending, count)
    snapshot = Snapshot(
        generation=1,
        dim=dim,
        codec=codec,
        centroids=centroids,
        lists=[tuple(parts) for parts in lists],
        pending_ids=ids[tail],
        pending_vectors=vectors[tail],
        recall=(),
        rows=int(live.sum()),
    )
    return Lists(snapshot, ids, vectors, list_of, live, opened)


def trained(name: str, vectors: Vectors) -> FaissCodec:
    """A codec that was trained with these vectors."""
    codecs = FaissCodecs(threads=1)
    return codecs.open(codecs.train(name, vectors, seed=0))


def clustered(count: int, dim: int, clusters: int = 6, seed: int = 0) -> Vectors:
    """Unit vectors around a few directions."""
    random = np.random.default_rng(seed)
    centers = random.standard_normal((clusters, dim))
    rows = centers[random.integers(0, clusters, count)] + 0.5 * random.standard_normal((count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def gridded(count: int, dim: int, seed: int = 0, *, distinct: int | None = None) -> Vectors:
    """Vectors of sixteenths, whose products are exact in any order of summation, so that equal scores are equal; of
    `distinct` different ones, if given."""
    random = np.random.default_rng(seed)
    rows = random.integers(-16, 17, (distinct or count, dim))
    return (rows[random.integers(0, len(rows), count)] / 16).astype(np.float32)
