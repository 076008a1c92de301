"""Measures the action cache on reworded tasks: hits, wrong hits and time, with and without the reranker."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

from edge.apps.bench.memory_texts import Task, tasks
from edge.apps.bench.process import serve
from edge.apps.memory.actions import ActionCache, ActionExample
from edge.apps.memory.memory import Memory


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Stores one wording of each of `intents` tasks. It calibrates on the other wordings of half of them and of tasks
    that are not stored, and measures on the other half.

    Reports, with and without reranking: the share of lookups that were hits, the share of stored tasks that were found,
    the share of hits that were wrong, the share of tasks without a stored trajectory that were hit, and the
    milliseconds of a lookup.
    """
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, Memory(folder, user_id="bench", memory=task["memory"]) as memory:
        groups = tasks(2 * task["intents"], seed=0)
        stored, absent = groups[: task["intents"]], groups[task["intents"] :]
        ids = {
            group[0].intent: memory.actions.add(group[0].text, group[0].intent, state=group[0].state)
            for group in stored
        }
        for name, rerank in (("reranked", True), ("vectors alone", False)):
            examples = [_example(one, ids) for group in stored[::2] + absent[::2] for one in group[1:]]
            fitted = memory.actions.calibrate(examples, rerank=rerank, most_wrong=task["most_wrong"])
            asked = [one for group in stored[1::2] + absent[1::2] for one in group[1:]]
            report[name] = {
                "threshold": fitted.threshold, "calibrated_on": fitted.examples, "expected_wrong": fitted.wrong_rate,
                **_count(memory.actions, asked, ids, rerank),
            }  # fmt: skip
        report["stored"], report["asked"] = len(stored), len(asked)
    return report


def _example(task: Task, ids: dict[str, str]) -> ActionExample:
    return ActionExample(task.text, task.state, ids.get(task.intent))


def _count(actions: ActionCache, asked: list[Task], ids: dict[str, str], rerank: bool) -> dict[str, float]:
    hits = wrong = right = strays = 0
    milliseconds = []
    for one in asked:
        started = time.perf_counter()
        hit = actions.lookup(one.text, state=one.state, rerank=rerank)
        milliseconds.append((time.perf_counter() - started) * 1e3)
        if hit is not None:
            hits += 1
            right += hit.id == ids.get(one.intent)
            wrong += hit.id != ids.get(one.intent)
            strays += one.intent not in ids
    known = sum(one.intent in ids for one in asked)
    return {
        "hit_rate": hits / len(asked),
        "found": right / known,
        "wrong_of_hits": wrong / max(1, hits),
        "wrong_of_absent": strays / (len(asked) - known),
        "lookup_ms": statistics.median(milliseconds),
    }


if __name__ == "__main__":
    serve(work)
