"""`load`: requests that arrive by themselves at a running server, by their rate."""

from __future__ import annotations

import http.client
import itertools
import json
import math
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click
import numpy as np
from making.random_gguf import words
from naive.program import EDGE

from bench.figures import Column, Figure, tabulate
from bench.options import File, Output, Rounds, Threads, WorkDir, benchmark, stated
from bench.process import processor, say, watched
from bench.texts import collection_of
from edge.config import parse_size
from edge.errors import EdgeError

KINDS = ("ask", "search")
"""What a client may want: an answer from the collection, or passages."""

Result = TypeVar("Result")

_A_SECOND = " a second"

_MOST_AT_ONCE = 512
"""The requests that may be open at once. An open load beyond the capacity has no bound of its own."""

_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of the load, `at` seconds after its begin, about a topic. No text of a request occurs twice."""

    at: float
    kind: str
    topic: int
    number: int


def drawn(rate: float, seconds: float, mix: Mapping[str, int], topics: int, seed: int = 0) -> list[Arrival]:
    """Arrivals of a Poisson process, `rate` a second, over topics by Zipf's law. The same arguments give the same
    arrivals."""
    source = random.Random(seed)
    popular = 1 / np.arange(1, topics + 1, dtype=np.float64)
    found: list[Arrival] = []
    at = source.expovariate(rate)
    while at < seconds:
        (kind,) = source.choices(list(mix), list(mix.values()))
        (topic,) = source.choices(range(topics), popular.tolist())
        found.append(Arrival(at, kind, topic, len(found)))
        at += source.expovariate(rate)
    return found


@dataclass(slots=True)
class Sample:
    """What became of a request, in seconds from its arrival.

    Attributes:
        first: the time of the first piece of text; of the whole answer where there is no text. None if it failed.
        pieces: the pieces of text, each of which is a token of the language model as a rule.
        status: the status of HTTP; 0 if the connection broke.
        why: what the server said of an answer that it broke off, or the exception that broke the connection.
    """

    first: float | None = None
    whole: float = 0.0
    pieces: int = 0
    status: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """The documents that questions are about: `each` documents of `length` words for each topic."""

    topics: int
    each: int
    length: int

    def name(self, topic: int) -> str:
        """The name of a topic, which its documents and its questions share."""
        return words(3, seed=topic + 1)

    def texts(self, topic: int) -> list[str]:
        seeds = range(10_000 + topic * self.each, 10_000 + (topic + 1) * self.each)
        return [f"{self.name(topic)}. {words(self.length, seed=seed)}." for seed in seeds]

    def request(self, one: Arrival, length: int) -> tuple[str, dict[str, Any]]:
        """The path and the body of a request. An answer has at most `length` tokens."""
        question = f"what is {self.name(one.topic)}, asked by {words(2, seed=-1 - one.number)} {one.number}"
        if one.kind == "search":
            return "/v1/search", {"query": question, "top_k": 5}
        return "/v1/ask", {
            "question": question, "llm": "llm", "stream": True, "max_tokens": length, "min_score": 0.0, "check": False,
        }  # fmt: skip


def sent(port: int, one: Arrival, world: World, length: int, arrived: float) -> Sample:
    """Sends a request, which arrived at this reading of the clock, and reads the answer to its end."""
    path, body = world.request(one, length)
    sample = Sample()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        failed = False
        for line in answer:
            if failed and not sample.why:
                sample.why = line.decode().strip()
            failed |= line.startswith(b"event: error")
            if _is_text(line):
                sample.pieces += 1
                if sample.first is None:
                    sample.first = time.perf_counter() - arrived
        sample.status = 500 if failed else answer.status
    except (OSError, http.client.HTTPException) as error:
        sample.status, sample.why = 0, repr(error)
    finally:
        connection.close()
    sample.whole = time.perf_counter() - arrived
    if sample.status >= 300 or not sample.status:
        sample.first = None
    elif not body.get("stream"):
        sample.first = sample.whole
    return sample


def _is_text(line: bytes) -> bool:
    """Whether a line of an event stream brings text of an answer."""
    if not line.startswith(b"data: {"):
        return False
    return set(json.loads(line[6:])) == {"text"}


def opened(arrivals: Sequence[Arrival], ask: Callable[[Arrival, float], Result], clients: int) -> list[Result]:
    """Asks at the time of each arrival, whatever became of those before, in at most so many threads. `ask` also gets
    the clock's reading at that time."""
    with ThreadPoolExecutor(clients) as pool:
        begin = time.perf_counter()
        futures = []
        for one in arrivals:
            time.sleep(max(0.0, begin + one.at - time.perf_counter()))
            futures.append(pool.submit(ask, one, begin + one.at))
        return [future.result() for future in futures]


