"""Works on one collection or memory from eight threads, within one limit: `threads.py KIND SEED --memory LIMIT`. Exit
code 2, with one sentence, when the ledger refused a call."""

from __future__ import annotations

import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
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

    def work(number: int) -> None:
        chance = random.Random(f"{seed}:{number}")
        for _ in range(CALLS):
            try:
                if isinstance(opened, Collection):
                    _on_collection(opened, chance)
                else:
                    _on_memory(opened, chance)
            except EdgeError as error:
                refused.append(error)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, kind)
        with Collection(path, memory=limit) if kind == "collection" else Memory(path, memory=limit) as opened:
            if isinstance(opened, Collection):
                opened.add("The river floods in spring.")
            with ThreadPoolExecutor(THREADS) as threads:
                list(threads.map(work, range(THREADS)))  # an error of any other kind is raised
    if refused:
        raise refused[0]


if __name__ == "__main__":
    try:
        main()
    except EdgeError as error:
        print(f"edge: {error}", file=sys.stderr)
        sys.exit(2)
