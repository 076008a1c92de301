"""`ChunkRebuild`: the passages that a collection's vectors are made from."""

from __future__ import annotations

from collections.abc import Sequence

from edge.apps.collection.catalog import passage, verify_text
from edge.apps.collection.models import Models
from edge.apps.store.rebuilding import Floats
from edge.connection import Connection


class ChunkRebuild:
    """Implements `edge.apps.store.rebuilding.Source` for a collection."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def rows(self, db: Connection, after: int, limit: int) -> list[tuple[int, str]]:
        sql = "SELECT id, context, text, hash FROM chunks WHERE id > ? ORDER BY id LIMIT ?"
        found = db.execute(sql, (after, limit)).fetchall()
        for row in found:
            verify_text(*row)
        return [(identifier, passage(context, text)) for identifier, context, text, _ in found]

    def count(self, db: Connection, after: int) -> int:
        return int(db.execute("SELECT count(*) FROM chunks WHERE id > ?", (after,)).fetchone()[0])

    def vectors(self, made_from: Sequence[str]) -> Floats:
        return self._models.embed(made_from)
