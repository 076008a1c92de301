"""`campaign`: more clients than a server has room for, and a server that is killed and comes back.

Every chat is a question whose answer the server has written alone before. Under load it must be the same, whoever else
asks. Memories that were acknowledged must be there after each kill.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlencode

import psutil
from making.random_gguf import made_model, words
from naive.program import EDGE

from bench.figures import Figure, lower, neither, tabulate
from bench.load import World, indexed
from bench.options import Computing, File, Output, Threads, WorkDir, benchmark, stated
from bench.process import processor, say
from bench.serve import running
from edge.config import parse_size
from edge.errors import EdgeError

_QUESTIONS = 24
_KINDS = {"chat": 5, "search": 2, "add": 2, "recall": 1}
"""The shares of the requests."""

_REFUSED = (413, 429, 503, 504)
_PATIENCE_S = 600.0


@dataclass(slots=True)
class Tally:
    """What became of the requests. Thread-safe.

    Attributes:
        outcomes: numbers of requests: `answered`, `refused`, `untimed` (refused for lack of room, and not told when to
            come back), `other` (answered with another text than alone), `cut` (the server was killed), and `lost`.
        kept: the texts of acknowledged memories, by user.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    kept: dict[str, list[str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, outcome: str, user: str = "", kept: str = "") -> None:
        """Counts a request; `kept` is the text of the memory that it added."""
        with self.lock:
            self.outcomes[outcome] += 1
            if kept:
                self.kept.setdefault(user, []).append(kept)


class Client:
    """Requests of one kind after the other, until it is told to end."""

    def __init__(self, port: int, tally: Tally, expected: Sequence[str], answer: int, ends: threading.Event) -> None:
        """
        Args:
            expected: the answers to the questions, each written alone.
            answer: most tokens of an answer.
            ends: set when the server will be killed; what is open then may be cut.
        """
        self._port = port
        self._tally = tally
        self._expected = expected
        self._answer = answer
        self._ends = ends

    def run(self, number: int) -> None:
        """Asks until the end."""
        source = random.Random(number)
        for turn in itertools.count():
            if self._ends.is_set():
                return
            (kind,) = source.choices(list(_KINDS), list(_KINDS.values()))
            text = f"note {number}.{turn} {words(3, seed=number * 1000 + turn)} {time.time_ns()}"
            question = source.randrange(_QUESTIONS)
            path, body = _request(kind, f"client {number}", text, question, self._answer)
            try:
                status, headers, found = sent(self._port, path, body)
            except (OSError, http.client.HTTPException):
                self._tally.count("cut" if self._ends.is_set() else "lost")
                continue
            if status in _REFUSED:
                self._tally.count("untimed" if status in (429, 503) and "Retry-After" not in headers else "refused")
                self._ends.wait(0.2)
            elif status != 200:
                self._tally.count("lost")
            elif kind == "chat" and told(found) != self._expected[question]:
                self._tally.count("other")
            else:
                self._tally.count("answered", f"client {number}", text if kind == "add" else "")


def sent(port: int, path: str, body: Mapping[str, Any] | None) -> tuple[int, Mapping[str, str], Any]:
    """Status, headers and JSON of an answer; a GET where there is no body.

    Raises:
        OSError, HTTPException: the connection broke.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    try:
        text = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    return answer.status, dict(answer.getheaders()), json.loads(data) if answer.status == 200 else None


def told(found: Any) -> str:
    """The text of a chat's answer."""
    return str(found["choices"][0]["message"]["content"])


def _request(kind: str, user: str, text: str, question: int, answer: int) -> tuple[str, dict[str, Any]]:
    asked = words(5 + 9 * question, seed=question)
    if kind == "chat":
        messages = [{"role": "user", "content": asked}]
        return "/v1/chat/completions", {"model": "llm", "messages": messages, "max_tokens": answer, "temperature": 0}
    if kind == "search":
        return "/v1/search", {"query": asked, "top_k": 3}
    if kind == "add":
        return "/memories", {"messages": [{"role": "user", "content": text}], "user_id": user}
    return "/search", {"query": asked, "user_id": user}


def missing(port: int, kept: Mapping[str, Sequence[str]]) -> int:
    """The number of acknowledged memories that the server does not have."""
    gone = 0
    for user, texts in kept.items():
        status, _, found = sent(port, f"/memories?{urlencode({'user_id': user, 'top_k': len(texts) + 9})}", None)
        if status != 200:
            raise EdgeError(f"the memories of {user} were not listed: {status}")
        gone += len(set(texts) - {entry["memory"] for entry in found["results"]})
    return gone


@benchmark
def campaign(
    *,
    model: Annotated[File | None, "GGUF file of the language model."] = None,
    shape: Computing = None,
    clients: int = 50,
    seconds: Annotated[float, "Length of the whole load."] = 600.0,
    kills: Annotated[int, "Times that the server is killed meanwhile."] = 3,
    answer: Annotated[int, "Most tokens of an answer."] = 24,
    answers: Annotated[int, "Answers at a time."] = 4,
    memory: Annotated[str, "Limit of the server."] = "600MB",
    options: Annotated[str, "Further options of `edge serve`."] = "",
    threads: Threads = 2,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Have more clients than a server has room for, kill it, and count what was lost.

    The clients chat, search, and add and find memories, without a pause. Its memory is measured from outside.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    if model is None:
        model = made_model(work_dir, shape or "tiny")
    collection = indexed(World(_QUESTIONS, 2, 40), work_dir, "")
    memories = work_dir / f"memory-{time.time_ns()}"
    command = [
        *EDGE, "serve", "--port", "{port}", "--memory", memory, "--threads", str(threads), "--llm", str(model),
        "-c", str(collection), "--memory-path", str(memories), "--answers", str(answers), *shlex.split(options),
    ]  # fmt: skip
    tally, expected, held, gone = Tally(), [""] * _QUESTIONS, 0, 0
    for life in range(kills + 1):
        say(f"life {life + 1} of {kills + 1}: {dict(tally.outcomes)}")
        with running(command, "edge", path="/v1/models") as (port, watch):
            gone += missing(port, tally.kept)
            if not life:
                for question in range(_QUESTIONS):
                    status, _, found = sent(port, *_request("chat", "", "", question, answer))
                    if status != 200:
                        raise EdgeError(f"a question alone was answered with {status}")
                    expected[question] = told(found)
            ends = threading.Event()
            client = Client(port, tally, expected, answer, ends)
            with ThreadPoolExecutor(clients) as pool:
                futures = [pool.submit(client.run, life * clients + number) for number in range(clients)]
                time.sleep(seconds / (kills + 1))
                ends.set()
                if life < kills:
                    psutil.Process(watch.pid).kill()
                for future in futures:
                    future.result()
            if life == kills:
                gone += missing(port, tally.kept)
            held = max(held, watch.high_water)
    result = {
        **{name: tally.outcomes[name] for name in ("answered", "refused", "untimed", "other", "cut", "lost")},
        "memories": sum(map(len, tally.kept.values())), "missing": gone, "peak": float(held),
        "different": len(set(expected)),
    }  # fmt: skip
    conditions = {
        "model": model.name, "clients": clients, "seconds": seconds, "kills": kills, "answer": answer,
        "answers": answers, "options": options, "limit": parse_size(memory), "threads": threads,
        "processor": processor(),
    }  # fmt: skip
    output.put(
        {"conditions": conditions, **result}, figures(result), stated(conditions), held=held, limit=parse_size(memory)
    )


def figures(result: Mapping[str, float]) -> Iterator[Figure]:
    """The figures of a stored run."""
    columns = {
        "answered": neither("answered"), "refused": neither("refused"), "cut": neither("cut by a kill"),
        "untimed": lower("refused without a time", ""), "other": lower("another's text", ""),
        "lost": lower("lost", ""), "memories": neither("memories"), "missing": lower("of them missing", ""),
        "peak": lower("peak", "B"),
    }  # fmt: skip
    yield from tabulate({"edge": {name: result[name] for name in columns}}, columns, "campaign")
