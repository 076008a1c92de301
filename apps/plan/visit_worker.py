"""Answers questions with one schedule in a process of its own, and reports the times and the memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from edge.apps.bench.process import serve


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Asks every question once. The first one warms up and is not reported."""
    from edge.apps.assistant.assistant import Assistant
    from edge.apps.collection.collection import Collection
    from edge.apps.plan.machine import options_of
    from edge.config import Config

    config = Config.load(flags={"memory": task["memory"], **task["flags"]})
    options = options_of(task["depth"], task["passages"], task["max_tokens"])
    first, *others = task["questions"]
    with (
        Collection(Path(task["collection"]), config=config, read_only=True) as collection,
        Assistant(collection, pipeline=task["pipeline"], options=options, kv_cache=False) as assistant,
    ):
        troubles = [str(trouble) for trouble in collection.health()]
        assistant.ask(first)
        started = time.perf_counter()
        answers = [assistant.ask(question) for question in others]
        taken = time.perf_counter() - started
    stats = [answer.stats for answer in answers]
    return {
        "seconds": [each.seconds for each in stats],
        "stages": {
            "embed": [each.embed_s for each in stats], "search": [each.search_s for each in stats],
            "rerank": [each.rerank_s for each in stats], "write": [each.generate_s for each in stats],
        },
        # A question is refused if no round of retrieval keeps a passage. Then no answer is written.
        "written": [not a.rounds or any(found.passages for found in a.rounds) for a in answers],
        "per_s": len(stats) / taken, "troubles": troubles,
    }  # fmt: skip


if __name__ == "__main__":
    serve(work)
