"""`ChatTemplate`: the form of a conversation that a model was trained on.

It is a Jinja program by an author who is not trusted: it runs in Jinja's sandbox, in a process with bounded time and
memory, on placeholders, so that no text can be mistaken for the model's control tokens."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from edge.errors import CapabilityError, ModelError
from edge.interpreter import python

if TYPE_CHECKING:  # the process that runs a template imports this file, too
    from edge.budget import MemoryBudget

Part = str | int
"""Text of the template, or the number of a message that is placed here."""

_PROCESS_NBYTES = 12 << 20
"""Memory of the interpreter with Jinja, measured with Python 3.11 on Linux (11.2 MB)."""

_ROOM, _ROOM_PER_CHARACTER = 4 << 20, 512
"""Bytes that compiling and running a template may take, and more for each of its characters. Dense ones take 450."""

_LONGEST_SOURCE = 1 << 16
"""Characters of a template. The longest published ones have about 20,000."""

USUAL_NBYTES = _PROCESS_NBYTES + _ROOM + _ROOM_PER_CHARACTER * 8000
"""Memory for a template of 8,000 characters. Most are shorter."""

_SECONDS = 2
"""Computing time of the process. It takes 0.07 s for a usual template."""

_PROCESS_SECONDS = 5.0
"""Computing time of the process and its libraries, where the system does not end it."""

_LOOK_SECONDS = 0.02
_LONGEST = 1 << 16
"""Characters that a template may write besides the messages; `_LONGEST_TURN` more for each message."""

_LONGEST_TURN = 1 << 10
_LONGEST_PROBLEM = 200
_FORMS = 16
"""Conversations, by the roles of their messages, whose forms are kept."""

_CHILD = "from edge.runtimes.generation.chat_template import run; run()"

# Private-use characters. No template searches for them, trims them or escapes them.
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACE = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class ChatTemplate:
    """Formats conversations for one model. Thread-safe. `nbytes` is that of the process that runs the template."""

    def __init__(self, source: str | None, budget: MemoryBudget, *, bos: str = "", eos: str = "") -> None:
        """It runs when it is used first. `source` None reads the messages with empty lines between them."""
        self._source = source
        self._room = _ROOM + _ROOM_PER_CHARACTER * len(source or "")
        self.nbytes = _PROCESS_NBYTES + self._room
        self._budget = budget
        self._values: Mapping[str, Any] = {"bos_token": bos, "eos_token": eos, "enable_thinking": False}
        self._lock = threading.Lock()
        self._form = lru_cache(_FORMS)(self._run)

    def render(self, roles: Sequence[str]) -> list[Part]:
        """The parts of a conversation with these roles, up to the beginning of the answer. A refused system message
        goes before the first user message. A template runs once a day for the same roles, since it may write the
        date."""
        if self._source is None:
            return [part for number in range(len(roles)) for part in (number, "\n\n")]
        with self._lock:
            return list(self._form(tuple(roles), time.strftime("%Y-%m-%d")))

    def _run(self, roles: tuple[str, ...], day: str) -> list[Part]:
        messages = [{"role": role, "content": f"{_OPEN}{number}{_CLOSE}"} for number, role in enumerate(roles)]
        ways = [messages]
        if roles[0] == "system" and "user" in roles:
            user = roles.index("user")
            both = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[user]['content']}"}
            ways.append([*messages[1:user], both, *messages[user + 1 :]])
        problem = ""
        for found in self._answers(ways):
            # A split by a pattern with one group gives text, number, text, number, ..., text.
            split = _PLACE.split(found.get("text", ""))
            parts: list[Part] = [int(part) if at % 2 else part for at, part in enumerate(split) if part or at % 2]
            if [part for part in parts if isinstance(part, int)] == list(range(len(roles))):
                return parts
            problem = problem or found.get("problem", "does not give every message once")
        raise ModelError(
            f"the model's chat template {problem} in a conversation of {len(roles)} messages "
            f"({', '.join(dict.fromkeys(roles))})"
        )

    def _answers(self, ways: Sequence[Sequence[Mapping[str, str]]]) -> list[dict[str, str]]:
        if importlib.util.find_spec("jinja2") is None:
            raise CapabilityError('chat templates need jinja2: pip install "edge-rag[llm]"')
        from edge.config import format_size

        if len(self._source or "") > _LONGEST_SOURCE:
            return [{"problem": f"has more than {_LONGEST_SOURCE:,} characters, so it is not run"}]
        task = {"source": self._source, "values": self._values, "ways": ways, "room": self._room}
        with self._budget.reserve("chat template", self.nbytes):
            try:
                child = subprocess.Popen(
                    python(_CHILD, isolated=True),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
            except OSError as error:
                raise CapabilityError(f"the process that runs chat templates cannot be started: {error}") from error
            with child:
                said = _read(child, json.dumps(task).encode("ascii"), self.nbytes)
        try:
            answers: list[dict[str, str]] = json.loads(said)
        except ValueError:  # it was ended before it could answer
            answers = [{"problem": f"does not run within {_SECONDS} s and {format_size(self._room)}"}]
        return answers


def _read(child: subprocess.Popen[bytes], asked: bytes, nbytes: int) -> bytes:
    """What the process says until it ends. It is killed if it takes too much, unless the system has ended it before."""
    import psutil  # not by the process that runs a template

    process = psutil.Process(child.pid)
    assert child.stdin is not None
    # `communicate` forgets what it has not written when its time is over, and then the process would wait without end.
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(asked)
    child.stdin = None
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.communicate(timeout=_LOOK_SECONDS)[0]
            held = process.memory_info()
            if held.rss - getattr(held, "shared", 0) > nbytes or sum(process.cpu_times()[:2]) > _PROCESS_SECONDS:
                break
        return b""
    finally:
        child.kill()


def run() -> None:
    """The process: reads conversations from stdin, and writes what the template makes of each of them."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):  # type: ignore[misc, unused-ignore]
        """A block that marks the assistant's text for training."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    asked = json.load(sys.stdin)
    # These are the settings and functions of transformers, for which the templates are written.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = time.strftime
    _limit(asked["room"])
    answers: list[dict[str, str]] = []
    try:
        template = environment.from_string(asked["source"])
        answers += [_answer(template, messages, asked["values"]) for messages in asked["ways"]]
    except MemoryError:
        return
    except (TemplateError, RecursionError, SyntaxError) as error:
        answers = [{"problem": f"is not valid Jinja ({error})"[:_LONGEST_PROBLEM]}]
    print(json.dumps(answers))


def _answer(template: Any, messages: Sequence[Mapping[str, str]], values: Mapping[str, Any]) -> dict[str, str]:
    longest = _LONGEST + _LONGEST_TURN * len(messages)
    try:
        text = template.render(messages=messages, add_generation_prompt=True, **values)
    except MemoryError:
        raise
    except Exception as error:  # a template is a program and can raise any error
        return {"problem": f"fails ({error})"[:_LONGEST_PROBLEM]}
    return {"text": text} if len(text) <= longest else {"problem": f"writes more than {longest:,} characters"}


def _limit(room: int) -> None:
    """Lets the system refuse memory and time beyond the limits, where it can (Linux)."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", "rb") as file:
            pages = [int(field) for field in file.read().split()]
        mapped, data = (pages[field] * resource.getpagesize() for field in (0, 5))
        for what, most in (
            (resource.RLIMIT_AS, mapped + room),
            (resource.RLIMIT_DATA, data + room),
            (resource.RLIMIT_CPU, _SECONDS),
        ):
            resource.setrlimit(what, (most, most))
