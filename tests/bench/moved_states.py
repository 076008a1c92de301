"""`moved-states`: documents' states used again behind the same documents or anywhere in a prompt, on judged questions:
the time to the first token, and what moving does to the answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import click
import numpy as np

from bench.answers import holds
from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import Output, benchmark, stated
from edge.apps.assistant import prompts
from edge.apps.collection.collection import Collection
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.errors import InputError
from edge.kv_cache.tree import KnowledgeTree
from edge.models.registry import find_generator
from edge.runtimes.generation.base import Document, Sampling
from edge.runtimes.generation.llama_context import LlamaContext, log_probability
from edge.runtimes.generation.llama_cpp import LlamaGenerator

ARMS = ("exact", "anywhere")


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the texts that answer it and its passages, best first."""

    text: str
    answers: tuple[str, ...]
    passages: tuple[Document, ...]


@benchmark
def moved_states(
    *,
    sets: Annotated[str, "--set", "COLLECTION=QUESTIONS, as for `answer-odds`."],
    llm: Annotated[str, "Language model."],
    passages: Annotated[int, "Passages of a prompt."] = 4,
    warmup: Annotated[int, "Questions at the start whose times do not count."] = 50,
    most: Annotated[int, "Questions; 0: all."] = 0,
    new: Annotated[int, "Tokens of an answer."] = 24,
    threads: Annotated[int, click.IntRange(1)] = 1,
    states: Annotated[str, "Bytes for states in memory."] = "2GB",
    memory: Annotated[str, "Limit of the process while it searches."] = "700MB",
    output: Output,
) -> None:
    """Compare states that are found behind the same documents with states that are moved."""
    asked = read(sets, passages, memory)[: most or None]
    if len(asked) <= warmup:
        raise InputError(f"{len(asked)} questions leave none after {warmup} for warming up")
    rows = {arm: measured(arm, asked, llm, warmup, new, threads, parse_size(states)) for arm in ARMS}
    conditions = {"questions": len(asked), "passages": passages, "threads": threads}
    output.put({"states": rows}, figures(rows), stated(conditions))


def figures(rows: Mapping[str, Mapping[str, float]]) -> Iterator[Figure]:
    """The figures of a stored run, by the way states are used again."""
    yield from tabulate(
        rows,
        {
            "median_s": lower("processor time to the first token, median", "s"), "p95_s": lower("95 %", "s"),
            "reused": higher("tokens not computed", "%"), "right": higher("right answers", "%"),
            "likelihood": higher("log-likelihood of the answer's tokens"), "nbytes": neither("states", "MB"),
        },
        "states",
    )  # fmt: skip


def read(given: str, most: int, memory: str) -> list[Question]:
    """The questions of a set that have an answer, with the passages that the collection finds."""
    place, _, file = given.partition("=")
    found = []
    with Collection(place, config=Config.load(flags={"memory": memory})) as collection:
        for line in Path(file).read_text("utf-8").splitlines():
            row = json.loads(line)
            if row["answers"]:
                hits = collection.search(row["question"], most)
                documents = tuple(Document(f"{hit.path}:{hit.line_start}", hit.title, hit.text) for hit in hits)
                found.append(Question(row["question"], tuple(row["answers"]), documents))
    return found


def measured(
    arm: str, asked: Sequence[Question], llm: str, warmup: int, new: int, threads: int, nbytes: int
) -> dict[str, float]:
    """Asks all questions one after the other with one tree of states."""
    budget = MemoryBudget(nbytes + 4 * 10**9)
    seconds, likelihoods, right, cached, total = [], [], 0, 0, 0
    with (
        TemporaryDirectory() as cache,
        LlamaGenerator(find_generator(llm, None), budget, cache=Path(cache), threads=threads) as generator,
    ):
        states = generator.states
        if states is None or not states.movable:
            raise InputError(f"states of {llm} cannot be moved")
        context, sampling = states.context, Sampling(max_tokens=new)
        generator.tree = tree = KnowledgeTree(states, budget, host_limit=nbytes, anywhere=arm == "anywhere")
        for number, question in enumerate(asked):
            prompt = generator._prompt(prompts.answer(question.text).messages, question.passages, sampling)
            started = time.process_time()
            with tree.prepare(prompt.path, suffix=len(prompt.question)) as path:
                context.append(prompt.question, logits=True)
                if number >= warmup:
                    seconds.append(time.process_time() - started)
                    cached += path.cached_tokens
                    total += prompt.tokens
                end = context.length
                text = written(context, new)
                right += any(holds(text, answer) for answer in question.answers)
                context.truncate(end - 1)
                context.append(prompt.question[-1:], logits=True)
                likelihoods.append(likelihood(context, question.answers[0]))
        held = budget.holders().get("knowledge tree", 0)
    return {
        "median_s": float(np.median(seconds)), "p95_s": float(np.quantile(seconds, 0.95)),
        "reused": cached / total, "right": right / len(asked),
        "likelihood": float(np.mean(likelihoods)), "nbytes": held / 1e6,
    }  # fmt: skip


def written(context: LlamaContext, most: int) -> str:
    """What the model writes behind the prompt in context, always with the likeliest token."""
    pieces: list[bytes] = []
    while len(pieces) < most and not context.model.ends(token := int(context.logits().argmax())):
        pieces.append(context.model.piece(token))
        context.append([token], logits=True)
    return b"".join(pieces).decode("utf-8", "replace")


def likelihood(context: LlamaContext, answer: str) -> float:
    """The mean log-probability of an answer's tokens behind the prompt in context."""
    tokens, total = context.model.tokenize(answer), 0.0
    for token in tokens:
        total += log_probability(context.logits(), token, context.scratch)
        context.append([token], logits=True)
    return total / len(tokens)
