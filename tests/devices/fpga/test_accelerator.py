"""The whole pipeline equals its twin in integers, and takes the cycles that the model says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.devices.fpga.device import AskedRows, HardwareAnswer, Image, Integers, SimulatedAccelerator
from edge.devices.fpga.shape import ENTRY, Shape, cycles, levels
from edge.devices.fpga.simulation import missing
from edge.ivf.base import Bytes

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def twin(shape: Shape, scores: Integers, rows: Integers, ceiling: int) -> HardwareAnswer:
    """The answer to scores [n] of rows [n], whose numbers say which unit scores them."""
    keys = [shape.keys.of(int(score), int(row)) for score, row in zip(scores, rows, strict=True)]
    lanes: list[list[int]] = [[] for _ in range(shape.units)]
    for key, row in zip(keys, rows.tolist(), strict=True):
        if key <= ceiling:
            lanes[row % shape.units].append(key)
    lanes = [sorted(lane, reverse=True) for lane in lanes]
    merged = sorted((key for lane in lanes for key in lane[: shape.kept]), reverse=True)
    lost = [0, *(key for lane in lanes for key in lane[shape.kept :]), *merged[shape.results :]]
    return HardwareAnswer(merged[: shape.results], max(lost))


def table_sums(book: Integers, beats: Integers, codes: Bytes) -> Integers:
    parts, _, width = book.shape
    tables = np.einsum("pcw,pw->pc", book, beats.reshape(parts, width)) >> 7 + levels(width)
    return np.asarray(tables[np.arange(parts), codes].sum(axis=1))


@pytest.mark.parametrize("stall", [0.0, 0.2])
def test_queries_choose_their_lists_build_tables_and_scan(
    tmp_path_factory: pytest.TempPathFactory, stall: float
) -> None:
    folder = Path(tmp_path_factory.getbasetemp()) / "pipeline"
    shape = Shape("pq", 16, 4, units=2, results=6, kept=4, builders=2, lanes=2, lists=5, probed=2, centroids=2)
    random = np.random.default_rng(1)
    sizes = [70, 1, 33, 0, 90]
    lists: list[Bytes] = [random.integers(0, 256, (rows, 4)).astype(np.uint8) for rows in sizes]
    image = Image.of([(codes, np.arange(0, 33, 2) if len(codes) == 33 else None) for codes in lists], 2, 4, 1)
    book = random.integers(-127, 128, (4, 256, 4))
    centroids = random.integers(0, 256, (5, 16)).astype(np.uint8)
    accelerator = SimulatedAccelerator(shape, folder, level=0)
    asked, wanted, probed = [], [], []
    for number in range(4):
        beats = random.integers(-(1 << 15), 1 << 15, 16)
        near = centroids.astype(np.int64) @ beats >> max(0, ENTRY + 9 + levels(16) - 24)
        own = sorted(range(5), key=lambda i: (-near[i], i))[:2]
        rows = np.concatenate([2 * image.first[i] + np.arange(0, sizes[i], 2 if sizes[i] == 33 else 1) for i in own])
        codes = np.concatenate([lists[i][:: 2 if sizes[i] == 33 else 1] for i in own])
        scores = table_sums(book, beats, codes)
        ceiling = shape.keys.of(int(np.median(scores)), 0) if number == 2 and len(scores) else (1 << 48) - 1
        asked.append(AskedRows(beats, ceiling, ()))
        wanted.append(twin(shape, scores, rows, ceiling))
        probed.append([sizes[i] for i in own])
    answers, taken = accelerator.answers(image, asked, book=book, centroids=centroids, stall=stall, latency=9)
    assert answers == wanted
    if not stall:
        assert taken == pytest.approx(cycles(shape, probed, 9), rel=0.01)


def test_a_row_of_several_beats_is_scored_by_weighted_sums(tmp_path: Path) -> None:
    shape = Shape("bytes", 12, 0, units=2, results=5, kept=3, lanes=4)
    random = np.random.default_rng(2)
    lists: list[Bytes] = [random.integers(0, 256, (rows, 12)).astype(np.uint8) for rows in (40, 7, 200)]
    image = Image.of([(codes, None) for codes in lists], 2, 4, 3)
    asked, wanted = [], []
    for own in ([0], [2, 1], [0, 1, 2]):
        beats = random.integers(-(1 << 15), 1 << 15, 12)
        rows = np.concatenate([2 * image.first[i] + np.arange(len(lists[i])) for i in own])
        scores = np.concatenate([lists[i] for i in own]).astype(np.int64) @ beats >> ENTRY + 9 + levels(12) - 24
        asked.append(AskedRows(beats, (1 << 48) - 1, own))
        wanted.append(twin(shape, scores, rows, (1 << 48) - 1))
    answers, taken = SimulatedAccelerator(shape, tmp_path, level=0).answers(image, asked)
    assert answers == wanted
    assert taken == pytest.approx(cycles(shape, [[40], [200, 7], [40, 7, 200]]), rel=0.03)
