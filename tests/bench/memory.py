"""`memory`: measures quality, speed and memory use of the agent memory, beside BM25 and mem0.

Quality is what the memory finds: evidence of questions about conversations. Speed is that of adding
sentences one by one, and of searching; embedding is timed separately.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from bench.figures import Column, Figure, tabulate
from bench.options import Folder, Output, Rounds, Threads, WorkDir, benchmark, stated
from bench.process import in_turn, measure, processor, say, timed
from bench.rerank_peers import score
from bench.texts import memories, questions
from edge.apps.memory.arguments import Scope, local_now, stamp
from edge.apps.memory.filters import Condition
from edge.apps.memory.memory import Memory
from edge.apps.memory.searching import Searcher
from edge.apps.memory.validity import Asked
from edge.apps.store.lexical import LexicalIndex
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.errors import InputError
from edge.models.training.corpora import Corpus, load
from edge.runtimes.embedder import Embedder

Floats = npt.NDArray[np.float32]

_K = 10
_PLAIN = "bench_plain"
_USER = "bench"
_BATCH = 1_000
_TIMES = ("search", "search_beside_embedding", "add", "add_beside_embedding")


@benchmark
def memory(
    *,
    data: Annotated[
        Folder | None,
        "Conversations with questions in BEIR's layout (such as LoCoMo); without it, quality is left out.",
    ] = None,
    questions: Annotated[int, "Only about so many of its questions (0: all)."] = 0,
    memories: Annotated[int, "Memories that are searched."] = 100_000,
    peer_memories: Annotated[int, "Memories when mem0 is beside it."] = 5_000,
    memory: Annotated[str, "Limit of the process."] = "300MB",
    searches: int = 100,
    adds: int = 100,
    rounds: Rounds = 2,
    mem0_python: Annotated[
        str | None, "A Python in which mem0ai and edge-rag are installed; this one if not given, if it has mem0ai."
    ] = None,
    threads: Threads = 2,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Find the evidence of questions about conversations; add to and search many memories."""
    folder, limit = work_dir / "memory", parse_size(memory)
    conditions = {"limit": limit, "threads": threads, "processor": processor(), "rounds": rounds}
    report: dict[str, Any] = {"conditions": conditions}
    if data is not None:
        say("quality: storing conversations, asking questions")
        task: dict[str, Any] = {"name": "quality", "data": str(data), "questions": questions, "memory": limit}
        report["quality"] = measure(ask_evidence, task, threads=threads)
    common = {"folder": str(folder), "searches": searches, "adds": adds, "memory": limit, "threads": threads}
    for count in (memories, peer_memories):
        say(f"speed: {count:,} memories (made once, in {folder})")
        measure(fill, common | {"name": "fill", "count": count}, threads=threads)

    def run(system: str, count: int = peer_memories) -> dict[str, Any]:
        """Measures one system in a process and a scratch folder of its own."""
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            task = common | {"name": system, "count": count, "scratch": scratch}
            if system == "edge":
                return measure(speed, task, threads=threads)
            return measure(speed_of_mem0, task, threads=threads, python=mem0_python or sys.executable)

    many = [run("edge", memories)]
    turns, left_out = in_turn(rounds, ("edge", "mem0"), run)
    report["speed"] = {"edge, many": many, **turns}
    own = [*many, *turns["edge"], *filter(None, [report.get("quality")])]
    held = max(found["peak_resident"] for found in own)
    output.put(report, figures(report), stated(conditions), left_out.values(), held=held, limit=limit)


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    if "quality" in report:
        quality = {"recall": Column("recall@10"), "ndcg": Column("nDCG@10"), "seconds": Column("time", "s")}
        yield from tabulate(report["quality"]["systems"], quality, "evidence of questions about conversations")
    columns = {f"{t}.{p}": Column(f"{t.replace('_', ' ')} {p}", "s") for t in _TIMES for p in ("p50", "p95")}
    rows = {
        f"{name.split(',')[0]}, {found[0]['rows']:,} memories": {
            **{t: {p: [run[t][p] for run in found] for p in ("p50", "p95")} for t in _TIMES},
            "peak_resident": [run["peak_resident"] for run in found],
        }
        for name, found in report["speed"].items()
    }
    yield from tabulate(rows, columns | {"peak_resident": Column("peak", "B")}, "searching and adding")


