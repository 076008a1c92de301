"""Shards as actors of Ray, on several nodes of one machine, and verbs that wait for Ray when its head dies."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from naive.headless import started
from naive.spread import QUERIES, Small, invented, told
from naive.spread import nodes as start_nodes

from edge.apps.cluster.command import index
from edge.apps.cluster.places import OBJECT_STORE_NBYTES, RayPlaces
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
    started = start_nodes("one", "two")
    yield started
    started.shutdown()
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
    assert one.places._ray.cluster_resources()["object_store_memory"] == 2 * OBJECT_STORE_NBYTES
    state = one.cluster.states()["s0"]
    assert 20 << 20 < state["began"] < state["resident"]
    assert state["pid"] != os.getpid()

    # A process that is killed comes back with its documents, and searches wait for it.
    expected = [told(hit) for hit in one.cluster.search("old ice", 20)]
    for shard in ("s0", "s1"):
        os.kill(pid(one, shard), signal.SIGKILL)
        assert [told(hit) for hit in one.cluster.search("old ice", 20)] == expected

    # A new process of ours finds the shards that run.
    processes = {pid(one, "s0"), pid(one, "s1")}
    again = RayPlaces.__new__(RayPlaces)
    again.__dict__.update(one.places.__dict__, _actors={})
    one.cluster.places = again
    assert {pid(one, "s0"), pid(one, "s1")} == processes
    one.check(QUERIES[:2], rerank=False)


def test_shards_and_readers_that_are_killed_lose_no_file(nodes: Any, one: Small, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number, (name, text) in enumerate(invented(7, 100).items()):
        (folder / f"{name}.txt").write_text(f"{text}\n")
        os.utime(folder / f"{name}.txt", (10**9, 10**9 + number))
    raylets = [psutil.Process(node.all_processes["raylet"][0].process.pid) for node in nodes.list_all_nodes()]
    chance, kills, ended = random.Random(1), list[int](), threading.Event()

    def kill() -> None:
        """Kills a process of this cluster, a shard or a reader, at random moments."""
        while not ended.wait(chance.uniform(0.2, 1.0)):
            workers = [child for raylet in raylets for child in raylet.children(recursive=True)]
            named = [process for process in workers if is_ours(process)]
            if named and len(kills) < 4:
                process = chance.choice(named)
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                    kills.append(process.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        done = index(one.cluster, one.places.readers(1), [str(folder)], progress=lambda _: None)
    finally:
        ended.set()
        killer.join()
    one.whole.index(folder)
    assert done.counts["indexed"] == 100
    assert kills
    one.check(rerank=False)


def is_ours(process: psutil.Process) -> bool:
    """Whether Ray gave a process the name of one of our actors."""
    try:
        return process.cmdline()[0].startswith(("ray::Shard", "ray::Reader"))
    except (psutil.NoSuchProcess, IndexError):
        return False


def test_every_verb_ends_when_the_head_dies_and_a_repeated_run_goes_on(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "7" * 64, "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)
    child = started(tmp_path, tiny_models)
    try:
        assert child.wait(300) == 0, (tmp_path / "errors").read_text(errors="replace")[-2000:]
    finally:
        child.kill()
        child.communicate()
    *verbs, last = (line.split("\t", 1) for line in (tmp_path / "log").read_text("utf-8").splitlines())
    names = ["readers", "index", "status", "load", "grow", "publish", "train", "search"]
    assert [name for name, _ in verbs] == names
    for name, text in verbs:
        assert "Ray's head (" in text, (name, text)
        assert text.startswith(("Unreachable: ", "ShardLost: ")), (name, text)
    assert last == ["again", "30\t30\tTrue"]
