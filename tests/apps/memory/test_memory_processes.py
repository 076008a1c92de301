"""Many processes on one memory, killed without warning, and its limit. `EDGE_TEST_SECONDS=60` makes it a minute."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from apsw import Connection
from making.synth import synth
from naive.program import printed
from naive.waiting import PATIENCE_S, until
from naive.words import WordEmbedder

from edge.apps.memory import writing
from edge.apps.memory.memory import Memory
from edge.errors import BudgetExceeded, StorageError
from tests.apps.memory.conftest import Make

CHILD = Path(__file__).parents[2] / "naive" / "memory_child.py"
PROCESSES = 4


class Child:
    """One process after the other in one place, and their reports."""

    def __init__(self, directory: Path, logs: Path, user: str) -> None:
        self.directory, self.logs, self.user = directory, logs, user
        self.runs: list[Path] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self.logs / f"{self.user}-{len(self.runs)}.jsonl"
        self.runs.append(log)
        seed = 1_000 * int(self.user[1:]) + len(self.runs)
        arguments = [sys.executable, str(CHILD), str(self.directory), self.user, str(seed)]
        with open(log, "wb") as out, open(log.with_suffix(".err"), "wb") as errors:
            self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=out, stderr=errors)

    def begin(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.check_alive()
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def ready(self) -> bool:
        self.check_alive()
        return self.runs[-1].stat().st_size > 0

    def check_alive(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self.runs[-1].with_suffix(".err").read_text()

    def told(self) -> int:
        """The number of changes that the present process has reported."""
        self.check_alive()
        return self.runs[-1].read_text().count('"event": "done"')

    def lines(self) -> list[list[dict[str, Any]]]:
        """The report of each run; a last line may be cut."""
        return [[json.loads(x) for x in run.read_text().split("\n")[:-1]] for run in self.runs]


def test_processes_killed_at_random_lose_nothing(make: Make, tmp_path: Path) -> None:
    seconds = float(os.environ.get("EDGE_TEST_SECONDS", "2"))
    logs = tmp_path / "logs"
    logs.mkdir()
    make(embedder=WordEmbedder(32)).close()
    children = [Child(tmp_path / "memory", logs, f"u{n}") for n in range(PROCESSES)]
    for child in children:
        child.start()
    # Those that are ready wait. Beside others that write without a pause, the last one might not come to open it.
    until(lambda: all(child.ready() for child in children), 0.05)
    for child in children:
        child.begin()
    choose = random.Random(0)
    end = time.monotonic() + seconds
    progress, kills = end, 0
    while time.monotonic() < end or kills < PROCESSES:
        assert time.monotonic() < progress + PATIENCE_S, "nothing happens"
        time.sleep(choose.uniform(0.05, 0.4))
        victim = choose.choice(children)
        # Where other programs take the processors, those that are killed as soon as they are ready would do nothing.
        if victim.told() > 0:
            victim.kill()
            victim.start()
            victim.begin()
            progress, kills = time.monotonic(), kills + 1
    for child in children:
        child.kill()
    memory = make(embedder=WordEmbedder(32))
    done = 0
    for child in children:
        done += check(memory, child)
    assert done >= kills
    assert Connection(str(tmp_path / "memory" / "memory.db")).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    memory.maintain(full=True)
    for child in children:
        found = memory.search("said", 10_000, user_id=child.user, rerank=False)["results"]
        stored = memory.get_all(user_id=child.user, top_k=10_000)["results"]
        assert {hit["id"] for hit in found} == {m["id"] for m in stored}, "indexes and rows agree"


def test_a_process_ends_with_the_one_that_started_it(make: Make, tmp_path: Path) -> None:
    make(embedder=WordEmbedder(32)).close()
    child = Child(tmp_path / "memory", tmp_path, "u1")
    child.start()
    child.begin()
    until(lambda: child.told() > 0, 0.05)
    assert child.process is not None
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.process.wait(PATIENCE_S) == 1


def check(memory: Memory, child: Child) -> int:
    """Compares the reports of a place's processes with the stored memories. Returns the number of reported changes."""
    expected: dict[str, str | None] = {}  # id -> text, None for deleted
    changes: dict[str, list[str | None]] = {}
    open_ends: list[dict[str, Any]] = []
    done = 0
    for lines in child.lines():
        assert all(not line["strangers"] for line in lines if line["event"] == "searched")
        if lines and lines[-1]["event"] == "begin":
            open_ends.append(lines[-1])
        for line in lines:
            if line["event"] != "done":
                continue
            done += 1
            pairs = (
                zip(line["ids"], line["texts"], strict=True)
                if line["verb"] == "add"
                else [(line["id"], line.get("text"))]
            )
            for identifier, text in pairs:
                expected[identifier] = text
                changes.setdefault(identifier, []).append(text)
    stored = {m["id"]: m["memory"] for m in memory.get_all(user_id=child.user, top_k=10_000)["results"]}
    perhaps = {line["id"]: line.get("text") for line in open_ends if "id" in line}
    for identifier, text in expected.items():
        assert stored.get(identifier) in {text, perhaps.get(identifier, text)}, f"{identifier} was said to be {text!r}"
    unsaid = [text for identifier, text in stored.items() if identifier not in expected]
    begun = [text for line in open_ends for text in line.get("texts", ())]
    assert set(unsaid) <= set(begun), "only what was begun when its process died may be there without having been said"
    for identifier in {*expected, *stored}:
        history = memory.history(identifier)
        assert history[0]["event"] == "ADD"
        for before, after in itertools.pairwise(history):
            assert after["old_memory"] == before["new_memory"], "the history has a gap"
        assert history[-1]["new_memory"] == stored.get(identifier)
        told = [line["new_memory"] for line in history]
        said = changes.get(identifier, [])
        assert [text for text in told if text in said] == said, "the history misses a change"
    return done


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
