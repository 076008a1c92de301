"""Several indexes with one quantizer are together the same index as one that holds everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from naive.index import SMALL, IndexRig

from edge.errors import ConfigError, InputError
from edge.ivf.base import Goal, Quantizer
from edge.ivf.index import VectorIndex
from edge.ivf.maintenance.training import outgrown, train
from edge.ivf.storage.manifest import IndexManifest, flat
from edge.plugins import load

DIM = 16
Vectors = npt.NDArray[np.float32]


def unit(random: np.random.Generator, count: int) -> Vectors:
    rows = random.standard_normal((count, DIM)).astype(np.float32)
    rows[:: max(1, count // 9)] = rows[0]  # ties
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def trained(index: VectorIndex, vectors: Vectors, codec: str, version: int = 1) -> Quantizer:
    spec, centroids, _ = train(
        len(vectors), lambda count: [(np.arange(count), vectors[:count])], load("edge.codecs", "faiss")(threads=1),
        replace(SMALL, codec=codec), DIM, None, budget=index._budget, check=lambda _: None,
    )  # fmt: skip
    return Quantizer(version, spec, centroids)


@pytest.mark.parametrize("codec", ["flat", "sq8"])
@pytest.mark.parametrize("shards", [1, 2, 4, 8])
def test_shards_find_what_one_index_finds(tmp_path: Path, codec: str, shards: int) -> None:
    random = np.random.default_rng(shards)
    vectors, queries = unit(random, 700), unit(random, 12)
    ids = np.arange(len(vectors))
    of = random.integers(shards, size=len(vectors))
    groups = [np.flatnonzero(of == shard) for shard in range(shards)]
    made = []
    for number, own in enumerate([ids, *groups]):
        (tmp_path / f"{number}").mkdir()
        rig = IndexRig(tmp_path / f"{number}", DIM)
        database, index = rig.database, rig.index
        early = own[own < 500]
        with database.write() as db:
            index.add(db, early, vectors[early])
        quantizer = Quantizer.from_bytes(trained(index, vectors, codec).to_bytes())
        curve = index.install_quantizer(database.write, quantizer)
        assert (len(curve) > 0) == (len(early) > 0)
        shared = Quantizer(1, quantizer.spec, quantizer.centroids, ((3, 0.9), (6, 1.0)))
        assert index.install_quantizer(database.write, shared) == shared.recall
        with database.write() as db:
            gone = own[own % 11 == 5]
            index.delete(db, gone[gone < 500])
            late = own[(own >= 500) & (own % 11 != 5)]
            index.add(db, late[:-7], vectors[late[:-7]])
            index.add(db, late[-7:], vectors[late[-7:]])  # these stay pending
        report = index.maintain(database.write, full=number % 2 == 0)
        assert not report.trained
        assert not report.split
        made.append((database, index))
    found = []
    for database, index in made:
        with database.read() as db:
            answer = index.search(db, queries, 20)
            found.append([list(zip((-row).tolist(), own.tolist(), strict=True)) for row, own in
                          zip(answer.scores, answer.ids, strict=True)])  # fmt: skip
            assert answer.nprobe == 6 or index.snapshot(db).rows == 0
    for query in range(len(queries)):
        merged = sorted(pair for one in found[1:] for pair in one[query] if pair[1] >= 0)[:20]
        assert merged == found[0][query]
    for _, index in made:
        index.close()


def test_a_shared_quantizer_is_the_owners_alone(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    vectors = unit(random, 400)
    rig = IndexRig(tmp_path, DIM)
    database, index = rig.database, rig.index
    with database.write() as db:
        index.add(db, np.arange(50), vectors[:50])
    index.install_quantizer(database.write, trained(index, vectors, "flat"))
    with database.write() as db:
        index.add(db, np.arange(50, 400), vectors[50:])
    report = index.maintain(database.write, full=True)
    with database.read() as db:
        state = IndexManifest(db).state()
        assert state.quantizer == 1
        assert {row[0] for row in db.execute("SELECT quantizer FROM ivf_segments")} == {1}
        assert len(index.drawn(db, 100, 0)) == 100
    assert not report.trained
    assert outgrown(state, SMALL)
    with pytest.raises(InputError, match="shares its lists"):
        index.tune(database.write, Goal(recall=0.9))
    with pytest.raises(ConfigError, match="of width 8"):
        index.install_quantizer(database.write, Quantizer(2, flat(8), np.zeros((1, 8), np.float32)))
    with database.write() as db:
        index.clear(db)
        assert IndexManifest(db).state().quantizer == 0
    index.close()
