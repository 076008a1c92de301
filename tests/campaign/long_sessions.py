"""Long sessions: one process at one limit does a hundred things and more, with hostile and large content."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path

from campaign.base import Attack, Case, Outcome, failed
from campaign.discovery import found
from campaign.program import Home
from campaign.sessions.base import Session
from campaign.tasks import prepare

_LARGEST = 10**9
_SHORT = 10
"""Operations of the cases of the quick form."""


class LongSessions(Attack):
    name = "sessions"
    promise = "a process that does many things keeps its limit and what it confirmed, whatever it is asked"
    quick = 1

    def prepare(self, place: Path) -> None:
        self.home = Home(place / "home").with_tiny_models()
        prepare(self.home)
        self.sessions: dict[str, Session] = {}
        self._smallest: dict[str, int] = {}
        for kind in found(Session, "sessions"):
            if all(importlib.util.find_spec(name) for name in kind.needs):
                session = kind()
                session.prepare(self.home)
                self.sessions[session.name] = session

    def cases(self, chance: random.Random) -> Iterator[Case]:
        number = 0
        while True:
            round_ = list(self.sessions)
            chance.shuffle(round_)
            for name in round_:
                number += 1
                # Every other case lies at the smallest limit, where a byte too much shows.
                share = 0.0 if chance.random() < 0.5 else chance.random()
                count = _SHORT if number <= self.quick else chance.randint(100, 200)
                where = f"{share:.2f} of the way to 1 GB" if share else "the smallest limit"
                yield Case(f"{name}: {count} operations at {where}", (name, share, count, chance.getrandbits(32)))

    def attempt(self, case: Case, place: Path) -> Outcome:
        name, share, count, seed = case.data
        session = self.sessions[name]
        if name not in self._smallest:
            self._smallest[name] = session.smallest(self.home)
        smallest = self._smallest[name]
        limit = int(smallest + share * (_LARGEST - smallest))
        ended = session.run(self.home, limit, random.Random(seed), count)
        problem = ended.finished.fault(limit) or ended.problem
        if problem is not None and ended.suspect:
            problem += f", asked for {ended.suspect!a}"
        if problem is None and ended.finished.code not in session.ends:
            problem = str(ended.finished)
        outcome = failed(problem, ended.operations) if problem else Outcome(True, operations=ended.operations)
        return outcome.at(ended.finished.peak, limit)
