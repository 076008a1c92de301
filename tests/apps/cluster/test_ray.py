"""Shards as actors of Ray, on several nodes of one machine."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from naive.spread import QUERIES, Small, invented, told

from edge.apps.cluster.messages import ShardLost
from edge.apps.cluster.ray_places import OBJECT_STORE_NBYTES, RayPlaces
from edge.config import Config

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes, which offer the places `one` and `two`, and which ask for a token."""
    patch = pytest.MonkeyPatch()
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text("7" * 64)
    patch.setenv("RAY_AUTH_MODE", "token")
    patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Actors find the code of this checkout and the helpers, whether they are installed or not.
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for number, place in enumerate(("one", "two")):
        head = {"include_dashboard": False} if not number else {}
        cluster.add_node(num_cpus=1, resources={place: 1}, object_store_memory=OBJECT_STORE_NBYTES, **head)
    yield cluster
    cluster.shutdown()
    patch.undo()


@pytest.fixture
def one(nodes: Any, tmp_path: Path, tiny_config: Config) -> Iterator[Small]:
    places = RayPlaces(nodes.address, config=tiny_config)
    small = Small(tmp_path / "small", tiny_config, 2, places=places, on=("one", "two"))
    yield small
    small.close()


def pid(one: Small, shard: str) -> int:
    """The process of a shard."""
    state = one.cluster.states()[shard]
    return int(state["pid"])


def test_shards_in_actors_equal_one_collection(one: Small) -> None:
    one.add(invented(2, 80))
    one.cluster.finish()
    one.check(rerank=False)
    one.check(QUERIES[:1])
    assert one.places.object_store_nbytes() == 2 * OBJECT_STORE_NBYTES
    state = one.cluster.states()["s0"]
    assert 20 << 20 < state["began"] < state["resident"]
    assert state["pid"] != os.getpid()

    # A process that is killed comes back with its documents, and searches wait for it.
    expected = [told(hit) for hit in one.cluster.search("old ice", 20).hits]
    for shard in ("s0", "s1"):
        os.kill(pid(one, shard), signal.SIGKILL)
        assert [told(hit) for hit in one.cluster.search("old ice", 20).hits] == expected

    # A new process of ours finds the shards that run.
    processes = {pid(one, "s0"), pid(one, "s1")}
    again = RayPlaces.__new__(RayPlaces)
    again.__dict__.update(one.places.__dict__, _actors={})
    one.cluster._places = again
    assert {pid(one, "s0"), pid(one, "s1")} == processes
    one.check(QUERIES[:2], rerank=False)


def test_a_stopped_process_is_a_lost_shard(one: Small) -> None:
    one.add(invented(2, 30))
    one.cluster.publish()
    one.check(QUERIES[:2], rerank=False)
    process = psutil.Process(pid(one, "s1"))
    one.cluster._patience = 1.0
    process.suspend()
    try:
        started = time.monotonic()
        with pytest.raises(ShardLost, match="shard s1 does not answer"):
            one.cluster.search("old ice", rerank=False)
        assert one.cluster.search("old ice", rerank=False, partial=True).missing == ("s1",)
        assert time.monotonic() - started > 1.0
    finally:
        process.resume()
    one.cluster._patience = 60.0
    one.check(QUERIES[:2], rerank=False)
