"""`raw-rate`: tokens a second while a generator writes several answers, beside a plain loop over `llama_decode`."""

from __future__ import annotations

import ctypes
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from making.random_gguf import made_model, words

from bench.figures import Figure, higher, lower, tabulate
from bench.options import Computing, File, Output, Rounds, Threads, WorkDir, benchmark, numbers, stated
from bench.process import measure, processor
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.runtimes.generation.base import Message, Sampling
from edge.runtimes.generation.llama_context import LlamaContext
from edge.runtimes.generation.llama_cpp import LlamaGenerator


@benchmark
def raw_rate(
    *,
    model: Annotated[File | None, "GGUF file of the language model."] = None,
    shape: Computing = None,
    counts: Annotated[Sequence[int], "--at-once", numbers(), "Numbers of answers."] = (1, 4, 8, 16),
    prompt: Annotated[int, "--words", "Of each prompt."] = 40,
    answer: Annotated[int, "Tokens of each answer."] = 64,
    memory: Annotated[str, "Limit of the generator, with a second context for the plain loop."] = "2GB",
    threads: Threads = 2,
    rounds: Rounds = 5,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Write S answers in one pool (one answer: alone), and the same number by a loop that does nothing else.

    The loop has a context of the same settings, prompts of the same lengths, and takes the most probable tokens. Of the
    generator only the time counts in which all answers are written. Both take turns. Beside the times on the clock
    stand the seconds of the processor, which suffer less from other programs.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    path = model if model is not None else made_model(work_dir, shape or "tiny")
    tables: dict[str, Any] = {}
    for count in counts:
        task = {
            "name": f"{count} at once", "path": str(path), "count": count, "prompt": prompt, "answer": answer,
            "memory": parse_size(memory), "threads": threads, "rounds": rounds, "watch": 1.0,
        }  # fmt: skip
        tables[f"{count} at once"] = measure(work, task, threads=threads)
    conditions = {
        "model": path.name, "words": prompt, "answer": answer, "threads": threads, "rounds": rounds,
        "processor": processor(),
    }  # fmt: skip
    result = {"conditions": conditions, "tables": tables}
    output.put(result, figures(tables), stated(conditions))


def figures(tables: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of a stored run: a table for each number of answers."""
    columns = {
        "tokens_per_s": higher("tokens", "/s"), "share": higher("share of the loop", "%"),
        "cpu": lower("processor, each token", "s"),
    }  # fmt: skip
    for table, found in tables.items():
        yield from tabulate({name: found[name] for name in ("edge", "loop")}, columns, table, ("loop",))


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Tokens a second and processor seconds of each token, of every round, for both."""
    count, answer = task["count"], task["answer"]
    with tempfile.TemporaryDirectory() as cache, LlamaGenerator(
        task["path"], MemoryBudget(task["memory"]), cache=Path(cache), threads=task["threads"], answers=count,
        shared=count > 1,
    ) as generator:  # fmt: skip
        model: Any = generator._open()
        model.ends = lambda token: False
        context = LlamaContext(model, generator.memory.shape)
        asked = [[Message("user", words(task["prompt"], seed=number))] for number in range(count)]
        prompts = [generator._builder.build(messages, [], answer) for messages in asked]
        texts = [[t for part in prompt.path for t in part.tokens] + [*prompt.question] for prompt in prompts]
        found: dict[str, Any] = {name: {"tokens_per_s": [], "cpu": []} for name in ("edge", "loop")}
        for turn in range(task["rounds"] + 1):
            for name, (tokens, seconds, cpu) in (
                ("loop", _loop(context, texts, answer)),
                ("edge", _engine(generator, asked, answer)),
            ):
                if turn:  # the first round warms up
                    found[name]["tokens_per_s"].append(tokens / seconds)
                    found[name]["cpu"].append(cpu / tokens)
        context.close()
    pairs = zip(found["edge"]["tokens_per_s"], found["loop"]["tokens_per_s"], strict=True)
    found["edge"]["share"] = [ours / theirs for ours, theirs in pairs]
    return found


def _loop(context: LlamaContext, texts: Sequence[Sequence[int]], answer: int) -> tuple[int, float, float]:
    """Tokens, seconds, and processor seconds of the plain loop."""
    api, count = context.model.library.api, len(texts)
    api.llama_memory_clear(context.memory, False)
    batch = api.llama_batch_init(max(count, *map(len, texts)), 0, 1)
    latest = [_decoded(context, batch, [(token, at, number) for at, token in enumerate(text)])[-1]
              for number, text in enumerate(texts)]  # fmt: skip
    begun, cpu = time.perf_counter(), time.process_time()
    for step in range(answer - 1):
        rows = [(latest[number], len(text) + step, number) for number, text in enumerate(texts)]
        latest = _decoded(context, batch, rows)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    api.llama_batch_free(batch)
    return count * (answer - 1), seconds, cpu


def _decoded(context: LlamaContext, batch: Any, rows: Sequence[tuple[int, int, int]]) -> list[int]:
    """Computes tokens, each at a position of a sequence, and returns the most probable next ones: those of all rows if
    each is of another sequence, else that of the last row."""
    api = context.model.library.api
    each = rows[0][2] != rows[-1][2] or len(rows) == 1
    for row, (token, position, number) in enumerate(rows):
        batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, position, 1
        batch.seq_id[row][0], batch.logits[row] = number, each or row == len(rows) - 1
    batch.n_tokens = len(rows)
    assert api.llama_decode(context.pointer, batch) == 0
    wanted = len(rows) if each else 1
    logits = ctypes.cast(api.llama_get_logits(context.pointer), ctypes.POINTER(ctypes.c_float))
    found: list[int] = np.ctypeslib.as_array(logits, (wanted, context.model.vocabulary)).argmax(1).tolist()
    return found


def _engine(generator: LlamaGenerator, asked: Sequence[list[Message]], answer: int) -> tuple[int, float, float]:
    """Tokens, seconds, and processor seconds while the generator writes all answers."""
    times: list[list[tuple[float, float]]] = [[] for _ in asked]

    def read(number: int) -> None:
        for _ in generator.stream(asked[number], Sampling(max_tokens=answer)):
            times[number].append((time.perf_counter(), time.process_time()))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin, end = max(one[0] for one in times), min(one[-1] for one in times)
    return sum(begin < at <= end for one in times for at in one), end[0] - begin[0], end[1] - begin[1]
