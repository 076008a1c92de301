"""A long conversation about documents that is piped in: questions, commands, noise, and lines of up to 60 MB."""

from __future__ import annotations

import json
import random

from campaign.contents import KINDS, text, words
from campaign.program import Home
from campaign.sessions.base import Ended, Live, Session

_NOISE = (b"\xff\xfe\x00", b"\x1b[31mred\x9b", "\u202ebackwards\u2066".encode(), b"\x00" * 100, b"?" * 300, b"-")
_COMMANDS = (b"", b"   ", b"/sources", b"/why", b"/new", b"/help", b"/nonsense \x1b[2J")


class Chat(Session):
    """Every line that asks for something is answered, on stdout or, if it is refused, on stderr."""

    name = "chat"

    def arguments(self, home: Home) -> list[str]:
        return ["chat", "--json", "--collection", "kept"]

    def run(self, home: Home, limit: int, chance: random.Random, count: int) -> Ended:
        answered = 0
        problem = None
        with Live(home, self.arguments(home), limit) as live:
            for number in range(count):
                line, asks = self._line(chance)
                live.say(line + b"\n")
                answered += asks
                if number % 10 == 9:
                    due = answered
                    if not live.wait(lambda: _answers(live) >= due):  # noqa: B023
                        problem = (
                            f"{due} lines ask for an answer, and {_answers(live)} came; the last was {line[:100]!r}"
                        )
                        break
                live.note(f"{line[:100]!r} ({len(line):,} bytes)")
            finished = live.finish()
            if problem is None and _answers(live) < answered:
                problem = f"{answered} lines ask for an answer, and {_answers(live)} came"
        return Ended(finished, count, problem, live.suspect)

    def _line(self, chance: random.Random) -> tuple[bytes, bool]:
        """A line, and whether it asks for an answer."""
        what = chance.random()
        if what < 0.5:
            return f"where is the {words(chance, 1, 9)}?".encode(), True
        if what < 0.7:
            said = text(chance.choice(list(KINDS)), chance)[: chance.choice((200, 10_000))]
            return said.encode(), not said.startswith("/")  # base64 may look like a command
        if what < 0.8:
            return chance.choice(_NOISE), True
        if what < 0.95:
            return chance.choice(_COMMANDS), False
        return chance.choice((b"x", b"x ", "é".encode())) * int(10 ** chance.uniform(5, 7.4)), True


def _answers(live: Live) -> int:
    """Answers and refusals until now. A notice about an answer looks like a refusal: there may be more than lines."""
    return sum(1 for line in live.lines if json.loads(line)) + f"\n{live.errors}".count("\nedge: ")
