"""A writer that is killed at any moment loses nothing that was committed, and leaves nothing twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge.apps.collection.collection import Collection

KILLS = 30
FILES = 24
MARK = re.compile(r"f\d+p\d+v\d+")

WRITER = '''
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import edge.apps.collection.intake as intake
import edge.apps.collection.writing as writing
from edge.apps.collection.collection import Collection
from edge.apps.documents.base import Extracted
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.plain import text_blocks
from edge.budget import MemoryBudget
from edge.config import Config
from edge.runtimes.embedder import Embedder

intake.BATCH = 8  # so that files go in part by part, too


class Quick(Embedder):
    """Stands for a model: vectors that cost nothing."""

    def __init__(self):
        self.model = SimpleNamespace(name="quick", fingerprint="quick", path=Path("quick"))

    dim = 16

    def embed(self, texts, *, query=False):
        rows = [np.random.default_rng(abs(hash(text)) % 2**32).standard_normal(16) for text in texts]
        vectors = np.array(rows, np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Plain:
    """Reads text files here: a process for it would take longer to start than this one may live."""

    def __init__(self, **options):
        pass

    def extract(self, path, following=()):
        return Extracted("text", path.name, tuple(chunks_of(text_blocks(path.read_text()), path.name)))

    def close(self):
        pass


writing.Extractor = Plain
with Collection(place, config=Config(memory=10**11), budget=MemoryBudget(10**11, baseline=0), embedder=Quick()) as one:
    ready.send("ready")
    while True:
        one.index(folder)
        ready.send("done")
        ready.recv()
'''


class Files:
    """A folder of marked texts, which changes between two kills."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self.chance = chance
        self.versions: Counter[int] = Counter()
        path.mkdir()
        for number in range(FILES):
            self.write(number)

    def write(self, number: int) -> None:
        self.versions[number] += 1
        count = self.chance.choice([1, 2, 3, 30])
        # Every part keeps its version unless it is the one that changes: most chunks stay.
        changed = self.chance.randrange(count)
        marks = [f"f{number}p{p}v{self.versions[number] if p == changed else 0}" for p in range(count)]
        text = "\n\n".join(f"{mark} " + "words of a paragraph that fills a chunk " * 25 for mark in marks)
        file = self.path / f"{number}.txt"
        file.write_text(text)
        os.utime(file, ns=(moment := self.versions[number] * 10**9, moment))

    def change(self) -> None:
        for number in self.chance.sample(range(FILES), 6):
            file = self.path / f"{number}.txt"
            if file.exists() and self.chance.random() < 0.3:
                file.unlink()
            else:
                self.write(number)

    def hashes(self) -> dict[str, bytes]:
        return {str(f): blake2b(f.read_bytes(), digest_size=16).digest() for f in self.path.iterdir()}


def taken_in(collection: Collection, hashes: dict[str, bytes]) -> set[str]:
    """Files that stand in the collection as they are on disk; asserts that their chunks are theirs, each once."""
    found = set()
    with collection.database.read() as db:
        for file, path, status, digest in db.execute("SELECT id, path, status, hash FROM files").fetchall():
            marks = [
                mark
                for (text,) in db.execute("SELECT text FROM chunks WHERE file = ?", (file,))
                for mark in MARK.findall(text)
            ]
            assert len(marks) == len(set(marks)), (path, Counter(marks).most_common(1))
            if status == "indexed" and path in hashes and digest == hashes[path]:
                found.add(path)
                assert sorted(marks) == sorted(MARK.findall(Path(path).read_text())), path
    return found


def test_thirty_kills(tmp_path: Path, consistent: Callable[[Collection], None], make: Callable[..., Any]) -> None:
    chance = random.Random(1)
    files = Files(tmp_path.resolve() / "files", chance)
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    method = "spawn" if sys.platform == "win32" else "forkserver"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        # What a writer imports in any case. Each of them would load it anew.
        context.set_forkserver_preload(
            [
                "edge.apps.collection.collection", "edge.apps.collection.writing", "edge.apps.documents.extraction",
                "edge.apps.documents.chunking", "edge.apps.documents.plain", "edge.devices.cpu",
                "edge.devices.faiss_codec", "edge.ivf.maintenance.compaction",
                "edge.ivf.maintenance.retraining", "edge.runtimes.embedder", "faiss",
            ]
        )  # fmt: skip
    collection = None
    committed: dict[str, bytes] = {}
    interrupted = 0
    lasted = None  # seconds that the last whole pass took here, so that kills fall into a pass on any machine
    for _ in range(KILLS):
        ours, theirs = context.Pipe()
        values = {"place": tmp_path / "collection", "folder": files.path, "ready": theirs}
        process = context.Process(target=runpy.run_path, args=(str(script),), kwargs={"init_globals": values})
        process.start()
        assert ours.recv() == "ready"
        theirs.close()  # so that a writer that fails is noticed
        began = time.perf_counter()
        finished = ours.poll(lasted and chance.random() * lasted * 1.25)
        assert not finished or ours.recv()
        if finished:
            lasted = time.perf_counter() - began
        process.kill()
        process.join()
        ours.close()
        interrupted += not finished

        hashes = files.hashes()
        collection = collection or make()
        now = taken_in(collection, hashes)
        consistent(collection)
        assert not {path for path, digest in committed.items() if hashes.get(path) == digest} - now
        assert not finished or now == set(hashes)
        committed = {path: hashes[path] for path in now}
        files.change()
    assert interrupted > KILLS // 5
