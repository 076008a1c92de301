"""`/v1/offers`: what the page may offer: pipelines, the scopes of the memory."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.memory.scope import SCOPE_FIELDS
from edge.apps.serve.editor import Editor
from edge.apps.serve.endpoint import Call
from edge.apps.serve.library import Library


class Offers:
    """The endpoints of one server."""

    def __init__(self, library: Library, editor: Editor) -> None:
        self._library = library
        self._editor = editor

    async def get(self, call: Call) -> dict[str, Any]:
        """The version, the names of the pipelines that answer questions, and whether documents can be opened in an
        editor."""
        return {
            "version": importlib.metadata.version("edge-rag"),
            "pipelines": list(PIPELINES),
            "editor": self._editor.is_named,
        }

    async def scopes(self, call: Call) -> Any:
        """The scopes that memories are stored under, with how many memories each holds, hidden ones included."""
        names = ", ".join(SCOPE_FIELDS)

        def read() -> list[dict[str, Any]]:
            with self._library.memory().store.read() as db:
                rows = db.execute(
                    f"SELECT {names}, count(*) FROM memories GROUP BY {names} ORDER BY {names}"
                ).fetchall()
            return [dict(zip((*SCOPE_FIELDS, "memories"), row, strict=True)) for row in rows]

        return {"scopes": await call.done(read)}
