"""Requests that mem0's client sends to its hosted service only: entities, and many memories at once."""

from __future__ import annotations

from typing import Any

from edge.apps.memory.arguments import check_metadata, check_text
from edge.apps.memory.memory import Memory
from edge.apps.serve.endpoint import Call
from edge.apps.serve.fields import Fields
from edge.apps.serve.library import Library
from edge.apps.serve.refusals import Refusal

_KINDS = ("user", "agent", "run")
"""Kinds of entities; the id of each is a field of a memory's scope, such as `user_id`."""

_MOST = 1000
"""Memories of one request, as the hosted service has it."""


class HostedMemories:
    """The endpoints of one server."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def entities(self, call: Call) -> dict[str, Any]:
        """`/v1/entities`: the users, agents and runs that memories belong to, each with the number of its memories."""

        def read() -> list[dict[str, Any]]:
            found = []
            with self._library.memory().store.read() as db:
                for kind in _KINDS:
                    column = f"{kind}_id"
                    named = f"FROM memories WHERE {column} IS NOT NULL GROUP BY {column} ORDER BY {column}"
                    rows = db.execute(f"SELECT {column}, count(*) {named}").fetchall()
                    found += [{"id": n, "name": n, "type": kind, "total_memories": count} for n, count in rows]
            return found

        results = await call.done(read)
        return {"count": len(results), "next": None, "previous": None, "results": results}

    async def delete_entity(self, call: Call) -> Any:
        """`/v2/entities/TYPE/NAME`: deletes the memories of a user, an agent or a run."""
        kind, name = (str(call.request.path_params[part]) for part in ("kind", "name"))
        if kind not in _KINDS:
            raise Refusal(422, f"an entity is a {', '.join(_KINDS[:-1])} or {_KINDS[-1]}, not {kind[:40]!a}")
        # A name without memories is no error: the client's `reset` lists all entities first, and a memory may belong to
        # several of them.
        return await call.done(lambda: self._library.memory().delete_all(**{f"{kind}_id": name}))

    async def update_batch(self, call: Call) -> Any:
        """`/v1/batch` with PUT: changes the text or the metadata of many memories."""
        changes = _changes(Fields(await call.json()))
        for change in changes:
            _check_change(change)

        def update() -> dict[str, Any]:
            memory = self._library.memory()
            _check(memory, changes)
            for change in changes:
                memory.update(str(change["memory_id"]), change.get("text"), change.get("metadata"))
            return {"message": f"Successfully updated {len(changes)} memories"}

        return await call.done(update)

    async def delete_batch(self, call: Call) -> Any:
        """`/v1/batch` with DELETE: deletes many memories."""
        changes = _changes(Fields(await call.json()))

        def delete() -> dict[str, Any]:
            memory = self._library.memory()
            _check(memory, changes)
            for name in dict.fromkeys(str(change["memory_id"]) for change in changes):
                memory.delete(name)
            return {"message": f"Successfully deleted {len(changes)} memories"}

        return await call.done(delete)


def _changes(fields: Fields) -> list[dict[str, Any]]:
    changes = fields.list_of("memories")
    if not 0 < len(changes) <= _MOST:
        raise Refusal(422, f"the field `memories` has 1 to {_MOST} entries, not {len(changes)}")
    for change in changes:
        if not isinstance(change, dict) or not isinstance(change.get("memory_id"), str):
            raise Refusal(422, "an entry of `memories` is an object with a `memory_id`")
    return changes


def _check_change(change: dict[str, Any]) -> None:
    """Refuses a change that cannot be made, before any other is made.

    Raises:
        Refusal, InputError: it changes nothing, or to something that is no text or no metadata.
    """
    text, metadata = change.get("text"), change.get("metadata")
    if text is None and metadata is None:
        raise Refusal(422, "an entry of `memories` has a `text` or `metadata`; nothing was changed")
    if text is not None:
        check_text(text, "text")
    if metadata is not None:
        check_metadata(metadata)


def _check(memory: Memory, changes: list[dict[str, Any]]) -> None:
    """Refuses everything if one memory is missing, so that nothing is half done."""
    missing = [name for name in (change["memory_id"] for change in changes) if memory.get(name) is None]
    if missing:
        raise Refusal(404, f"there is no memory {missing[0][:80]!a}; nothing was changed")
