"""A process that adds, updates, deletes and searches memories until it is killed, and reports each change.

Run as a script: `memory_child.py DIRECTORY USER SEED`. It begins when a line comes in, and ends with the process that
started it. A line before each change announces it, and a line after it confirms it. Every confirmed change must be
found later, however the process was killed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

from waiting import end_with_parent
from words import WordEmbedder, WordReranker

from edge.apps.memory.memory import Memory


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(directory: str, user: str, seed: int) -> None:
    choose = random.Random(seed)
    memory = Memory(directory, embedder=WordEmbedder(32), reranker=WordReranker(), memory="40GB")
    known = [found["id"] for found in memory.get_all(user_id=user, top_k=1_000)["results"]]
    say(event="ready")
    os.read(0, 1)
    end_with_parent()
    for number in range(sys.maxsize):
        text = f"{user} said {choose.randrange(10_000)} and {choose.randrange(10_000)} at {seed} {number}"
        what = choose.random()
        if what < 0.5 or not known:
            texts = [text, f"{text} as well"][: choose.randint(1, 2)]
            say(event="begin", verb="add", texts=texts)
            added = [found["id"] for found in memory.add(texts, user_id=user)["results"]]
            say(event="done", verb="add", ids=added, texts=texts)
            known += added
        elif what < 0.75:
            chosen = choose.choice(known)
            say(event="begin", verb="update", id=chosen, text=text)
            memory.update(chosen, text)
            say(event="done", verb="update", id=chosen, text=text)
        elif what < 0.85:
            chosen = known.pop(choose.randrange(len(known)))
            say(event="begin", verb="delete", id=chosen)
            memory.delete(chosen)
            say(event="done", verb="delete", id=chosen)
        else:
            found = memory.search("said", 20, user_id=user, rerank=choose.random() < 0.5, neighbours=1)["results"]
            strangers = [hit for hit in found if hit["user_id"] != user or not hit["memory"].startswith(user)]
            strangers += [t for hit in found for t in hit["neighbours"] if t["user_id"] != user]
            say(event="searched", found=len(found), known=len(known), strangers=strangers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
