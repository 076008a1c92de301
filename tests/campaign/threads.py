"""Works on one collection or memory from eight threads, within one limit: `threads.py KIND SEED --memory LIMIT`. Exit
code 2, with one sentence, when the ledger refused a call."""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from edge.apps.collection.collection import Collection
from edge.apps.memory.memory import Memory
from edge.errors import EdgeError

THREADS = 8
CALLS = 3
_WORDS = ("river", "flood", "water", "bridge", "stone", "letter", "answer", "study")


def _texts(chance: random.Random) -> list[str]:
    return [" ".join(chance.choices(_WORDS, k=chance.randint(5, 400))) for _ in range(chance.randint(1, 8))]


def _on_collection(collection: Collection, chance: random.Random) -> None:
    if chance.random() < 0.5:
        collection.add(_texts(chance))
    else:
        collection.search(chance.choice(_WORDS), rerank=chance.random() < 0.5)


def _on_memory(memory: Memory, chance: random.Random) -> None:
    user = f"u{chance.randrange(3)}"
    if chance.random() < 0.5:
        memory.add(_texts(chance), user_id=user)
    else:
        memory.search(chance.choice(_WORDS), user_id=user)


def main() -> None:
    """Opens, works, closes."""
    _, kind, seed, _, limit = sys.argv
    refused: list[EdgeError] = []
    broken: list[BaseException] = []

    def once(call: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            call(chance)
        except EdgeError as error:
            refused.append(error)
        except BaseException as error:
            broken.append(error)

    def each(number: int, call: Callable[[random.Random], None]) -> None:
        chance = random.Random(f"{seed}:{number}")
        for _ in range(CALLS):
            once(call, chance)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, kind)
        opened = Collection(path, memory=limit) if kind == "collection" else Memory(path, memory=limit)
        with opened:
            if isinstance(opened, Collection):
                opened.add("The river floods in spring.")
                work: Callable[[random.Random], None] = lambda chance: _on_collection(opened, chance)  # noqa: E731
            else:
                work = lambda chance: _on_memory(opened, chance)  # noqa: E731
            threads = [threading.Thread(target=each, args=(number, work)) for number in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    if broken:
        raise broken[0]
    if refused:
        raise refused[0]


if __name__ == "__main__":
    try:
        main()
    except EdgeError as error:
        print(f"edge: {error}", file=sys.stderr)
        sys.exit(2)
