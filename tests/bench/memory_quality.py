"""Measures what the agent memory finds: evidence of questions about conversations, and actions for reworded tasks."""

from __future__ import annotations

import gzip
import json
import math
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.texts import Task, tasks
from edge.apps.memory.actions import ActionCache, ActionExample
from edge.apps.memory.arguments import Scope, local_now
from edge.apps.memory.filters import Condition
from edge.apps.memory.memory import Memory
from edge.apps.memory.searching import DEPTH, Searcher
from edge.apps.store.lexical import LexicalIndex
from edge.errors import InputError

_K = 10
_PLAIN = "bench_plain"


def ask_evidence(task: dict[str, Any]) -> dict[str, Any]:
    """Stores every conversation of the task's `data` as a run of its own, and asks its questions in that run.

    The data has BEIR's layout: `_id` is `conversation/turn`, and a turn's `title` is the date of its session.
    """
    data = Path(task["data"])
    turns, questions, evidence = read_conversations(data)
    if task["questions"]:
        questions = questions[:: max(1, len(questions) // task["questions"])]
    with tempfile.TemporaryDirectory() as folder, Memory(folder, memory=task["memory"]) as memory:
        started = time.perf_counter()
        for conversation, sessions in turns.items():
            for when, said in sessions.items():
                messages = [
                    {"role": "user", "content": text, "metadata": {"turn": identifier}} for identifier, text in said
                ]
                memory.add(messages, run_id=conversation, timestamp=_moment(when))
        added_s = time.perf_counter() - started
        scores = _ask(memory, questions, evidence)
    total = sum(len(said) for sessions in turns.values() for said in sessions.values())
    return {"turns": total, "questions": len(questions), "added_s": added_s, "systems": scores}


def _ask(
    memory: Memory, questions: Sequence[dict[str, Any]], evidence: Mapping[str, set[str]]
) -> dict[str, dict[str, float]]:
    searcher = Searcher(memory.store, local_now)
    plain = _plain_index(memory)
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for question in questions:
        scope = Scope(run_id=question["_id"].split("/")[0])
        text, right = question["text"], evidence[question["_id"]]
        with memory.store.read() as db:
            inside = "+rowid IN (SELECT id FROM memories WHERE run_id = ?)"
            ids = [i for i, _ in plain.search(db, text, _K, where=inside, params=[scope.run_id])]
            names = dict(db.execute("SELECT id, metadata FROM memories WHERE run_id = ?", (scope.run_id,)))
        _count(sums["bm25, text alone"], [json.loads(names[i])["turn"] for i in ids], right)
        started = time.perf_counter()
        found = searcher.retrieve(text, scope, Condition("1"), DEPTH, show_expired=False)
        fused = [i for i, _ in found.fused()]
        sums["fused"]["seconds"] += time.perf_counter() - started
        orders = {
            "bm25": sorted(found.words, key=lambda i: (-found.words[i], i)),
            "vectors": sorted(found.near, key=lambda i: (-found.near[i], i)),
            "fused": fused,
        }
        for name, order in orders.items():
            _count(sums[name], [found.records[i].metadata["turn"] for i in order[:_K]], right)
        started = time.perf_counter()
        results = memory.search(text, _K, run_id=scope.run_id)["results"]
        sums["fused + rerank"]["seconds"] += time.perf_counter() - started
        _count(sums["fused + rerank"], [hit["metadata"]["turn"] for hit in results], right)
    return {
        name: {measure: total / len(questions) for measure, total in totals.items()} for name, totals in sums.items()
    }


def _plain_index(memory: Memory) -> LexicalIndex:
    """A BM25 index over the texts without their dates, as the simplest baseline."""
    index = LexicalIndex(_PLAIN)
    with memory.store.write() as db:
        db.execute(LexicalIndex.create(_PLAIN))
        rows = db.execute("SELECT id, text FROM memories").fetchall()
        index.add(db, [row[0] for row in rows], [row[1] for row in rows])
    return index


def _count(sums: dict[str, float], ranking: Sequence[str], right: set[str]) -> None:
    """Adds the recall@10 and nDCG@10 (binary gains) of one question to the sums."""
    gains = [turn in right for turn in ranking[:_K]]
    ideal = sum(1 / math.log2(rank + 2) for rank in range(min(_K, len(right))))
    sums["recall"] += sum(gains) / len(right)
    sums["ndcg"] += sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains)) / ideal


Sessions = dict[str, list[tuple[str, str]]]


def read_conversations(data: Path) -> tuple[dict[str, Sessions], list[dict[str, Any]], dict[str, set[str]]]:
    """The turns by conversation and date, the questions that have evidence, and their evidence."""
    turns: dict[str, Sessions] = defaultdict(lambda: defaultdict(list))
    for turn in _lines(data / "corpus.jsonl.gz"):
        turns[turn["_id"].split("/")[0]][turn["title"]].append((turn["_id"], turn["text"]))
    evidence: dict[str, set[str]] = defaultdict(set)
    for line in (data / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        asked, named, score = line.split("\t")
        if int(score) > 0:
            evidence[asked].add(named)
    questions = [question for question in _lines(data / "queries.jsonl") if question["_id"] in evidence]
    if not questions:
        raise InputError(f"{data} has no questions with evidence")
    return turns, questions, evidence


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            yield from map(json.loads, file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


_WHEN = re.compile(r"(\d+):(\d+) (am|pm) on (\d+) (\w+), (\d+)")


def _moment(when: str) -> datetime:
    """`1:56 pm on 8 May, 2023` as a moment."""
    match = _WHEN.fullmatch(when)
    if match is None:
        raise InputError(f"{when!r} is no date of a session; it is written like 1:56 pm on 8 May, 2023")
    hour, minute, half, day, month, year = match.groups()
    return datetime.strptime(
        f"{day} {month[:3]} {year} {int(hour) % 12 + 12 * (half == 'pm')}:{minute}", "%d %b %Y %H:%M"
    )


def look_up_actions(task: dict[str, Any]) -> dict[str, Any]:
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
                **_counted(memory.actions, asked, ids, rerank),
            }  # fmt: skip
        report["stored"], report["asked"] = len(stored), len(asked)
    return report


def _example(task: Task, ids: dict[str, str]) -> ActionExample:
    return ActionExample(task.text, task.state, ids.get(task.intent))


def _counted(actions: ActionCache, asked: list[Task], ids: dict[str, str], rerank: bool) -> dict[str, float]:
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


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Looks up actions or asks for evidence, as the task's name says."""
    return look_up_actions(task) if task["name"] == "actions" else ask_evidence(task)
