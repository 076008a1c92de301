"""`MemoryRebuild`: supplies the texts from which the vectors of a memory are computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from edge.apps.memory.schema import ACTIONS, action_text
from edge.apps.memory.turns import Vectors, in_context
from edge.connection import Connection

REBUILD = "edge memory rebuild"
"""The command that messages recommend when vectors cannot be read."""


class MadeFrom(NamedTuple):
    """The input of a vector: a text, and the turn before it if the text is a turn of a conversation."""

    text: str
    before: str | None = None


class MemoryRebuild:
    """The source of a rebuild (`edge.apps.store.rebuilding.Source`): memories first, then actions."""

    def __init__(self, embed: Callable[[list[str]], Vectors]) -> None:
        self._embed = embed

    def rows(self, db: Connection, after: int, limit: int) -> list[tuple[int, MadeFrom]]:
        memories = db.execute(
            "SELECT memories.id, memories.text, earlier.text FROM memories "
            "LEFT JOIN memories AS earlier ON earlier.id = memories.follows "
            "WHERE memories.id > ? ORDER BY memories.id LIMIT ?",
            (after, limit),
        ).fetchall()
        if memories:
            return [(identifier, MadeFrom(text, before)) for identifier, text, before in memories]
        sql = "SELECT id, task, state FROM actions WHERE id > ? ORDER BY id LIMIT ?"
        actions = db.execute(sql, (after - ACTIONS, limit))
        return [(ACTIONS + identifier, MadeFrom(action_text(task, state))) for identifier, task, state in actions]

    def count(self, db: Connection, after: int) -> int:
        sql = "SELECT (SELECT count(*) FROM memories WHERE id > ?) + (SELECT count(*) FROM actions WHERE id > ?)"
        return int(db.execute(sql, (after, after - ACTIONS)).fetchone()[0])

    def vectors(self, made_from: Sequence[MadeFrom]) -> Vectors:
        texts = [text for text, _ in made_from]
        place = {text: number for number, text in enumerate(texts)}
        for _, before in made_from:
            if before is not None and before not in place:
                place[before] = len(texts)
                texts.append(before)
        return in_context(self._embed(texts), [None if before is None else place[before] for _, before in made_from])
