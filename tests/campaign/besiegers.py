"""The clients of a siege: half of them ask for mixed work and check the answers, the others misbehave."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote

from campaign.server import MISCHIEF, WORDS

_KINDS = ("rerank", "embed", "search", "ask", "remember", "recall", "forget", "mcp")
_UNKNOWN: dict[str, Any] = {}
"""Stands for an answer that did not come: the server may have done what was asked, or not."""

_SERVED = 200
_PATIENCE_S = 180.0
_SHORT = (413, 429, 503)
"""A well-behaved client may be refused with these, because memory is short or others wait at this moment."""

_LATER = (429, 503)
"""Those that name a time to come back."""

_AGAIN_S = 0.5
"""Pause of a client that was not answered or refused, in seconds."""


class Besiegers:
    """The clients, each in a thread of its own; every other one misbehaves. `prompts`: what a language model is asked
    to go on with."""

    def __init__(
        self, port: int, clients: int, seconds: float, pause: float, seed: int, prompts: Sequence[str] = ()
    ) -> None:
        self.problems: list[str] = []
        self.unanswered: list[tuple[float, float, str]] = []
        self.seconds: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self.refused: Counter[str] = Counter()
        self.mischief = 0
        self.kept: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.texts: dict[str, str] = {}
        self._prompts = prompts
        self._kinds = (*_KINDS, *(("write",) * len(_KINDS) if prompts else ()))
        self._port = port
        self._pause = pause
        self._begin = time.monotonic()
        self._end = self._begin + seconds
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(f"{seed}:{number}"), number % 2 == 1), daemon=True)
            for number in range(clients)
        ]

    def warm(self) -> None:
        """Asks for everything twice, one after the other, so that every model is open before memory is compared, and
        lets the language model write each text alone."""
        chance = random.Random(0)
        for kind in 2 * _KINDS:
            getattr(self, f"_{kind}")(chance)
        for prompt in self._prompts:
            self.texts[prompt] = self._written(prompt) or ""
        self.seconds.clear()
        self._end += time.monotonic() - self._begin
        self._begin = time.monotonic()

    def run(self) -> None:
        """Until the time is over and every client has ended."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(max(0.0, self._end - time.monotonic()) + _PATIENCE_S)
            if thread.is_alive():
                self.problems.append(f"a client has waited {_PATIENCE_S:.0f} seconds for its answer")
                return

    def _work(self, chance: random.Random, misbehaving: bool) -> None:
        while time.monotonic() < self._end and len(self.problems) < 100:
            if misbehaving:
                with contextlib.suppress(OSError, HTTPException):  # it was thrown out
                    chance.choice(MISCHIEF)(self._port, chance)
                with self._lock:
                    self.mischief += 1
                time.sleep(self._pause * chance.random())
            else:
                getattr(self, f"_{chance.choice(self._kinds)}")(chance)
                time.sleep(2 * self._pause * chance.random())

    def _ask_server(self, kind: str, method: str, path: str, content: Any = None) -> Any:
        """The answer; None where memory is short, `_UNKNOWN` where none came."""
        started = time.monotonic()
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        try:
            body = None if content is None else json.dumps(content).encode()
            headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, HTTPException) as error:
            ended, at = time.monotonic(), started - self._begin
            reason = f"{type(error).__name__} {error}, after {ended - started:.1f} s, asked at {at:.0f} s"
            self.unanswered.append((started, ended, f"{kind} was not answered: {reason}"))
            time.sleep(_AGAIN_S)
            return _UNKNOWN
        finally:
            connection.close()
        with self._lock:
            if answer.status == _SERVED:
                self.seconds[kind].append((started, time.monotonic()))
                return json.loads(text)
            if answer.status not in _SHORT:
                self.problems.append(f"{kind} was answered {answer.status}: {text[:200]!r}")
            elif answer.status in _LATER and answer.getheader("Retry-After") is None:
                self.problems.append(f"{kind} was refused with {answer.status} and no time to come back")
            self.refused[kind] += answer.status in _SHORT
        time.sleep(_AGAIN_S)
        return None

    def _rerank(self, chance: random.Random) -> None:
        content = {"query": words(chance, 4), "documents": [words(chance, chance.randint(20, 120)) for _ in range(20)]}
        found = self._ask_server("rerank", "POST", "/v1/rerank", content)
        if found and len(found["results"]) != len(content["documents"]):
            self.problems.append(f"20 documents were ranked as {len(found['results'])}")

    def _embed(self, chance: random.Random) -> None:
        texts = [words(chance, chance.randint(5, 100)) for _ in range(chance.randint(1, 8))]
        found = self._ask_server("embed", "POST", "/v1/embeddings", {"input": texts})
        if found and len(found["data"]) != len(texts):
            self.problems.append(f"{len(texts)} texts have {len(found['data'])} vectors")

    def _search(self, chance: random.Random) -> None:
        content = {"query": words(chance, 4), "top_k": 5, "rerank": chance.random() < 0.3}
        self._ask_server("search reranked" if content["rerank"] else "search", "POST", "/v1/search", content)

    def _ask(self, chance: random.Random) -> None:
        content = {"question": f"where is the {words(chance, 3)}?", "llm": "extractive"}
        self._ask_server("ask", "POST", "/v1/ask", content)

    def _write(self, chance: random.Random) -> None:
        prompt = chance.choice(list(self.texts))
        text = self._written(prompt)
        if text is not None and text != self.texts[prompt]:
            self.problems.append(f"{prompt!r} was answered {text!r} and not {self.texts[prompt]!r}")

    def _written(self, prompt: str) -> str | None:
        """The text after a prompt; None if there is no answer."""
        content = {
            "model": "llm", "messages": [{"role": "user", "content": prompt}], "max_tokens": 24, "temperature": 0
        }  # fmt: skip
        found = self._ask_server("write", "POST", "/v1/chat/completions", content)
        return str(found["choices"][0]["message"]["content"]) if found else None

    def _remember(self, chance: random.Random) -> None:
        text = f"{words(chance, 6)} {chance.random()}"
        found = self._ask_server("remember", "POST", "/memories", {"messages": text, "user_id": "siege"})
        if found:
            with self._lock:
                self.kept[found["results"][0]["id"]] = text

    def _recall(self, chance: random.Random) -> None:
        content = {"query": words(chance, 4), "user_id": "siege", "top_k": 5, "rerank": False}
        self._ask_server("recall", "POST", "/search", content)

    def _forget(self, chance: random.Random) -> None:
        with self._lock:
            if not self.kept:
                return
            name = chance.choice(sorted(self.kept))
            text = self.kept.pop(name)
        found = self._ask_server("forget", "DELETE", f"/memories/{quote(name)}")
        with self._lock:
            if found is None:
                self.kept[name] = text
            elif found is not _UNKNOWN:
                self.deleted.add(name)

    def _mcp(self, chance: random.Random) -> None:
        tool = {"name": "search", "arguments": {"query": words(chance, 4)}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool}
        found = self._ask_server("mcp search", "POST", "/mcp", call)
        if found and "result" not in found:
            self.problems.append(f"the tool failed: {str(found)[:200]}")


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(WORDS, k=count))
