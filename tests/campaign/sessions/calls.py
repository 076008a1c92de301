"""Calls every class of the library from eight threads on one ledger: `calls.py PLACE SEED COUNT --memory LIMIT`.

The last line of its output is JSON: how many calls were `done`, how many of them the ledger or a check `refused`, the
memories that are `kept`, and the first exception that is none of the library's own (`broken`).
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Collection
from edge.apps.memory.memory import Memory
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.errors import EdgeError
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker

THREADS = 8
_WORDS = ("river", "flood", "water", "bridge", "stone", "letter", "\ufdfa", "世界", "🦊🦊", "MDEyMzQ1Njc4OQ", "x" * 500)


def _words(chance: random.Random, most: int) -> str:
    return " ".join(chance.choices(_WORDS, k=chance.randint(1, most)))


class Calls:
    """The open objects, and the outcomes of the calls."""

    def __init__(self, place: Path, limit: int) -> None:
        self.budget = MemoryBudget(limit)
        shared: dict[str, Any] = {"budget": self.budget, "config": Config.load()}
        self.collection = Collection(place / "collection", **shared)
        self.memory = Memory(place / "memory", user_id="a", **shared)
        self.reranker = Reranker(**shared)
        self.embedder = Embedder(**shared)
        self.collection.add("The river floods in spring.")
        self.assistant = Assistant(self.collection)
        self.kept: dict[str, str] = {}
        self.done = 0
        self.refused = 0
        self.broken = ""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes everything."""
        for opened in (self.assistant, self.embedder, self.reranker, self.memory, self.collection):
            opened.close()

    def work(self, chance: random.Random, count: int) -> None:
        """Calls so often."""
        calls: tuple[Callable[[random.Random], Any], ...] = (
            self._add, self._add, self._search, self._search, self._ask, self._remember, self._remember, self._recall,
            self._correct, self._forget, self._rank, self._embed, self._index, self._large,
        )  # fmt: skip
        for _ in range(count):
            try:
                chance.choice(calls)(chance)
            except EdgeError:
                with self._lock:
                    self.refused += 1
            except BaseException as error:
                trace = error.__traceback__
                while trace is not None and trace.tb_next is not None:
                    trace = trace.tb_next
                where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else "?"
                self.broken = self.broken or f"{type(error).__name__} at {where}: {error}"
            with self._lock:
                self.done += 1

    def _add(self, chance: random.Random) -> None:
        self.collection.add([_words(chance, 400) for _ in range(chance.randint(1, 8))])

    def _search(self, chance: random.Random) -> None:
        self.collection.search(_words(chance, 60), chance.choice((1, 10, 200)), rerank=chance.random() < 0.5)

    def _ask(self, chance: random.Random) -> None:
        self.assistant.ask(f"where is the {_words(chance, 5)}?")

    def _remember(self, chance: random.Random) -> None:
        texts = [f"{_words(chance, 200)} {chance.getrandbits(40):x}" for _ in range(chance.randint(1, 8))]
        added = self.memory.add(texts)["results"]
        with self._lock:
            self.kept.update({result["id"]: text for result, text in zip(added, texts, strict=True)})

    def _recall(self, chance: random.Random) -> None:
        self.memory.search(_words(chance, 60), 20, rerank=chance.random() < 0.5, neighbours=chance.choice((0, 2)))

    def _taken(self, chance: random.Random) -> tuple[str, str]:
        """A memory that no other thread changes now."""
        with self._lock:
            name = chance.choice(sorted(self.kept) or ["none"])
            return name, self.kept.pop(name, "")

    def _correct(self, chance: random.Random) -> None:
        name, text = self._taken(chance)
        new = f"{_words(chance, 100)} {chance.getrandbits(40):x}"
        try:
            self.memory.update(name, new)
            text = new
        finally:
            if text:
                with self._lock:
                    self.kept[name] = text

    def _forget(self, chance: random.Random) -> None:
        name, text = self._taken(chance)
        try:
            self.memory.delete(name)
        except EdgeError:
            if text:
                with self._lock:
                    self.kept[name] = text
            raise

    def _rank(self, chance: random.Random) -> None:
        self.reranker.rank(_words(chance, 9), [_words(chance, 200) for _ in range(chance.choice((1, 20, 300)))], 5)

    def _embed(self, chance: random.Random) -> None:
        self.embedder.embed([_words(chance, 300) for _ in range(chance.choice((1, 20, 300)))])

    def _index(self, chance: random.Random) -> None:
        documents = sorted(Path("hostile").resolve().iterdir())
        self.collection.add([chance.choice(documents), Path("files").resolve() / "english.txt"])

    def _large(self, chance: random.Random) -> None:
        """Far too much at once: a text of megabytes, or very many small ones."""
        text = "river bridge " * int(10 ** chance.uniform(4, 6))
        many = ["river"] * chance.choice((1_000, 10_000))
        chance.choice((
            lambda: self.memory.add(text), lambda: self.memory.add(many), lambda: self.memory.search(text),
            lambda: self.collection.search(text, rerank=False), lambda: self.assistant.ask(text),
            lambda: self.embedder.embed([text]), lambda: self.reranker.rank(text[:200_000], ["river"], 1),
            lambda: self.reranker.rank("river", [text], 1), lambda: self.embedder.embed(many),
        ))()  # fmt: skip


def main() -> None:
    """Opens, works, closes, and reports the outcome."""
    place, seed, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    calls = Calls(place, parse_size(sys.argv[5]))
    try:
        threads = [
            threading.Thread(target=calls.work, args=(random.Random(f"{seed}:{number}"), -(-count // THREADS)))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        calls.close()
    print(json.dumps({"done": calls.done, "refused": calls.refused, "broken": calls.broken, "kept": calls.kept}))


if __name__ == "__main__":
    main()
