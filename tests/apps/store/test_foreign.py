"""Any SQLite program may read a collection or memory, and checkpoint or vacuum it at any time: nothing is harmed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest
from naive.words import WordEmbedder, WordReranker

from edge.apps.collection.care import CollectionCare
from edge.apps.collection.collection import Collection
from edge.apps.memory.care import MemoryCare
from edge.apps.memory.memory import Memory
from edge.apps.store.care import CheckReport, check
from edge.budget import MemoryBudget
from edge.config import Config
from edge.runtimes.embedder import Embedder

FOREIGN = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
print("open", flush=True)
for statement in sys.stdin:
    print(db.execute(statement).fetchall(), flush=True)
db.close()
"""
FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
WRITER = "import sys; from test_foreign import write; write(sys.argv[1], sys.argv[2])"


class Foreign:
    """Python's own `sqlite3` in another process: two SQLite libraries in one process would break each other's locks."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", FOREIGN, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "open\n"

    def __call__(self, statement: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(statement, file=self._process.stdin, flush=True)
        said = self._process.stdout.readline().strip()
        assert said, f"{statement} failed"
        return said

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


class Quick(Embedder):
    """Stands for a model."""

    dim = 16

    def __init__(self) -> None:
        self.model: Any = SimpleNamespace(name="quick", fingerprint="quick", path=Path("quick"))

    def embed(self, texts: Any, *, query: bool = False) -> npt.NDArray[np.float32]:
        del query
        rows = np.array([np.random.default_rng(len(text)).standard_normal(self.dim) for text in texts], np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Kept(Protocol):
    """A collection or a memory."""

    path: Path
    table: str

    def add(self, text: str) -> None: ...
    def texts(self) -> list[str]: ...
    def check(self) -> CheckReport: ...
    def close(self) -> None: ...


class InCollection:
    table = "chunks"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "edge.db"
        self._config = Config(memory=10**11)
        self._open = Collection(folder, config=self._config, budget=_wide(), embedder=Quick())

    def add(self, text: str) -> None:
        self._open.add(text)

    def texts(self) -> list[str]:
        return sorted(hit.text for hit in self._open.search("fact", 1000, rerank=False))

    def check(self) -> CheckReport:
        return check(CollectionCare(self._folder, self._config, _wide()), read_data=True)

    def close(self) -> None:
        self._open.close()


class InMemory:
    table = "memories"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "memory.db"
        self._open = self._opened()

    def _opened(self) -> Memory:
        return Memory(self._folder, embedder=WordEmbedder(), reranker=WordReranker(), budget=_wide())

    def add(self, text: str) -> None:
        self._open.add(text, user_id="ann")

    def texts(self) -> list[str]:
        return sorted(found["memory"] for found in self._open.get_all(user_id="ann", top_k=10_000)["results"])

    def check(self) -> CheckReport:
        return check(MemoryCare(self._folder, self._opened), read_data=True)

    def close(self) -> None:
        self._open.close()


KINDS: dict[str, Callable[[Path], Kept]] = {"collection": InCollection, "memory": InMemory}


def _wide() -> MemoryBudget:
    return MemoryBudget(10**11, baseline=0)


def write(kind: str, folder: str) -> None:
    """Adds facts until it is killed, and says each that is stored."""
    with closing(KINDS[kind](Path(folder))) as kept:
        for number in range(10**6):
            kept.add(f"fact {os.getpid()}x{number} " + "of a river " * (number % 40))
            print(number, flush=True)


@pytest.fixture(params=sorted(KINDS))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Kept]]:
    opened: list[Kept] = []

    def one() -> Kept:
        opened.append(KINDS[request.param](tmp_path / request.param))
        return opened[-1]

    yield one
    for kept in opened:
        kept.close()


def test_a_foreign_reader_that_closes_last_loses_nothing(make: Callable[[], Kept]) -> None:
    first = make()
    first.add("fact one")
    first.close()
    reader = Foreign(first.path)
    reader(f"SELECT count(*) FROM {first.table}")
    second = make()
    second.add("fact two")
    second.close()
    assert reader(f"SELECT count(*) FROM {first.table}") == "[(2,)]"
    reader.close()
    third = make()
    assert third.texts() == ["fact one", "fact two"]
    third.close()
    assert third.check().findings == []


@pytest.mark.parametrize("statement", ["PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "REINDEX", "PRAGMA optimize"])
def test_foreign_statements_between_ours_harm_nothing(make: Callable[[], Kept], statement: str) -> None:
    kept = make()
    with closing(Foreign(kept.path)) as foreign:
        texts = []
        for number in range(6):
            texts.append(f"fact {number} " + "of a long river " * 400)
            kept.add(texts[-1])
            if number % 2:
                foreign(statement)
            assert {text[:6] for text in kept.texts()} >= {text[:6] for text in texts}
    kept.close()
    assert {text[:6] for text in make().texts()} >= {text[:6] for text in texts}
    assert kept.check().findings == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_killed_writer_and_one_foreign_select_lose_nothing(kind: str, tmp_path: Path) -> None:
    chance = random.Random(kind)
    stored = 0
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, kind, str(tmp_path / "kept")]
        writer = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(FOLDERS)},
        )  # fmt: skip
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 12)):
            assert writer.stdout.readline(), "the writer failed"
            stored += 1
        time.sleep(chance.random() * 0.05)
        writer.send_signal(signal.SIGKILL)
        stored += len(writer.stdout.readlines())
        writer.wait()
        name, table = {"collection": ("edge.db", "chunks"), "memory": ("memory.db", "memories")}[kind]
        with closing(Foreign(tmp_path / "kept" / name)) as foreign:  # the first one that uses the log
            foreign(f"SELECT count(*) FROM {table}")
        with closing(KINDS[kind](tmp_path / "kept")) as kept:
            found = len(kept.texts())
        assert kept.check().findings == []
        assert stored <= found <= stored + 1, "one more may be stored and not said yet"
        stored = found
