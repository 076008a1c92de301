"""The memory in the shape of mem0's REST server, so that its clients and tools that speak to it work here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from edge.apps.memory.arguments import check_metadata, check_text
from edge.apps.memory.console import DEFAULT_USER
from edge.apps.memory.memory import Memory
from edge.apps.memory.scope import SCOPE_FIELDS
from edge.apps.serve.endpoint import Call
from edge.apps.serve.json_values import Fields
from edge.apps.serve.library import Library
from edge.apps.serve.refusals import Refusal


class Memories:
    """The endpoints of one server."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def add(self, call: Call) -> Any:
        """Remembers `messages`."""
        fields = Fields(await call.json())
        messages = fields.raw("messages")
        if messages is None:
            raise Refusal(422, "the field `messages` is missing")
        given = {name: fields.raw(name) for name in ("metadata", "timestamp", "expiration_date", "importance")}
        return await call.done(
            lambda: _told(self._library.memory(), lambda memory: memory.add(messages, **_scope(fields), **given))
        )

    async def every(self, call: Call) -> Any:
        """The memories of a scope, newest first."""
        fields = Fields(dict(call.request.query_params))
        count = _count(fields, 100)
        hidden = fields.text("show_expired", "false") == "true"
        return await call.done(
            lambda: _told(
                self._library.memory(),
                lambda memory: memory.get_all(**_scope(fields), top_k=count, show_expired=hidden),
            )
        )

    async def listed(self, call: Call) -> Any:
        """The memories that pass `filters`, newest first, as mem0's hosted service lists them page by page.

        `count` counts up to the first memory of the next page; 0 behind the last page.
        """
        fields = Fields(await call.json())
        query = Fields(dict(call.request.query_params))
        page, size = _count(query, 1, "page"), _count(query, 100, "page_size")
        filters, offset = _filters(fields), (page - 1) * size

        def read(memory: Memory) -> dict[str, Any]:
            found = memory.get_all(**_named(fields, filters), filters=filters, top_k=size + 1, offset=offset)
            results = found["results"]
            after = _page(page + 1, size) if len(results) > size else None
            before = _page(page - 1, size) if page > 1 else None
            count = offset + len(results) if results else 0
            return {"count": count, "next": after, "previous": before, "results": results[:size]}

        return await call.done(lambda: _told(self._library.memory(), read))

    async def ping(self, call: Call) -> Any:
        """What mem0's client asks for before anything else."""
        return {"status": "ok", "org_id": "local", "project_id": "local", "user_email": ""}

    async def one(self, call: Call) -> Any:
        """One memory."""
        name = _id(call)
        found = await call.done(lambda: self._library.memory().get(name))
        if found is None:
            raise Refusal(404, f"there is no memory {name[:80]!a}")
        return found

    async def search(self, call: Call) -> Any:
        """The memories of a scope that say most about a query, best first."""
        fields = Fields(await call.json())
        query, count = fields.text("query"), _count(fields, 20)
        filters = _filters(fields)
        scope = _named(fields, filters)
        threshold = fields.number("threshold") if "threshold" in fields else None
        rerank = fields.flag("rerank", True)
        return await call.done(
            lambda: _told(
                self._library.memory(),
                lambda memory: memory.search(
                    query, top_k=count, filters=filters, threshold=threshold, rerank=rerank, **scope
                ),
            )
        )

    async def update(self, call: Call) -> Any:
        """Changes what is given of a memory: `text`, `metadata`, `pinned`, `forgotten`."""
        name, fields = _id(call), Fields(await call.json())
        text = next((fields.text(key) for key in ("text", "data", "memory") if key in fields), None)
        metadata = fields.raw("metadata")

        def change() -> dict[str, Any]:
            memory = self._library.memory()
            done: dict[str, Any] | None = None
            if text is not None or metadata is not None:
                done = memory.update(name, text, metadata)
            if "pinned" in fields:
                done = memory.pin(name, fields.flag("pinned", True))
            if "forgotten" in fields:
                done = memory.forget(name, fields.flag("forgotten", True))
            return done or memory.update(name)  # which says that there is nothing to change

        return await call.done(change)

    async def delete(self, call: Call) -> Any:
        """Deletes a memory."""
        name = _id(call)
        return await call.done(lambda: self._library.memory().delete(name))

    async def delete_all(self, call: Call) -> Any:
        """Deletes the memories of a scope, which must be named."""
        fields = Fields(dict(call.request.query_params))
        scope = {name: fields.raw(name) for name in SCOPE_FIELDS}
        return await call.done(lambda: self._library.memory().delete_all(**scope))

    async def history(self, call: Call) -> Any:
        """Every change of a memory, oldest first."""
        name = _id(call)
        return await call.done(lambda: self._library.memory().history(name))

    async def reset(self, call: Call) -> Any:
        """Deletes everything."""
        await call.done(lambda: self._library.memory().reset())
        return {"message": "All memories reset"}


def _told(memory: Memory, work: Callable[[Memory], dict[str, Any]]) -> dict[str, Any]:
    """What some work returns; with the state of the memory where that is not in order."""
    result, health = work(memory), memory.health()
    return result if health else {**result, "health": health.to_json()}


def _page(number: int, size: int) -> str:
    """The address of a page of a list."""
    return f"/v3/memories/?page={number}&page_size={size}"


def _id(call: Call) -> str:
    return str(call.request.path_params["memory_id"])


def _scope(fields: Fields) -> dict[str, Any]:
    """The scope that a request names; the default user's if it names none, as on the command line."""
    scope = {name: fields.raw(name) for name in SCOPE_FIELDS}
    return scope if any(value is not None for value in scope.values()) else {**scope, "user_id": DEFAULT_USER}


def _filters(fields: Fields) -> dict[str, Any] | None:
    filters = fields.raw("filters")
    if filters is not None and not isinstance(filters, dict):
        raise Refusal(422, "the field `filters` is an object")
    return filters


def _named(fields: Fields, filters: dict[str, Any] | None) -> dict[str, Any]:
    """The scope that a request's fields name. Filters may name one, too: then nothing is added to them."""
    return {name: fields.raw(name) for name in SCOPE_FIELDS} if filters else _scope(fields)


_DIGITS = re.compile("[0-9]{1,20}")


def _count(fields: Fields, default: int, *names: str) -> int:
    for name in names or ("top_k", "limit"):
        value = fields.raw(name)
        if value is not None:
            if isinstance(value, str) and _DIGITS.fullmatch(value):  # of an address, which holds texts only
                value = int(value)
            return Fields({name: value}).whole(name)
    return default


_KINDS = ("user", "agent", "run")
"""Kinds of entities; the id of each is a field of a memory's scope, such as `user_id`."""

_MOST = 1000
"""Memories of one request, as the hosted service has it."""


class HostedMemories:
    """The endpoints for requests that mem0's client sends to its hosted service only: entities, and many memories at
    once."""

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
