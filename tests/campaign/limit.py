"""Every verb, server and library call within its memory limit, from the smallest that a refusal names up to 1 GB."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from campaign.base import Attack, Case
from campaign.program import Finished, Home
from campaign.tasks import Task, prepare, tasks
from edge.config import parse_size

_TOO_LITTLE = "20MB"
"""Less than Python and numpy hold: everything refuses it."""

_LEFT_UNDONE = "could not be put in order"
_LARGEST = 10**9
_UNNAMED = 150 * 10**6
"""The smallest limit of what names none: threads, whose number a ledger does not know."""

_INTERRUPTED_AFTER_S = 3.0
_PATIENCE_S = 600.0
"""Time is not what is looked at here, and a campaign may share its machine."""


class Limit(Attack):
    name = "limit"
    promise = "no process tree holds more than its limit, and the smallest limit that is named works at the first try"
    quick = 6

    def prepare(self, place: Path) -> None:
        self.home = Home(place / "home").with_tiny_models()
        prepare(self.home)

    def cases(self, chance: random.Random) -> Iterator[Case]:
        while True:
            round_ = list(tasks(chance))
            chance.shuffle(round_)
            for task in round_:
                # Every other case lies at the smallest limit, where a byte too much shows.
                share = 0.0 if chance.random() < 0.5 else chance.random()
                where = f"{share:.2f} of the way to 1 GB" if share else "the smallest limit"
                yield Case(f"{task.name} at {where}", (task, share))

    def attempt(self, case: Case, place: Path) -> str | None:
        task, share = case.data
        if task.before is not None:
            task.before(self.home)
        smallest = _UNNAMED
        if task.named:
            refused = self._run(task, _TOO_LITTLE, interrupted=False)  # it ends by itself, however slow the machine is
            if problem := refused.fault(parse_size(_TOO_LITTLE)) if refused.code != 2 else None:
                return problem
            if refused.named is None:
                return f"{_TOO_LITTLE} is not refused with a number: {refused}"
            smallest = refused.named
        limit = int(smallest + share * (_LARGEST - smallest))
        done = self._run(task, f"{limit}B", interrupted=not task.ends)
        if problem := done.fault(limit):
            return problem
        if task.named and done.code not in (0, 1) and not (done.code == 130 and not task.ends):
            return f"{limit:,} bytes, at least the {smallest:,} that were named, do not work: {done}"
        if _LEFT_UNDONE in done.err:
            return f"within {limit:,} bytes, at least the {smallest:,} that were named: {done.err}"
        return None

    def _run(self, task: Task, limit: str, *, interrupted: bool) -> Finished:
        return self.home.edge(
            *task.arguments, "--memory", limit,
            stdin=task.stdin, sampled=True, command=task.command, patience=_PATIENCE_S,
            interrupted_after=_INTERRUPTED_AFTER_S if interrupted else None,
        )  # fmt: skip
