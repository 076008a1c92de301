"""What the server offers: its collections and parts of their documents, the pipelines, the scopes of the memory."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict
from typing import Any

from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.collection.collection import Collection
from edge.apps.memory.scope import SCOPE_FIELDS
from edge.apps.serve.editor import Editor
from edge.apps.serve.endpoint import Call
from edge.apps.serve.fields import Fields
from edge.apps.serve.library import Library


class Collections:
    """The endpoints of one server."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def every(self, call: Call) -> dict[str, Any]:
        """The names, with the directory of each and whether it holds a collection yet."""
        names = self._library.names()
        return {
            "collections": [
                {"name": name, "path": str(path), "exists": Collection.exists(path)} for name, path in names.items()
            ]
        }

    async def one(self, call: Call) -> dict[str, Any]:
        """What one holds, what was left out and why, and the state of its index."""
        name = call.request.path_params["name"]
        found: dict[str, Any] = await call.done(lambda: self._status(name))
        return found

    async def files(self, call: Call) -> dict[str, Any]:
        """The indexed files of one, in the order of their paths."""
        name = call.request.path_params["name"]

        def read() -> list[dict[str, Any]]:
            return [asdict(file) for file in self._library.collection(name).files()]

        return {"files": await call.done(read)}

    async def documents(self, call: Call) -> dict[str, Any]:
        """The indexed text of documents or of parts of them: `targets` as `edge get` takes them."""
        fields = Fields(await call.json())
        names, targets = fields.texts("collections", fields.texts("collection", [])), fields.paths("targets")
        lines, most = fields.optional_whole("lines"), fields.whole("max_bytes", _MOST_BYTES)

        def read() -> list[dict[str, Any]]:
            found = self._library.together(names).read(targets, lines=lines, max_bytes=min(most, _MOST_BYTES))
            return [asdict(excerpt) for excerpt in found]

        return {"documents": await call.done(read)}

    def _status(self, name: str) -> dict[str, Any]:
        collection = self._library.collection(name)
        status = collection.status().to_json()
        return {"name": name, **status, "descriptions": collection.descriptions()}


_MOST_BYTES = 1 << 20


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
