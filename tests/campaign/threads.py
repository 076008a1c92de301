"""Works on one collection or memory from eight threads, within one limit: `threads.py KIND SEED --memory LIMIT`. Exit
code 2, with one sentence, when the ledger refused a call."""

from __future__ import annotations

import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from edge.apps.collection.collection import Collection
from edge.apps.memory.memory import Memory
from edge.errors import EdgeError

THREADS = 8
CALLS = 3
_WORDS = ("river", "flood", "water", "bridge", "stone", "letter", "answer", "study")


def _texts(chance: random.Random) -> list[str]:
    return [" ".join(chance.choices(_WORDS, k=chance.randint(5, 400))) for _ in range(chance.randint(1, 8))]


def main() -> None:
    """Opens, works, closes."""
    _, kind, seed, _, limit = sys.argv
    refused: list[EdgeError] = []

    def work(number: int) -> None:
        chance = random.Random(f"{seed}:{number}")
        for _ in range(CALLS):
            own: dict[str, Any] = {"user_id": f"u{chance.randrange(3)}"} if kind == "memory" else {}
            try:
                if chance.random() < 0.5:
                    opened.add(_texts(chance), **own)
                else:
                    opened.search(chance.choice(_WORDS), rerank=chance.random() < 0.5, **own)
            except EdgeError as error:
                refused.append(error)

    with tempfile.TemporaryDirectory() as folder:
        open_one: Any = {"collection": Collection, "memory": Memory}[kind]
        with open_one(Path(folder, kind), memory=limit) as opened:
            if kind == "collection":
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
