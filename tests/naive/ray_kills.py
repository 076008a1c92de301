"""Kills of a collection in shards on Ray: of shards, readers, writers, programs that search, and the head. A campaign:
`python -c "import runpy; runpy.run_path('tests/packages.py')['load'](); from naive.ray_kills import campaign;
campaign(63, 9)"`."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psutil

from edge.errors import Unreachable
from naive.program import config_of, write_tiny_models
from naive.spread import QUERIES, Small, invented, nodes, told
from naive.spread_kills import Spread, check, count, reached, started
from naive.waiting import end_with_parent

_ON = ("one", "two")


def search(folder: str, models: str, address: str) -> None:
    """Searches a collection that does not change, until the process that started it ends, and notes what came."""
    end_with_parent()
    config = config_of(Path(models), Path(folder) / "scratch", threads=1)
    one = Spread(Path(folder), config, reached(address, config), _ON)
    expected = json.loads((Path(folder) / "expected").read_text())
    with open(Path(folder) / "log", "a", encoding="utf-8") as log:
        for number in range(10**9):
            query = QUERIES[number % len(QUERIES)]
            try:
                view = one.cluster.view("", partial=True)
                same = _digest(view.search(query, 20, rerank=False)) == expected[query]
                log.write("partial\n" if view.missing else "equal\n" if same else "WRONG\n")
            except Unreachable:
                log.write("refused\n")
            log.flush()


def _digest(hits: Any) -> str:
    return blake2b(repr([told(hit) for hit in hits]).encode()).hexdigest()


def campaign(kills: int, heads: int, seed: int = 0) -> None:
    """Kills processes at random moments, in as many rounds as the head is killed, each checked after a restart."""
    chance, done = random.Random(seed), Counter[str]()
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="7" * 64, RAY_USAGE_STATS_ENABLED="0")
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        models = write_tiny_models(home / "models")
        config = config_of(models, home / "scratch", threads=1)
        changing, still = home / "changing", home / "still"
        changing.mkdir()
        for number in range(heads):
            ray = nodes(*_ON)
            if not number:
                one = Small(still, config, 2, places=reached(ray.address, config), on=_ON)
                one.add(invented(2, 80))
                one.cluster.finish()
                expected = {query: _digest(one.whole.search(query, 20, rerank=False)) for query in QUERIES}
                (still / "expected").write_text(json.dumps(expected))
                one.close()
            write = ("write", changing, models, chance.randrange(2**30), ray.address)
            find = ("search", still, models, ray.address)
            programs = {"writer": _begun(*write), "searching program": _begun(*find)}
            for _ in range(kills // heads):
                time.sleep(chance.uniform(0.2, 4))
                kind = chance.choice(["shard", "shard", "reader", "writer", "searching program"])
                moment = "searching" if kind == "searching program" else _doing(changing / "log")
                if kind in programs:
                    assert programs[kind].poll() is None, (still / "errors").read_text() + (
                        changing / "errors"
                    ).read_text()
                    programs[kind].kill()
                    programs[kind].communicate()
                    programs[kind] = _begun(*(write if kind == "writer" else find))
                elif not _kill(ray, f"ray::{kind.title()}", chance):
                    continue
                done[f"{kind} while {moment}"] += 1
                print(f"{sum(done.values())} kills: {kind} while {moment}", flush=True)
            done[f"head while {_doing(changing / 'log')}"] += 1
            ray.head_node.kill_gcs_server()
            time.sleep(chance.uniform(0, 10))
            for program in programs.values():
                program.kill()
                program.communicate()
            ray.shutdown()
            ray = nodes(*_ON)
            check(changing, config, ray.address)
            ray.shutdown()
            lines = (changing / "log").read_text("utf-8").splitlines()
            found = Counter((still / "log").read_text("utf-8").split())
            assert not found["WRONG"], found
            written = sum(line.startswith("done") for line in lines)
            print(f"round {number + 1}: {written} acknowledged writes are there; searches {dict(found)}", flush=True)
    for name, times in sorted(done.items()):
        print(f"{times:3} {name}")


def _begun(work: str, folder: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """A program that has written its first line."""
    before = count(folder / "log")
    child = started(work, folder, *arguments, module="ray_kills" if work == "search" else "spread_kills")
    while child.poll() is None and count(folder / "log") == before:
        time.sleep(0.05)
    assert child.poll() is None, _errors(folder)
    return child


def _errors(folder: Path) -> str:
    return (folder / "errors").read_text(errors="replace")[-2000:]


def _doing(log: Path) -> str:
    return next(line.split()[1] for line in reversed(log.read_text("utf-8").splitlines()) if line.startswith("doing"))


def _kill(ray: Any, name: str, chance: random.Random) -> bool:
    """Kills a process of an actor; whether there was one."""
    raylets = [psutil.Process(node.all_processes["raylet"][0].process.pid) for node in ray.list_all_nodes()]
    found = []
    for child in (child for raylet in raylets for child in raylet.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            if child.cmdline()[0].startswith(name):
                found.append(child)
    if found:
        chance.choice(found).kill()
    return bool(found)
