"""A siege of one server: many clients of which half misbehave, mixed work, memory looked at from outside."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path

from making.random_gguf import made_model

from campaign.base import HELD, Attack, Case, Outcome, failed
from campaign.besiegers import Besiegers, words
from campaign.program import Home
from campaign.server import Running

_CLIENTS = 8
_PROMPTS = 12
_PAUSE_S = 0.25
"""Mean of a client's pauses between two requests."""


class Siege(Attack):
    name = "siege"
    promise = "a besieged server keeps its limit and every confirmed write, also when it is killed meanwhile"
    quick = 2
    needs = ("starlette", "uvicorn", "mcp", "llama_cpp")

    def prepare(self, place: Path) -> None:
        self.llm = made_model(place, "tiny")

    def cases(self, chance: random.Random) -> Iterator[Case]:
        while True:
            # A smallest limit is enough, where a byte too much shows; with a language model texts are compared, too.
            for llm in (False, True):
                seconds = chance.uniform(8, 12)
                yield Case("a model writes" if llm else "the smallest limit", (llm, seconds, chance.getrandbits(32)))

    def attempt(self, case: Case, place: Path) -> Outcome:
        llm, seconds, seed = case.data
        home = _prepared(place / str(seed))
        chance = random.Random(seed)
        limit = 10**9 if llm else home.edge("serve", "--port", "0", "-c", "col", "--memory", "20MB").named
        if limit is None:
            return failed("20MB is not refused with a number")
        prompts = [f"Write about the {words(chance, 3)}." for _ in range(_PROMPTS)] if llm else []
        # Texts are compared with those that are written alone.
        options = ["--llm", str(self.llm), "--generation", "exact"] if llm else []
        with Besieged(home, place / f"memory-{seed}", limit, options) as server:
            if server.port == 0:
                return failed(f"the server did not start: {server.running.said}")
            attack = Besiegers(server.port, _CLIENTS, seconds, _PAUSE_S, seed, prompts)
            attack.warm()
            killing = threading.Thread(target=server.kill, args=(chance.uniform(0.2, 0.8) * seconds,))
            killing.start()
            attack.run()
            killing.join()
            problems = [*attack.problems, *_lost(server.port, attack), *server.end()]
            server.start()
            problems += [*_lost(server.port, attack), *server.end()]
        begun, ended = server.killed
        problems += [text for asked, answered, text in attack.unanswered if not (asked < ended and begun < answered)]
        if not (attack.kept or attack.deleted) or not attack.mischief or not attack.seconds:
            problems.append(f"the clients did nothing but {', '.join(attack.seconds)}")
        if server.peak > limit:
            problems.append(f"took {server.peak:,} bytes, {server.peak / limit:.3f} times the limit")
        return (failed("; ".join(problems)) if problems else HELD).at(server.peak, limit)


class Besieged:
    """A server that is sampled from outside, and that may be killed and started again on its port."""

    def __init__(self, home: Home, memory: Path, limit: int, options: Sequence[str]) -> None:
        self.killed = (0.0, 0.0)
        self.peak = 0
        self.port = 0
        self._make = lambda port: Running(home, limit, memory, port, options)

    def __enter__(self) -> Besieged:
        self.start()
        return self

    def start(self) -> None:
        """Starts it on the port that it had before."""
        self.running = self._make(self.port).__enter__()
        self.port = self.running.port

    def kill(self, after: float) -> None:
        """Kills it so many seconds from now, and starts it again."""
        time.sleep(after)
        begun = time.monotonic()
        self.__exit__()
        self.start()
        self.killed = (begun, time.monotonic())

    def end(self) -> list[str]:
        """Ends it as Ctrl-C does; what is wrong with that."""
        code, errors = self.running.end()
        self.__exit__()
        return [f"ended with {code} and said {errors[-300:]!r}"] if code != 0 or errors.strip() else []

    def __exit__(self, *error: object) -> None:
        self.running.__exit__(*error)
        self.peak = max(self.peak, self.running.peak)


def _lost(port: int, attack: Besiegers) -> list[str]:
    """What is wrong with the confirmed writes and deletions."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", f"/memories?user_id=siege&limit={len(attack.kept) + len(attack.deleted) + 1000}")
        answer = connection.getresponse()
        found = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status != 200:
        return [f"the memories cannot be listed: {answer.status} {found}"]
    known = {memory["id"]: memory["memory"] for memory in found["results"]}
    lost = [name for name, text in attack.kept.items() if known.get(name) != text]
    lost += [name for name in attack.deleted if name in known]
    return [f"{len(lost)} confirmed writes or deletions are lost, such as {lost[0]}"] if lost else []


def _prepared(place: Path) -> Home:
    """A home with tiny models and a small collection named `col`."""
    home = Home(place).with_tiny_models()
    documents = home.work / "documents"
    documents.mkdir()
    for number in range(40):
        text = ". ".join(words(random.Random(number * 100 + line), 14) for line in range(12))
        (documents / f"{number}.md").write_text(f"# Part {number}\n\n{text}.\n", encoding="utf-8")
    made = home.edge("index", "documents", "-c", "col")
    assert made.code == 0, made
    return home
