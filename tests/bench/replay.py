"""`ReplayGenerator`: gives the answers of a trace at a given speed. `replayed`: questions by every pipeline and arm.

This is the measuring method of TeleRAG (section 5.1): a model's answers in every step of a pipeline are replayed with
the same lengths, so that latencies can be compared across models, machines and arms of an experiment. The processor is
free while the generator waits, as if the model ran on an accelerator. As with a real model, the next token is begun
when it is requested, so the caller's work between two tokens delays the second one.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.process import in_turn, measure, say
from bench.rag_traces import LETTERS_PER_TOKEN, Case, write_trace
from edge.apps.assistant.answer import NotInDocuments
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.steps import Steps
from edge.runtimes.generation.base import Document, Finish, GenerationStats, Message, Piece, Sampling
from edge.trace import Trace


class ReplayGenerator:
    """A `Generator` that gives the answers of a trace in their order, whatever it is asked.

    A trace has a line `{"prompt_tokens": n, "pieces": [[text, log probability], ...]}` for each answer. `prefill` and
    `decode` are tokens per second; at an infinite speed no time passes. `elsewhere`: as a server, it does not wait
    until a token is asked for.
    """

    follows_instructions = True
    context = 2**31

    def __init__(self, path: Path, *, prefill: float, decode: float, elsewhere: bool = False) -> None:
        self.name = path.stem
        self.stats: GenerationStats | None = None
        self._answers = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        self._prefill, self._decode, self.elsewhere = prefill, decode, elsewhere

    def count(self, text: str) -> int:
        """Estimated number of tokens of a text, from its letters."""
        return math.ceil(len(text) / LETTERS_PER_TOKEN)

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """The next answer, with each token at its time. Of `sampling` only `max_tokens` is used."""
        return self._answer(next(self._answers), sampling.max_tokens, cancel or threading.Event())

    def close(self) -> None:
        """Does nothing, because this generator holds no memory."""

    def _answer(self, record: dict[str, object], most: int, cancel: threading.Event) -> Iterator[Piece]:
        pieces, prompt_tokens = record["pieces"], record["prompt_tokens"]
        assert isinstance(pieces, list)
        assert isinstance(prompt_tokens, int)
        called, first, new = time.perf_counter(), 0.0, 0
        finish: Finish = "cancelled"
        due = called
        try:
            for text, logprob in pieces[:most]:
                due = due if self.elsewhere else time.perf_counter()
                due += (0 if new else prompt_tokens / self._prefill) + 1 / self._decode
                if cancel.wait(due - time.perf_counter()):
                    return
                first = first or time.perf_counter()
                new += 1
                yield Piece(text, None, logprob)
            finish = "stop" if len(pieces) <= most else "length"
        finally:
            ended = time.perf_counter()
            self.stats = GenerationStats(
                prompt_tokens=prompt_tokens, cached_tokens=0, new_tokens=new, ttft_s=(first or ended) - called,
                seconds=ended - called, finish=finish,
            )  # fmt: skip


Task = dict[str, Any]
Rounds = list[list[Task]]
"""The rows of questions, of each round."""


def replayed(
    work: Callable[[Task], Task], task: Task, asked: Sequence[Case], rounds: int, threads: int,
    pipelines: Collection[str], arms: Mapping[str, Task],
) -> dict[str, dict[str, Rounds]]:  # fmt: skip
    """What becomes of the questions after those that warm up, by pipeline and arm: each arm answers the same ones with
    the same trace, in processes of its own."""
    found = {}
    for pipeline in pipelines:
        trace = Path(task["folder"]) / f"{pipeline}.jsonl"
        write_trace(trace, pipeline, asked)
        own = task | {"trace": str(trace), "pipeline": pipeline, "questions": [case.question for case in asked]}
        say(pipeline)
        reports, _ = in_turn(
            rounds, arms, lambda arm, own=own: measure(work, own | arms[arm] | {"name": arm}, threads=threads)
        )
        found[pipeline] = {arm: [report["rows"][task["warmup"] :] for report in reports[arm]] for arm in arms}
    return found


def replay_of(task: Task, *, elsewhere: bool = False) -> ReplayGenerator:
    speeds = {name: task[name] or math.inf for name in ("prefill", "decode")}
    return ReplayGenerator(Path(task["trace"]), **speeds, elsewhere=elsewhere)


def answered(question: str, steps: Steps, trace: Trace) -> Task:
    """The answer to one question: its seconds, those to its first token, and those in which nothing was written; and
    what the library's trace has counted."""
    before, used = trace.snapshot(), time.process_time()
    started, first, text = time.perf_counter(), 0.0, ""
    with suppress(NotInDocuments):
        for piece in PIPELINES[steps.pipeline](question, steps):
            text += piece
            first = first or (time.perf_counter() - started if text else 0.0)
    seconds = time.perf_counter() - started
    steps.close()
    counters = trace.since(before)
    return {
        "seconds": seconds, "first": first or seconds, "after": seconds - counters["assistant.generate_s"],
        "processor": time.process_time() - used, "text": text, "counters": counters,
        "found": [[hit.id for hit in entry.passages] for entry in steps.rounds],
    }  # fmt: skip


def same(arms: Mapping[str, Rounds]) -> bool:
    """Whether every arm found and wrote the same in each round."""
    told = [[(row["found"], row["text"]) for row in rows] for rounds in arms.values() for rows in rounds]
    return all(each == told[0] for each in told)
