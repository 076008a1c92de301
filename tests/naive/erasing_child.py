"""Erases a text of a copy of a store again and again, in a process that ends at one SQL statement after the other, and
prints a line for each: the statement's number, how this process and the next one ended, and where bytes are left.

Run as a script: `erasing_child.py STORE memory|collection FOLDER JSON`. STORE is a store as it is before, FOLDER a
place to work in, and JSON has the `name` to erase, the bytes to find as `needles` in hexadecimal, the folder of
`models`, and the `step` between two statements.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

runpy.run_path(str(Path(__file__).parents[1] / "packages.py"))["load"]()

# Each end is that of a fork, which has all of this then.
import faiss  # noqa: E402, F401

import edge.apps.collection.writing  # noqa: E402, F401
from edge.apps.collection.collection import Collection  # noqa: E402
from edge.apps.memory.memory import Memory  # noqa: E402
from edge.apps.store.rows import Leasing  # noqa: E402
from naive.program import config_of  # noqa: E402
from naive.words import WordEmbedder, WordReranker  # noqa: E402


def holds(place: Path, needles: list[bytes]) -> list[str]:
    """The files below a folder that hold any of the bytes."""
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return [f"{path.name}: {needle[:40]!r}" for path in files for needle in needles if needle in path.read_bytes()]


def opened(kind: str, place: Path, models: str) -> Any:
    if kind == "memory":
        return Memory(place, embedder=WordEmbedder(), reranker=WordReranker(), memory="10GB")
    return Collection(place, config=config_of(Path(models), place / "scratch", threads=1))


def erase(kind: str, store: Any, name: str) -> None:
    if kind == "collection":
        store.purge([name])
    else:
        store.delete(name, purge=True)


def _forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"failed: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _dying(kind: str, place: Path, task: dict[str, Any], last: int) -> None:
    store, left, real = opened(kind, place, task["models"]), [last], Leasing.execute

    def execute(db: Leasing, *arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        return real(db, *arguments, **named)

    Leasing.execute = execute  # type: ignore[method-assign]
    erase(kind, store, task["name"])


def _again(kind: str, place: Path, task: dict[str, Any]) -> None:
    with (
        opened(kind, place, task["models"]) as store,
        (store if kind == "collection" else store.store).database.read() as db,
    ):
        deleted = db.execute(_LEFT[kind], [task["name"]]).fetchone()[0] == 0
    if not deleted:  # nothing was acknowledged, and nothing was done
        with opened(kind, place, task["models"]) as store:
            erase(kind, store, task["name"])


def main() -> None:
    whole, kind, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    task = json.loads(sys.argv[4])
    needles = [bytes.fromhex(needle) for needle in task["needles"]]
    code, number = 9, 0
    while code == 9:
        place = folder / str(number)
        shutil.copytree(whole, place)
        code = _forked(partial(_dying, kind, place, task, number))
        again = _forked(partial(_again, kind, place, task))
        print(json.dumps([number, code, again, holds(place, needles)]), flush=True)
        shutil.rmtree(place)
        number += task["step"]


_LEFT = {
    "memory": "SELECT count(*) FROM memories WHERE uuid = ?",
    "collection": "SELECT count(*) FROM files WHERE path = ?",
}

if __name__ == "__main__":
    main()
