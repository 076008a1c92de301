"""`pipelining`: compares retrieval during generation (PipeRAG) with waiting for it, over a slow link.

A writer that sleeps stands for a model on a device of its own. With `--model` a real language model reads the retrieved
passages and writes the text: it is given the text's tokens one by one, and its perplexity is the quality, as in the
paper. Sentences of the text itself are left out of what is retrieved.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import Annotated, Any, Protocol

import numpy as np

from bench.assistant import opened
from bench.figures import higher, lower, neither, tabulate
from bench.options import File, Output, benchmark, numbers, stated
from bench.process import measure, say
from bench.rag_index import IndexData, IndexLibrary
from edge.apps.collection.hits import Hit
from edge.config import parse_size
from edge.errors import InputError
from edge.scheduling.background import RetrievalPipeline

_ARMS = {
    "alone": "no passages", "waits": "waits for each search",
    "pipelined": "one interval stale", "adaptive": "and nprobe from the slack",
}  # fmt: skip
"""`alone` writes without retrieval. Only a real model shows what that costs."""

_LETTERS_PER_TOKEN = 4
_WINDOW = 64
"""The number of tokens of a query, as in the paper."""

_K = 10

_READ = 4
"""Passages that a model reads for an interval."""

_CONTEXT = 1024
"""Tokens of the model's context."""

_WRITTEN = 256
"""The most tokens of a text that a model writes."""


@benchmark
def pipelining(
    *,
    probe_share: Annotated[float, "Of the lists, probed where nprobe is fixed."] = 1 / 16,
    bandwidth: Annotated[str, "Of the link to the index, per second."] = "100MB",
    decode: Annotated[float, "Tokens per second the model writes."] = 100.0,
    interval: Annotated[Sequence[int], numbers(1), "Tokens between two retrievals (S2)."] = (32,),
    model: Annotated[File | None, "GGUF model that writes, in place of --decode."] = None,
    texts: Annotated[int, "Paragraphs that are written."] = 12,
    warmup: Annotated[int, "Before them; lists are cached."] = 2,
    output: Output,
    data: IndexData,
) -> None:
    """Write paragraphs at a given speed and retrieve for every interval of them, in three ways."""
    made = data.made()
    corpus = made.corpora[0]
    written = sorted(corpus.texts, key=len, reverse=True)[: warmup + texts]
    if len(written) < warmup + texts:
        raise InputError(f"{corpus.name} has only {len(corpus.texts)} texts")
    task = {
        "folder": str(made.folder), "texts": written, "probe_share": probe_share, "reuse": True,
        "list_memory": made.memory, "bandwidth": parse_size(bandwidth), "decode": decode,
        "model": None if model is None else str(model),
    }  # fmt: skip
    table: dict[str, dict[str, Any]] = {}
    for tokens in interval:
        arms = {}
        for arm in list(_ARMS)[0 if model else 1 :]:
            say(f"measuring: {_ARMS[arm]}, {tokens} tokens")
            arms[arm] = measure(work, {**task, "interval": tokens, "name": arm, "arm": arm}, threads=1)["rows"][warmup:]
        for arm, report in arms.items():
            table[f"{_ARMS[arm]}, {tokens}"] = {"arm": arm, "interval": tokens, **_row(report, arms["waits"])}
    conditions = {
        **made.conditions(), "list_memory": made.memory, "bandwidth": task["bandwidth"], "texts": texts,
        "probe_share": probe_share, **({"model": model.name} if model else {"decode": decode}),
    }  # fmt: skip
    columns = {
        "seconds": lower("time of a text", "s"), "stall_s": lower("waits", "s"), "kept": higher("kept", "%"),
        "nprobe": neither("nprobe"), **({"perplexity": lower("perplexity", "")} if model else {}),
    }  # fmt: skip
    output.put({"conditions": conditions, "arms": table}, tabulate(table, columns), stated(conditions))


