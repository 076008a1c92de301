"""Stored files of every kind, damaged in every way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from campaign.base import HELD, Attack, Case, Outcome, failed
from campaign.damage import KINDS, damage
from campaign.discovery import found
from campaign.program import Home, Snapshot
from campaign.stored.base import Stored


class StoredDamage(Attack):
    name = "stored-damage"
    promise = "a damaged file is said, or made anew, and never gives another result in silence"
    quick = 28
    order = 10

    def prepare(self, place: Path) -> None:
        self.kinds: dict[str, tuple[Stored, Home, Snapshot]] = {}
        for kind in found(Stored, "stored"):
            stored = kind()
            home = Home(place / stored.name.replace(" ", "-") / "home")
            stored.prepare(home)
            self.kinds[stored.name] = stored, home, Snapshot(home.path)

    def cases(self, chance: random.Random) -> Iterator[Case]:
        names = [name for name, (stored, _, _) in self.kinds.items() for _ in range(stored.share)]
        while names:
            round_ = [(name, kind) for name in names for kind in KINDS]
            chance.shuffle(round_)
            for name, kind in round_:
                stored, home, _ = self.kinds[name]
                path = chance.choice(stored.files(home))
                relative = path.relative_to(home.path)
                yield Case(f"{name}: {relative}: {kind}", (name, relative, kind, chance.random()))

    def attempt(self, case: Case, place: Path) -> Outcome:
        name, relative, kind, seed = case.data
        stored, home, snapshot = self.kinds[name]
        snapshot.restore()
        path = home.path / relative
        said = damage(path, kind, random.Random(seed))
        problem = stored.judge(home, path)
        return HELD if problem is None else failed(f"{said}: {problem}")