def ask_evidence(task: dict[str, Any]) -> dict[str, Any]:
    """Stores every conversation of the task's `data` as a run of its own, and asks its questions in that run.

    The data has BEIR's layout: `_id` is `conversation/turn`, and a turn's `title` is the date of its session.
    """
    corpus = load(Path(task["data"]))
    asked = [query for query in corpus.queries if query in corpus.test]
    if not asked:
        raise InputError(f"{task['data']} has no questions with evidence")
    if task["questions"]:
        asked = asked[:: max(1, len(asked) // task["questions"])]
    with tempfile.TemporaryDirectory() as folder, Memory(folder, memory=task["memory"]) as memory:

        def store(session: tuple[tuple[str, str], list[tuple[str, str]]]) -> None:
            (conversation, when), said = session
            messages = [{"role": "user", "content": text, "metadata": {"turn": turn}} for turn, text in said]
            memory.add(messages, run_id=conversation, timestamp=datetime.strptime(when, "%I:%M %p on %d %B, %Y"))

        _, seconds = timed(store, turns_of(corpus).items())
        scores = _ask(memory, corpus, asked)
    return {"turns": len(corpus.ids), "questions": len(asked), "added_s": sum(seconds), "systems": scores}


def turns_of(corpus: Corpus) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """The id and text of each turn, by conversation and date."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for turn, when, text in zip(corpus.ids, corpus.titles, corpus.texts, strict=True):
        found[corpus.scope(turn), when].append((turn, text))
    return found


def _ask(memory: Memory, corpus: Corpus, asked: Sequence[str]) -> dict[str, dict[str, float]]:
    searcher = Searcher(memory.store, local_now)
    plain = _plain_index(memory)
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for query in asked:
        scope, text, right = Scope(run_id=corpus.scope(query)), corpus.queries[query], set(corpus.test[query])
        with memory.store.read() as db:
            inside = "+rowid IN (SELECT id FROM memories WHERE run_id = ?)"
            ids = [i for i, _ in plain.search(db, text, _K, where=inside, params=[scope.run_id])]
            names = dict(db.execute("SELECT id, metadata FROM memories WHERE run_id = ?", (scope.run_id,)))
        _count(sums["bm25, text alone"], [json.loads(names[i])["turn"] for i in ids], right)
        started = time.perf_counter()
        shown = searcher.shown(scope, Condition("1"), show_expired=False)
        found = searcher.retrieve(text, scope, shown, _K, Asked(stamp(local_now())))
        fused = [i for i, _ in found.fused()]
        sums["fused"]["seconds"] += time.perf_counter() - started
        orders = {
            "bm25": sorted(found.words, key=lambda i: (-found.words[i], i)),
            "vectors": sorted(found.near, key=lambda i: (-found.near[i], i)),
            "fused": fused,
        }
        for name, order in orders.items():
            _count(sums[name], [json.loads(names[i])["turn"] for i in order[:_K]], right)
        started = time.perf_counter()
        results = memory.search(text, _K, run_id=scope.run_id)["results"]
        sums["fused + rerank"]["seconds"] += time.perf_counter() - started
        _count(sums["fused + rerank"], [hit["metadata"]["turn"] for hit in results], right)
    return {name: {measure: total / len(asked) for measure, total in totals.items()} for name, totals in sums.items()}


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
    sums["recall"] += len(right.intersection(ranking[:_K])) / len(right)
    sums["ndcg"] += score(ranking, dict.fromkeys(right, 1))


class Timed:
    """An embedder with known vectors, which measures the time that embedding takes."""

    def __init__(self, embedder: Embedder, known: dict[str, Floats] | None = None) -> None:
        self.embedder = embedder
        self.model = embedder.model  # so that a memory sees the fingerprint of the embedder itself
        self.dim = embedder.dim
        self.seconds = 0.0
        self._known = known or {}

    def embed(self, texts: Sequence[str], memory_action: str | None = None, *, query: bool = False) -> Any:
        """The vectors of a list of texts. For a single text, in which form mem0 calls it, one vector as a list."""
        if isinstance(texts, str):
            return self.embed([texts], query=memory_action == "search")[0].tolist()
        if all(text in self._known for text in texts):
            return np.stack([self._known[text] for text in texts])
        started = time.perf_counter()
        vectors = self.embedder.embed(texts, query=query)
        self.seconds += time.perf_counter() - started
        return vectors

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> Any:
        """The vectors of texts as lists, in the form in which mem0 calls an embedder."""
        return self.embed(list(texts)).tolist()

    def close(self) -> None:
        """Does nothing: the embedder's owner closes it."""


def fill(task: dict[str, Any]) -> dict[str, Any]:
    """Makes a memory of `count` sentences in `folder`, unless it exists. The vectors are stored beside it."""
    folder, count = Path(task["folder"]), task["count"]
    vectors = _vectors(folder, count)
    place = folder / f"memory-{count}"
    if place.exists():
        return {"seconds": 0.0}
    started = time.perf_counter()
    partial = folder / f"memory-{count}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    texts = memories(count)
    with Embedder(memory="1GB") as embedder:
        prepared = Timed(embedder, dict(zip(texts, vectors, strict=True)))
        with Memory(partial, user_id=_USER, embedder=prepared, memory="4GB") as memory:
            for start in range(0, count, _BATCH):
                memory.add(texts[start : start + _BATCH])
            memory.maintain(full=True)
    partial.rename(place)
    return {"seconds": time.perf_counter() - started}


def _vectors(folder: Path, count: int) -> Floats:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"vectors-{count}.npy"
    if not file.exists():
        with Embedder(memory="1GB") as embedder:
            np.save(file.with_suffix(".tmp.npy"), embedder.embed(memories(count)))
        os.replace(file.with_suffix(".tmp.npy"), file)
    return np.asarray(np.load(file), np.float32)


def speed(task: dict[str, Any]) -> dict[str, Any]:
    """Searches, then adds, in a copy of the prepared memory, all within the limit `memory`."""
    place = Path(task["scratch"]) / "memory"
    shutil.copytree(Path(task["folder"]) / f"memory-{task['count']}", place)
    config = Config.load(flags={"memory": task["memory"], "threads": task["threads"]})
    budget = MemoryBudget(config.memory)
    with Embedder(config=config, budget=budget) as embedder:
        timed = Timed(embedder)
        with Memory(place, user_id=_USER, embedder=timed, config=config, budget=budget) as memory:
            return _measure(task, timed, memory.add, lambda text: memory.search(text, 10, rerank=False)["results"])


def speed_of_mem0(task: dict[str, Any]) -> dict[str, Any]:
    """Measures mem0 with a local qdrant, `infer=False` and no telemetry. It is filled here with the same vectors."""
    scratch = Path(task["scratch"]) / "mem0"
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(scratch)}
    import mem0

    texts = memories(task["count"])
    with Embedder(config=Config.load(flags={"memory": "1GB", "threads": task["threads"]})) as embedder:
        prepared = Timed(embedder, dict(zip(texts, _vectors(Path(task["folder"]), task["count"]), strict=True)))
        store = {"path": str(scratch / "qdrant"), "embedding_model_dims": embedder.dim, "on_disk": True}
        memory = mem0.Memory.from_config({
            "vector_store": {"provider": "qdrant", "config": store},
            "llm": {"provider": "openai", "config": {"api_key": "none"}},
            "embedder": {"provider": "openai", "config": {"api_key": "none"}},
            "history_db_path": str(scratch / "history.db"),
        })  # fmt: skip
        memory.embedding_model = prepared
        for text in texts:
            memory.add(text, user_id=_USER, infer=False)
        timed = Timed(embedder)
        memory.embedding_model = timed
        filters = {"user_id": _USER}
        return _measure(
            task,
            timed,
            lambda text: memory.add(text, user_id=_USER, infer=False),
            lambda text: memory.search(text, top_k=10, filters=filters, threshold=0.0)["results"],
        )


def _measure(
    task: dict[str, Any], timed: Timed, add: Callable[[str], Any], search: Callable[[str], Any]
) -> dict[str, Any]:
    """The latencies of searches and of adds, and those beside embedding. The first five of each warm up and do not
    count."""
    new = [f"{text}, and that was number {n}" for n, text in enumerate(memories(task["adds"] + 5))]
    found: dict[str, Any] = {"rows": task["count"]}
    for name, call, texts in (("search", search, questions(task["searches"] + 5)), ("add", add, new)):
        whole, beside = [], []
        for text in texts:
            timed.seconds, started = 0.0, time.perf_counter()
            call(text)
            whole.append(time.perf_counter() - started)
            beside.append(whole[-1] - timed.seconds)
        for key, seconds in ((name, whole[5:]), (f"{name}_beside_embedding", beside[5:])):
            found[key] = {"p50": statistics.median(seconds), "p95": float(np.percentile(seconds, 95))}
    return found
