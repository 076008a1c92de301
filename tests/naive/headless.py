"""A process in which Ray's head is killed, and what each verb of a collection in shards raises then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from edge.apps.cluster import calling
from edge.apps.cluster.command import index
from edge.config import Config
from naive.program import config_of
from naive.spread import SMALL, Small, invented, nodes
from naive.waiting import end_with_parent

_CHILD = """
import importlib, runpy, sys
runpy.run_path(sys.argv[1])["load"]()
importlib.import_module("naive.headless").headless(*sys.argv[2:])
"""


class Spread(Small):
    """Opens what an earlier process left."""

    def __init__(self, folder: Path, config: Config, places: Any, on: tuple[str, ...]) -> None:
        self.folder, self.config, self.on = folder, config, on
        self.options, self.places = SMALL, places
        self.cluster = self.opened()
        self.cluster._patience = 120.0  # shards are started again, and the machine may be busy


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


def started(folder: Path, models: Path) -> subprocess.Popen[bytes]:
    """A process that does so."""
    packages = Path(__file__).resolve().parent.parent / "packages.py"
    command = [sys.executable, "-c", _CHILD, str(packages), str(folder), str(models)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=(folder / "errors").open("ab"))
