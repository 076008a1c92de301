"""Kills of a collection in shards: a writer that tells what it does, and the check of what it left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from edge.apps.cluster import calling
from edge.apps.cluster.calling import ShardDocument
from edge.apps.cluster.intake import index
from edge.apps.cluster.places import LocalPlaces
from edge.apps.cluster.shard import put, stored
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.collection import Collection
from edge.config import Config
from edge.errors import Unreachable
from naive.program import config_of
from naive.spread import QUERIES, SMALL, Small, invented, nodes, told
from naive.waiting import end_with_parent

NAMES = 40
_CHILD = """
import importlib, runpy, sys
runpy.run_path(sys.argv[1])["load"]()
getattr(importlib.import_module("naive.spread_kills"), sys.argv[2])(*sys.argv[3:])
"""


class Spread(Small):
    """Opens what an earlier process left."""

    def __init__(self, folder: Path, config: Config, places: Any, on: tuple[str, ...]) -> None:
        self.folder, self.config, self.on = folder, config, on
        self.options, self.places = SMALL, places
        self.cluster = self.opened(patience=120.0)  # shards are started again, and the machine may be busy


def write(folder: str, models: str, seed: str) -> None:
    """Changes a collection until the process that started it ends; appends what it begins, and what was acknowledged,
    to a file."""
    end_with_parent()
    config = config_of(Path(models), Path(folder) / "scratch", threads=1)
    one = Spread(Path(folder), config, LocalPlaces(config=config), ("here",))
    chance = random.Random(seed)
    texts = list(invented(11, 300).values())
    files = Path(folder) / "files"
    files.mkdir(exist_ok=True)
    if not one.cluster.catalogue.shards():
        one.cluster.create([one.replica("s0"), one.replica("s1")])
    readers = one.places.readers(1)
    with open(Path(folder) / "log", "a", encoding="utf-8") as log:

        def say(*words: object) -> None:
            log.write(" ".join(map(str, words)) + "\n")
            log.flush()

        say("opened")
        number = 0
        while True:
            number += 1
            kind = chance.choice(
                ["put"] * 6 + ["index", "index", "remove", "publish", "finish", "grow", "search", "search"]
            )
            shards = one.cluster.catalogue.shards()
            say("doing", kind)
            try:
                if kind == "put":
                    names = chance.sample(range(NAMES), chance.randint(1, 6))
                    versions = {f"text-{name}": chance.randrange(len(texts)) for name in names}
                    say("begin put", *(f"{name}={version}" for name, version in versions.items()))
                    with one.cluster.writing():
                        one.cluster.put(one.documents({name: texts[v] for name, v in versions.items()}))
                    say("done put", *(f"{name}={version}" for name, version in versions.items()))
                elif kind == "index":
                    names = chance.sample(range(NAMES), chance.randint(1, 6))
                    versions = {f"{files}/{name}.txt": chance.randrange(len(texts)) for name in names}
                    say("begin put", *(f"{name}={version}" for name, version in versions.items()))
                    for path, version in versions.items():
                        Path(path).write_text(f"{texts[version]}\n")
                    index(one.cluster, readers, [str(files)], progress=lambda _: None)
                    say("done put", *(f"{name}={version}" for name, version in versions.items()))
                elif kind == "remove":
                    name = f"text-{chance.randrange(NAMES)}"
                    say("begin put", f"{name}=-1")
                    with one.cluster.writing():
                        one.cluster.remove([name])
                    say("done put", f"{name}=-1")
                elif kind in ("publish", "finish"):
                    with one.cluster.writing():
                        getattr(one.cluster, kind)()
                elif kind == "grow" and len(shards) < 4 and number > 5:
                    one.cluster.grow([one.replica(f"s{len(shards)}")])
                elif kind == "search":
                    one.cluster.search(chance.choice(QUERIES), 5, rerank=False)
            except Unreachable as error:  # of a process that was killed
                say("lost", error)
            say("did", kind)


def headless(folder: str, models: str) -> None:
    """Kills Ray's head and stops a shard, then writes to a file what each verb raises, and at last what a repeated run
    finds after the nodes were started again."""
    from edge.apps.cluster.places import RayPlaces

    end_with_parent()
    config = config_of(Path(models), Path(folder) / "scratch", threads=1)
    files = Path(folder) / "files"
    texts = list(invented(7, 60).values())
    files.mkdir()
    log = list[str]()
    calling._LOOK_S = 0.5

    def written(first: int, last: int) -> None:
        for number in range(first, last):
            (files / f"{number}.txt").write_text(f"{texts[number]}\n")
            os.utime(files / f"{number}.txt", (10**9, 10**9 + number))

    def opened(cluster: Any) -> Spread:
        return Spread(Path(folder), config, RayPlaces(cluster.address, config=config), ("one",))

    def indexed(one: Spread, readers: Sequence[Any]) -> Any:
        return index(one.cluster, readers, [str(files)], progress=lambda _: None)

    started = nodes("one")
    one = opened(started)
    one.cluster.create([one.replica("s0"), one.replica("s1")])
    readers = one.places.readers(1)
    written(0, 30)
    assert indexed(one, readers).counts["indexed"] == 30
    written(30, 60)
    stopped = psutil.Process(one.cluster.states()["s0"]["pid"])
    document = one.documents({"new": "old ice"})
    one.cluster._patience = 1.0
    stopped.suspend()
    started.head_node.kill_gcs_server()
    verbs: dict[str, Callable[[], object]] = {
        "readers": lambda: one.places.readers(0), "index": lambda: indexed(one, readers),
        "status": one.cluster.states, "load": lambda: one.cluster.put(document),
        "grow": lambda: one.cluster.grow([one.replica("s2")]), "publish": one.cluster.publish,
        "train": one.cluster.train, "search": lambda: one.cluster.search("old ice", rerank=False),
    }  # fmt: skip
    for name, verb in verbs.items():
        try:
            told = f"a result: {verb()}"
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        log.append(f"{name}\t{told}")
    one.places.close()
    stopped.kill()
    started.shutdown()
    started = nodes("one")
    one = opened(started)
    done = indexed(one, one.places.readers(1))
    hits = one.cluster.search("old ice", 20, rerank=False)
    log.append(f"again\t{done.counts['indexed']}\t{done.counts['unchanged']}\t{bool(hits)}")
    (Path(folder) / "log").write_text("\n".join(log), "utf-8")
    one.places.close()
    started.shutdown()


def started(work: str, folder: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """A process that runs a function of this file."""
    packages = Path(__file__).resolve().parent.parent / "packages.py"
    command = [sys.executable, "-c", _CHILD, str(packages), work, str(folder), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=(folder / "errors").open("ab"))


def killed_after(child: subprocess.Popen[bytes], folder: Path, lines: int, chance: random.Random) -> None:
    """Kills a writer at a random moment after it has written some lines."""
    log, began = folder / "log", count(folder / "log")
    while child.poll() is None and count(log) < began + lines:
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 0.3))
    assert child.poll() is None, (folder / "errors").read_text(errors="replace")[-2000:]
    child.kill()
    child.communicate()


def count(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def allowed(log: Path) -> dict[str, set[int]]:
    """For each text the versions that it may have: the acknowledged one, or one that was begun since; -1: removed."""
    found: dict[str, set[int]] = defaultdict(lambda: {-1})
    for line in log.read_text("utf-8").splitlines():
        words = line.split()
        if words[1:2] == ["put"]:
            for name, version in (word.split("=") for word in words[2:]):
                found[name] = {int(version)} if words[0] == "done" else found[name] | {int(version)}
    return found


def check(folder: Path, config: Config) -> None:
    """What a killed writer left is complete, in one place each, and searched as one collection would be."""
    texts = list(invented(11, 300).values())
    one = Spread(folder, config, LocalPlaces(config=config), ("here",))
    try:
        if one.cluster.catalogue.version()[0]:  # the first search publishes what was left
            one.cluster.search("old ice", 20, rerank=False)
        with one.cluster.writing():
            one.cluster.finish()
        held = dict[str, list[ShardDocument]]()
        for replica in one.cluster.catalogue.replicas():
            with Collection(replica.folder, config=config, read_only=True) as shard, shard.database.read() as db:
                index = shard.vectors
                assert index is not None
                paths = [path for (path,) in db.execute("SELECT path FROM files")]
                for document in stored(db, Catalog(), index, paths):
                    held.setdefault(document.path, []).append(document)
        assert [name for name, found in held.items() if len(found) > 1] == []
        wanted = allowed(folder / "log")
        for name, versions in wanted.items():
            found = held.get(name)
            words = None if found is None else " ".join(chunk.text for chunk in found[0].chunks).split()
            assert words in [None if version < 0 else texts[version].split() for version in versions], (name, versions)
        assert set(held) <= set(wanted)
        with tempfile.TemporaryDirectory() as other, Collection(Path(other) / "whole", config=config) as whole:
            whole.models.claim()
            index = whole.vectors
            assert index is not None
            with whole.database.write() as db:
                put(db, Catalog(), index, [found[0] for found in held.values()])
            quantizer = one.cluster.catalogue.quantizer()
            assert quantizer is not None
            index.install_quantizer(whole.database.write, quantizer)
            for query in QUERIES:
                results = one.cluster.search(query, 20, rerank=False)
                expected = whole.search(query, 20, rerank=False)
                assert [told(hit) for hit in results] == [told(hit) for hit in expected]
    finally:
        one.cluster.close()
        one.places.close()