def _row(report: Sequence[dict[str, Any]], fresh: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means over texts. `kept` is the share of the waiting arm's passages for an interval that this arm had,
    too."""
    searches = [search for row in report for search in row["searches"]]
    slack = [search["seconds"] / search["slack"] for search in searches if search["slack"]]
    pairs = [
        len(set(mine["found"]) & set(best["found"])) / max(1, len(best["found"]))
        for row, other in zip(report, fresh, strict=True)
        for mine, best in zip(row["searches"], other["searches"], strict=bool(searches))
    ]
    losses = [loss for row in report for loss in row["losses"]]
    return {
        "perplexity": math.exp(statistics.mean(losses)) if losses else None,
        "seconds": statistics.mean(row["seconds"] for row in report),
        "stall_s": statistics.mean(row["stall_s"] for row in report),
        "search_s": statistics.mean(sum(search["seconds"] for search in row["searches"]) for row in report),
        "nprobe": statistics.mean(search["nprobe"] for search in searches) if searches else 0,
        "slack_used": statistics.mean(slack) if slack else None,
        "over_slack": sum(share > 1.1 for share in slack) / len(slack) if slack else None,
        "searches": len(searches),
        "kept": statistics.mean(pairs) if pairs else 0.0,
    }


class Writer(Protocol):
    """What writes a text, interval by interval. The query of each interval but the first is the last tokens before it.
    `losses` are the negative logarithms of the tokens' probabilities, if a model wrote them."""

    queries: Sequence[str]
    seconds: list[float]
    losses: list[float]

    def write(self, passages: Sequence[Hit]) -> None: ...


class SleepingWriter:
    """Stands for a model that writes on a device of its own."""

    def __init__(self, text: str, tokens: int, decode: float) -> None:
        """`decode` in tokens a second."""
        step, window = tokens * _LETTERS_PER_TOKEN, _WINDOW * _LETTERS_PER_TOKEN
        self.queries: Sequence[str] = [text[max(0, end - window) : end] for end in range(step, len(text), step)]
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self._interval = tokens / decode

    def write(self, passages: Sequence[Hit]) -> None:
        time.sleep(self._interval)
        self.seconds.append(self._interval)


class ModelWriter:
    """A model of llama.cpp that is given the tokens of a text one by one after the passages, as if it wrote them. Other
    passages mean that the text so far is read again, as in the assistant."""

    def __init__(self, llm: Any, text: str, tokens: int) -> None:
        """`llm` is a `llama_cpp.Llama`."""
        self._llm = llm
        told = llm.tokenize(text.encode(), add_bos=False)[:_WRITTEN]
        self._parts = [told[start : start + tokens] for start in range(0, len(told), tokens)]
        ends = range(tokens, len(told), tokens)
        self.queries: Sequence[str] = [
            llm.detokenize(told[max(0, end - _WINDOW) : end]).decode(errors="replace") for end in ends
        ]
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self._text = text

    def write(self, passages: Sequence[Hit]) -> None:
        begun = time.perf_counter()
        place = len(self.seconds)
        read = [hit.text for hit in passages if hit.text.rpartition(": ")[2] not in self._text][:_READ]
        before = self._llm.tokenize("".join(f"{passage}\n" for passage in read).encode(), add_bos=True)
        self._prompt([*before, *(token for part in self._parts[:place] for token in part)])
        for token in self._parts[place]:
            logits = np.ctypeslib.as_array(self._llm._ctx.get_logits(), (self._llm.n_vocab(),)).astype(np.float64)
            top = logits.max()
            self.losses.append(float(top + np.log(np.exp(logits - top).sum()) - logits[token]))
            self._llm.eval([token])
        self.seconds.append(time.perf_counter() - begun)

    def _prompt(self, tokens: Sequence[int]) -> None:
        """Reads a prompt. At least its last token is computed, which gives the probabilities of the next one."""
        kept = 0
        held = self._llm.input_ids[: self._llm.n_tokens]
        while kept < min(len(tokens) - 1, len(held)) and tokens[kept] == held[kept]:
            kept += 1
        self._llm.n_tokens = kept
        self._llm.eval(tokens[kept:])


def work(task: dict[str, Any]) -> dict[str, Any]:
    arms: dict[str, Callable[[IndexLibrary, Writer], dict[str, Any]]] = {
        "alone": alone, "waits": waiting, "pipelined": pipelined, "adaptive": partial(pipelined, adaptive=True),
    }  # fmt: skip
    llm = None
    if task["model"] is not None:
        from llama_cpp import Llama

        llm = Llama(task["model"], n_ctx=_CONTEXT, n_batch=256, n_threads=1, n_threads_batch=1, verbose=False)
    with opened(task) as library, closing(llm) if llm else nullcontext():
        rows = []
        for text in task["texts"]:
            writer: Writer
            if llm is None:
                writer = SleepingWriter(text, task["interval"], task["decode"])
            else:
                writer = ModelWriter(llm, text, task["interval"])
            row = arms[task["arm"]](library, writer)
            rows.append({**row, "written": writer.seconds, "losses": writer.losses})
    return {"rows": rows}


def alone(library: IndexLibrary, writer: Writer) -> dict[str, Any]:
    """Writes a text without retrieval."""
    started = time.perf_counter()
    for _ in range(len(writer.queries) + 1):
        writer.write([])
    return {"seconds": time.perf_counter() - started, "stall_s": 0.0, "searches": []}


def waiting(library: IndexLibrary, writer: Writer) -> dict[str, Any]:
    """Writes a text, and stops writing for every retrieval."""
    search = _Search(library)
    started = time.perf_counter()
    writer.write([])
    for query in writer.queries:
        found = search(query)
        search.note(found, None)
        writer.write(found)
    return {"seconds": time.perf_counter() - started, "stall_s": search.seconds, "searches": search.noted}


def pipelined(library: IndexLibrary, writer: Writer, *, adaptive: bool = False) -> dict[str, Any]:
    """Writes a text with pipelined retrieval: the passages of an interval were requested when the interval before it
    began. If `adaptive`, nprobe follows the duration of the last interval."""
    search = _Search(library)
    stall = 0.0
    started = time.perf_counter()
    with RetrievalPipeline(search if adaptive else lambda query, slack: search(query)) as pipeline:
        writer.write([])
        slack = writer.seconds[-1]
        for place, query in enumerate(writer.queries):
            before = time.perf_counter()
            found = pipeline.take() if place else search(query)
            stall += time.perf_counter() - before
            search.note(found, slack if adaptive and place else None)
            slack = writer.seconds[-1]
            if place + 1 < len(writer.queries):
                pipeline.ask(query, slack)
            writer.write(found)
    return {"seconds": time.perf_counter() - started, "stall_s": stall, "searches": search.noted}


class _Search:
    """Searches the index and times each search."""

    def __init__(self, library: IndexLibrary) -> None:
        self.noted: list[dict[str, Any]] = []
        self.seconds = 0.0
        """The seconds of all recorded searches."""
        self._library = library
        self._last = (0.0, 0)

    def __call__(self, query: str, slack: float | None = None) -> list[Hit]:
        """Searches a fixed number of lists, or as many as fit into `slack` seconds."""
        started = time.perf_counter()
        vector = self._library.embed_queries([query])[0]
        left = None if slack is None else slack - (time.perf_counter() - started)
        (found,) = self._library.candidates([query], vector[None], _K, seconds=left)
        self._last = time.perf_counter() - started, self._library.probed
        return found

    def note(self, found: Sequence[Hit], slack: float | None) -> None:
        """Records the last search, whose passages the next interval is written from."""
        seconds, nprobe = self._last
        self.seconds += seconds
        self.noted.append({"seconds": seconds, "slack": slack, "nprobe": nprobe, "found": [hit.id for hit in found]})
