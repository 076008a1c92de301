"""`/v1/collections`: which collections there are, what they hold, and parts of their documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from edge.apps.collection.collection import Collection
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
        names, targets = fields.texts("collections", fields.texts("collection", [])), fields.texts("targets")
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
