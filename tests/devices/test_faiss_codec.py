"""Codecs give back the coded vectors, as nearly as they can; scanners score as the decoded vectors do."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from naive.index import mixture
from naive.waiting import at_once

from edge.devices.faiss_codec import NAMES, FaissCodecs
from edge.errors import ConfigError, StorageError
from edge.ivf.base import CodecSpec
from edge.resident import anonymous_resident

DIM = 16
ROOM = {"flat": 0.0, "sq8": 0.01, "pq": 0.35, "opq": 0.35}
"""Largest error of a component."""


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return mixture(600, DIM, seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_coding(name: str, vectors: np.ndarray) -> None:
    codecs = FaissCodecs(threads=1)
    spec = codecs.train(name, vectors, seed=1)
    assert spec.name == name
    assert spec.code_size == {"flat": 64, "sq8": 16, "pq": 4, "opq": 4}[name]
    codec = codecs.open(CodecSpec(spec.name, spec.dim, spec.code_size, bytes(spec.state)))
    codes = codec.encode(vectors[::2])
    assert codes.shape == (300, spec.code_size)
    assert codes.dtype == np.uint8
    decoded = codec.decode(codes)
    assert np.abs(decoded - vectors[::2]).max() <= ROOM[name]
    assert codec.encode(vectors[:0]).shape == (0, spec.code_size)
    np.testing.assert_array_equal(codec.encode(vectors[6:7])[0], codes[3], err_msg="alone and among others")
    errors = (codec.decode(codec.encode(vectors)) - vectors) @ vectors[:20].T
    deviations = [codec.deviation(query) for query in vectors[:20]]
    if name == "sq8":
        assert deviations == pytest.approx(errors.std(axis=0), rel=0.25)
    else:
        assert deviations == [0.0 if name == "flat" else float("inf")] * 20


@pytest.mark.parametrize("name", NAMES)
def test_scanning(name: str, vectors: np.ndarray) -> None:
    codecs = FaissCodecs()
    codec = codecs.open(codecs.train(name, vectors, seed=1))
    codes = codec.encode(vectors)
    expected = codec.decode(codes) @ vectors[:5].T
    scanner = codec.scanner()
    for number in range(5):
        scores, found = np.full(7, -np.inf, np.float32), np.full(7, -1, np.int64)
        scanner.set_query(vectors[number])
        for start in range(0, 600, 100):
            scanner.scan(codes[start : start + 100], np.arange(start, start + 100), scores, found)
        scanner.scan(codes[:0], np.arange(0), scores, found)
        np.testing.assert_allclose(np.sort(scores), np.sort(expected[:, number])[-7:], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(scores, expected[found, number], rtol=1e-4, atol=1e-5)


def test_scanners_in_many_threads(vectors: np.ndarray) -> None:
    codecs = FaissCodecs()
    codec = codecs.open(codecs.train("pq", vectors, seed=1))
    codes = codec.encode(vectors)
    wrong = []

    def work(number: int) -> None:
        for _ in range(50):
            scanner = codec.scanner()
            scanner.set_query(vectors[number])
            scores, found = np.full(1, -np.inf, np.float32), np.full(1, -1, np.int64)
            scanner.scan(codes, np.arange(600), scores, found)
            if abs(scores[0] - (codec.decode(codes) @ vectors[number]).max()) > 1e-4:
                wrong.append(number)

    at_once(work, 4)
    assert not wrong


def test_scanners_are_freed_and_faiss_lives_on(vectors: np.ndarray) -> None:
    codecs = FaissCodecs()
    codec = codecs.open(codecs.train("pq", mixture(400, 256, seed=1), seed=1))
    codec.scanner()
    gc.collect()
    before = anonymous_resident()
    for _ in range(2000):
        codec.scanner()
    assert anonymous_resident() - before < 20 << 20  # 2,000 scanners have 130 KB of tables each
    assert codecs.cluster(vectors.astype(np.float16), 5, iterations=3, seed=1).shape == (5, DIM)


def test_clustering(vectors: np.ndarray) -> None:
    codecs = FaissCodecs()
    first = codecs.cluster(vectors.astype(np.float16), 12, iterations=10, seed=7)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-5)
    fit = (vectors @ first.T).max(axis=1).mean()
    random = np.random.default_rng(0)
    assert fit > (vectors @ vectors[random.choice(600, 12)].T).max(axis=1).mean(), (
        "better than vectors picked at random"
    )
    np.testing.assert_allclose(codecs.cluster(vectors.astype(np.float16), 12, iterations=10, seed=7), first, atol=1e-5)
    few = codecs.cluster(vectors[:3].astype(np.float16), 3, iterations=2, seed=1)
    assert few.shape == (3, DIM)


def test_refusals(vectors: np.ndarray) -> None:
    codecs = FaissCodecs()
    with pytest.raises(ConfigError, match=r"rabitq.*flat, sq8, pq"):
        codecs.train("rabitq", vectors, seed=1)
    with pytest.raises(ConfigError, match="multiple of 4"):
        codecs.train("pq", vectors[:, :15], seed=1)
    with pytest.raises(StorageError, match="training state"):
        codecs.open(CodecSpec("sq8", DIM, DIM, b"rubbish, not a codec")).encode(vectors)
    for name in ("sq8", "pq"):  # may have come with a cloned folder
        spec = codecs.train(name, vectors, seed=1)
        for state, size in (
            (spec.state[:-4], spec.code_size),
            (spec.state + bytes(4), spec.code_size),
            (spec.state, spec.code_size - 1),
            (b"\xff" * len(spec.state), spec.code_size),
        ):
            with pytest.raises(StorageError, match="training state"):
                codecs.open(CodecSpec(name, DIM, size, state)).scanner()
    with pytest.raises(StorageError, match="are no vectors of width"):
        codecs.open(CodecSpec("flat", DIM, 4 * DIM - 4))
