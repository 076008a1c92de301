"""The vectors of memories: of a conversation's turns, and of all texts when they are computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edge.apps.memory.schema import ACTIONS, action_text
from edge.connection import Connection

Vectors = npt.NDArray[np.float32]

CONTEXT = 0.5
"""The weight of the previous turn in a turn's vector (`edge bench memory`)."""

_TINY = 1e-12


def in_context(vectors: Vectors, previous: Sequence[int | None]) -> Vectors:
    """The vectors of turns, each mixed with the vector of the turn before it, because an answer seldom names its
    question.

    Args:
        vectors: vectors of unit length, [n or more, dim].
        previous: for each of the first n rows, the row of the turn before it; None if there is none.

    Returns:
        The mixed vectors, [n, dim], of unit length.
    """
    mixed: Vectors = vectors[: len(previous)].copy()
    for row, place in enumerate(previous):
        if place is not None:
            mixed[row] += CONTEXT * vectors[place]
            mixed[row] /= max(float(np.linalg.norm(mixed[row])), _TINY)
    return mixed


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
