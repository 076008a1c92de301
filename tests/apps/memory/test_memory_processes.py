"""Writers that end, fail or are closed halfway, threads on one memory, and its limit."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from making.synth import synth
from naive.program import printed
from naive.waiting import PATIENCE_S

from edge.apps.memory import writing
from edge.apps.memory.memory import Memory
from edge.apps.store.database import Database
from edge.errors import BudgetExceeded, StorageError
from edge.ivf.base import Connection
from tests.apps.memory.conftest import Make


def contents(memory: Memory) -> dict[str, list[str]]:
    """The texts of all memories, and what happened to each. Vectors, words and histories agree with them."""
    events = {}
    for one in memory.get_all(user_id="ann")["results"]:
        text, lines = one["memory"], memory.history(one["id"])
        (hit,) = memory.search(text, 1, user_id="ann", rerank=False, explain=True)["results"]
        assert (hit["id"], round(hit["score_details"]["semantic"], 3)) == (one["id"], 1)
        assert hit["score_details"]["bm25"] > 0
        assert [line["new_memory"] for line in lines] == [*(line["old_memory"] for line in lines[1:]), text]
        events[text] = [line["event"] for line in lines]
    return events


def test_an_end_before_any_commit_leaves_each_change_whole_or_undone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kill interrupts within one, SQLite undoes (`tests/apps/store/test_foreign.py`)."""
    with make("before") as memory:
        added = memory.add(["tea is good", "bread rises", "ice is blue"], user_id="ann")["results"]
        right = [contents(memory)]
    changes: list[Callable[[Memory], object]] = [
        lambda memory: memory.add(["the river floods", "a boat sails"], user_id="ann"),
        lambda memory: memory.update(added[0]["id"], "coffee was bad"),
        lambda memory: memory.pin(added[1]["id"]),
        lambda memory: memory.delete(added[2]["id"]),
        lambda memory: memory.maintain(full=True),
        lambda memory: memory.rebuild(),
    ]
    shutil.copytree(tmp_path / "before", tmp_path / "right")
    with make("right") as memory:
        right += [(change(memory), contents(memory))[1] for change in changes]
    write = Database.write
    for commits in itertools.count():
        shutil.copytree(tmp_path / "before", tmp_path / str(commits))
        left, done = iter(range(commits)), 0

        def ended(self: Database, left: Iterator[int] = left) -> AbstractContextManager[Connection]:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return write(self)

        with make(str(commits)) as memory, monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            memory.store.upkeep.close()  # which would commit beside the changes
            patch.setattr(Database, "write", ended)
            for change in changes:
                change(memory)
                done += 1
        with make(str(commits)) as memory:
            memory.maintain(full=True)  # which goes on with a rebuild
            assert memory.health(thorough=True)
            assert contents(memory) == right[done]
        if done == len(changes):
            break
    assert commits > len(changes)


def test_what_fails_halfway_leaves_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = make()
    memory.add("before", user_id="ann")

    def broken(*_: Any) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "note_changes", broken)
        with pytest.raises(OSError, match="gone"):
            memory.add(["one", "two"], user_id="ann")
    assert [m["memory"] for m in memory.get_all(user_id="ann")["results"]] == ["before"]
    assert [m["memory"] for m in memory.search("one two", user_id="ann")["results"]] == ["before"]
    memory.add("one", user_id="ann")
    assert memory.search("one", 1, user_id="ann", rerank=False)["results"][0]["memory"] == "one"


def test_threads_share_one_memory(memory: Memory) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(number: int) -> int:
        user = f"u{number % 4}"
        memory.add(f"{user} says {number}", user_id=user)
        return sum(hit["user_id"] != user for hit in memory.search("says", 50, user_id=user)["results"])

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(64))) == 0
    assert sum(len(memory.get_all(user_id=f"u{n}", top_k=50)["results"]) for n in range(4)) == 64


def test_closing_while_threads_search(make: Make) -> None:
    """Each of them ends with its results or with one sentence; nothing is left open."""
    memory = make()
    memory.add([f"note {n}" for n in range(30)], user_id="ann")
    ended: list[str] = []
    begun = threading.Barrier(4)

    def work(number: int) -> None:
        begun.wait()
        try:
            while True:
                memory.search(f"note {number}", user_id="ann", rerank=False)
                memory.add(f"more {number} {len(ended)}", user_id="ann")
        except StorageError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(0.2)
    memory.close()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    assert len(ended) == 3
    assert all("has been closed" in reason for reason in ended)


LIMIT = 160_000_000 if sys.platform == "linux" else 400_000_000
"""Elsewhere mapped files count as held, too."""

SCRIPT = """
import json, sys
from edge.resident import ResidentWatch
from edge.apps.memory.memory import Memory
path, embedder, reranker, limit = *sys.argv[1:4], int(sys.argv[4])
models = {"embedder": embedder, "reranker": reranker}
with ResidentWatch(0.002) as watch, Memory(path, user_id="ann", memory=limit, **models) as m:
    for start in range(0, 750, 250):
        said = [f"memory number {n} is about topic {n % 97} and place {n % 89}" for n in range(start, start + 250)]
        m.add(said, supersede=start == 500)  # what the last ones end is looked for among all
    m.maintain()
    found = [len(m.search(f"topic {n} in place {n}", 10)["results"]) for n in range(10)]
    holders = m.budget.holders()
    watch.sample()
    print(json.dumps({"peak": watch.high_water, "found": found, "holders": list(holders)}))
"""


def test_the_process_stays_below_its_limit(tmp_path: Path) -> None:
    synth("tiny-bert-embedder", tmp_path / "embedder").close()
    synth("tiny-bert", tmp_path / "reranker").close()
    arguments = [str(tmp_path / "memory"), str(tmp_path / "embedder"), str(tmp_path / "reranker"), str(LIMIT)]
    report = json.loads(printed(SCRIPT, *arguments))
    assert report["found"] == [10] * 10
    assert report["peak"] < LIMIT
    assert {"SQLite", "process"} <= set(report["holders"])


def test_a_limit_that_cannot_work_is_refused_with_one_that_can(make: Make) -> None:
    with pytest.raises(BudgetExceeded, match="smallest memory limit that works is"):
        make(memory="10MB")