@contextmanager
def running(command: Sequence[str], name: str) -> Iterator[tuple[int, Any]]:
    """Runs a server, and gives its port, which it prints, and a watch of its memory. In the command, `{folder}` stands
    for a folder that ends with the server."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        filled = [part.replace("{folder}", folder) for part in command]
        environment = dict(os.environ, XDG_RUNTIME_DIR=folder, EDGE_SCRATCH_DIR=folder)
        process = subprocess.Popen(filled, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        with process, watched(process.pid) as watch:
            try:
                place = re.search(r"http://[\d.]+:(\d+)", process.stdout.readline())  # type: ignore[union-attr]
                if place is None:
                    errors.seek(0)
                    raise EdgeError(f"{name} did not start: {errors.read().strip()[-300:] or 'no output'}")
                yield int(place[1]), watch
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                process.kill()


def summed(samples: Sequence[Sample], seconds: float, deadline: float) -> dict[str, float]:
    """The measures of a load that took so many seconds. A refused request has missed its deadline."""
    good = [sample for sample in samples if sample.first is not None]
    firsts = sorted(float(sample.first) for sample in good if sample.first is not None)
    writing = [
        (sample.whole - float(sample.first)) / (sample.pieces - 1)
        for sample in good
        if sample.pieces > 1 and sample.first is not None
    ]
    return {
        "requests_per_s": len(good) / seconds,
        "tokens_per_s": sum(sample.pieces for sample in good) / seconds,
        "within": sum(first <= deadline for first in firsts) / len(samples),
        "first_p50": _quantile(firsts, 0.5),
        "first_p95": _quantile(firsts, 0.95),
        "token_p50": _quantile(sorted(writing), 0.5),
        "refused": sum(sample.status in (413, 429, 503) for sample in samples) / len(samples),
        "lost": sum(sample.status not in (200, 413, 429, 503) for sample in samples) / len(samples),
    }


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, math.ceil(share * len(values)) - 1)] if values else math.nan


_COLUMNS = {
    "requests_per_s": Column("requests", "/s"), "tokens_per_s": Column("tokens", "/s"),
    "within": Column("within the deadline", "%"), "first_p50": Column("first text p50", "s"),
    "first_p95": Column("first text p95", "s"), "token_p50": Column("each token p50", "s"),
    "refused": Column("refused", "%"), "lost": Column("lost", "%"), "peak": Column("peak", "B"),
}  # fmt: skip


ATTAINED = {"rate": Column("rate at which 90 % keep the deadline", "/s")}


def attained(rates: Sequence[float], kept: Sequence[float]) -> float:
    """The highest rate up to which 90 % keep their deadline, between two measured rates (ascending) by a line; 0 if
    fewer do at the first rate, and the last rate if as many do at each."""
    at = next((number for number, share in enumerate(kept) if share < 0.9), len(kept))
    if not 0 < at < len(kept):
        return float(rates[-1]) if at else 0.0
    return float(np.interp(-0.9, [-kept[at - 1], -kept[at]], rates[at - 1 : at + 1]))


def figures(found: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> Iterator[Figure]:
    for load in dict.fromkeys(load for loads in found.values() for load in loads):
        rows = {
            name: {key: [run[key] for run in loads[load] if not math.isnan(run[key])] for key in _COLUMNS}
            for name, loads in found.items()
            if load in loads
        }
        yield from tabulate(rows, _COLUMNS, table=load)
    if any(len(loads) > 1 for loads in found.values()):
        rows = {
            name: {"rate": attained(
                [float(load.removesuffix(_A_SECOND)) for load in loads],
                [statistics.median(run["within"] for run in runs) for runs in loads.values()],
            )}
            for name, loads in found.items()
        }  # fmt: skip
        yield from tabulate(rows, ATTAINED, table="attained")


def _mix(text: str) -> dict[str, int]:
    try:
        found = {kind: int(count) for kind, count in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise click.BadParameter(f"a mix is written ask=2,search=1 and not {text!r}") from None
    if set(found) - set(KINDS) or not any(found.values()) or min(found.values()) < 0:
        raise click.BadParameter(f"a mix has counts of {', '.join(KINDS)}")
    return found


def _named(text: str) -> tuple[str, str]:
    name, _, rest = text.partition("=")
    return name, rest


@benchmark
def load(
    *,
    model: Annotated[File, "GGUF file of the language model."],
    rates: Annotated[str, "Arrivals a second, with commas between them."] = "",
    seconds: Annotated[float, "Length of each open load."] = 60.0,
    mix: Annotated[Any, _mix, f"Of {', '.join(KINDS)}."] = "ask=2,search=1",
    topics: int = 30,
    documents: Annotated[int, "Of each topic."] = 4,
    length: Annotated[int, "--words", "Of each document."] = 100,
    answer: Annotated[int, "Most tokens of an answer."] = 32,
    deadline: Annotated[float, "Seconds to the first text."] = 5.0,
    memory: Annotated[str, "Limit of our server."] = "600MB",
    embedder: Annotated[str, "Our server's embedder; the default one if not given."] = "",
    systems: Annotated[
        tuple[Any, ...],
        "--system",
        _named,
        "NAME=OPTIONS: a server with further options of `edge serve`; @tree,queue among them leaves parts out (see "
        "`tests/bench/altered.py`); may be repeated.",
    ] = ("edge=",),
    threads: Threads = 2,
    rounds: Rounds = 1,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Answer and search under a load that does not wait for answers.

    Each measurement has a new server, which is warmed up by one request of each kind. Its memory is measured from
    outside.
    """
    world = World(topics, documents, length)
    try:
        steps = [float(part) for part in rates.split(",") if part]
    except ValueError:
        raise click.BadParameter(f"rates are written 0.5,1,2 and not {rates!r}") from None
    loads = {f"{rate:g}{_A_SECOND}": drawn(rate, seconds, mix, topics) for rate in steps}
    loads = {name: drawing for name, drawing in loads.items() if drawing}
    if not loads:
        raise click.UsageError("--rates gives the load")
    name = f"load-{topics}-{documents}-{length}-{Path(embedder).name or 'default'}"
    texts = (text for topic in range(topics) for text in world.texts(topic))
    collection = collection_of(work_dir / name, texts, embedder=embedder or None)
    commands = {
        name: [
            *program_of(options), "serve", "--port", "0", "--memory", memory, "--threads", str(threads),
            "--llm", str(model), "-c", str(collection), "--memory-path", "{folder}/memory",
            *(["--embedder", embedder] if embedder else []),
            *[part for part in shlex.split(options) if not part.startswith("@")],
        ]
        for name, options in systems
    }  # fmt: skip
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in commands}
    held = 0
    for turn, (load_name, drawing), name in itertools.product(range(rounds), loads.items(), commands):
        say(f"round {turn + 1} of {rounds}: {name}, {load_name}")
        with running(commands[name], name) as (port, watch):
            kinds = [kind for kind in KINDS if any(one.kind == kind for one in drawing)]
            for kind in kinds:
                warm = sent(port, Arrival(0, kind, 0, -1), world, answer, time.perf_counter())
                if warm.first is None:
                    raise EdgeError(f"{name} answered {kind} with {warm.status}")
            begin = time.perf_counter()
            samples = opened(drawing, lambda one, at, port=port: sent(port, one, world, answer, at), _MOST_AT_ONCE)  # type: ignore[misc]
            sums = summed(samples, time.perf_counter() - begin, deadline)
        say(f"{sums['within']:.0%} within the deadline, first text after {sums['first_p50']:.2f} s")
        for why, count in Counter(sample.why for sample in samples if sample.why).most_common():
            say(f"{count} lost: {why}")
        found[name].setdefault(load_name, []).append(sums | {"peak": float(watch.peak)})
        held = max(held, watch.peak)
    conditions = {
        "model": model.name, "mix": ",".join(f"{kind}={n}" for kind, n in mix.items()), "topics": topics,
        "documents": documents, "words": length, "answer": answer, "deadline": deadline,
        "limit": parse_size(memory), "threads": threads, "seconds": seconds,
        "processor": processor(),
    }  # fmt: skip
    output.put(
        {"conditions": conditions, "systems": found}, figures(found), stated(conditions), held=held,
        limit=parse_size(memory),
    )  # fmt: skip


def program_of(options: str) -> list[str]:
    """The command that is `edge`, with the changes that a word of the options names after an @."""
    changes = [part[1:] for part in shlex.split(options) if part.startswith("@")]
    altered = [sys.executable, str(Path(__file__).with_name("altered.py")), ",".join(changes)]
    return altered if changes else list(EDGE)
