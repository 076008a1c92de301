"""mem0's dialect: the memory in the shape of its REST server and of its hosted service, for its clients and for tools
that speak to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from io import BytesIO
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from edge.apps.memory.arguments import SCOPE_FIELDS, Scope, check_metadata, check_text
from edge.apps.memory.command import DEFAULT_USER
from edge.apps.memory.memory import Memory
from edge.apps.memory.transfer import exported
from edge.apps.serve.body import Whole, options_of, with_idle, with_options
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.verbs.memories import ChangeOptions, RecallOptions, RememberOptions

_ACCOUNT = ("org_id", "project_id", "version", "output_format")


@with_idle({"app_id": ()}, _ACCOUNT)
class ScopeFields(Struct, kw_only=True):
    """The user, the agent and the run whose memories are meant."""

    user_id: str | int | None = None
    agent_id: str | int | None = None
    run_id: str | int | None = None

    def named(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SCOPE_FIELDS}

    def scope(self, filters: dict[str, Any] | None = None) -> dict[str, Any]:
        """The scope of the request; the default user's if neither ids nor filters name one."""
        named = self.named()
        if filters or any(value is not None for value in named.values()):
            return named
        return {**named, "user_id": DEFAULT_USER}


_EXTRACTION = (
    "infer", "includes", "excludes", "custom_categories", "custom_instructions", "agent_custom_instructions",
    "async_mode", "enable_graph", "memory_type", "prompt", "structured_data_schema",
)  # fmt: skip
"""Messages are stored as they were said."""


_NARROWED: dict[str, tuple[Any, ...]] = {"categories": ([],), "latest_only": (False,)}


@with_idle({"immutable": (False,), "filters": ({},)}, _EXTRACTION)
@with_options(RememberOptions)
class AddBody(ScopeFields, kw_only=True):
    """Messages to remember."""

    messages: Any


@with_idle({**_NARROWED, "metadata": ({},), "fields": ([],), "reference_date": ()}, ("keyword_search",))
@with_options(RecallOptions)
class FindBody(ScopeFields, kw_only=True):
    """A query to the memories of a scope that pass `filters`. Words are always searched beside meaning."""

    query: str


class ListQuery(ScopeFields, kw_only=True):
    """A list of the memories of a scope."""

    top_k: Whole | None = None
    limit: Whole | None = None
    show_expired: bool | None = None


@with_idle({**_NARROWED, "start_date": (), "end_date": ()})
class ListBody(ScopeFields, kw_only=True):
    """A list of the memories that pass `filters`."""

    filters: dict[str, Any] | None = None
    show_expired: bool | None = None


class PageQuery(Struct, kw_only=True):
    """A page of a list."""

    page: Whole | None = None
    page_size: Whole | None = None


@with_options(ChangeOptions)
class ChangeBody(Struct, kw_only=True):
    """Changes of one memory. `data` and `memory` are other names of `text`."""

    data: str | None = None
    memory: str | None = None


class HistoryQuery(Struct, kw_only=True):
    """The changes of one memory, or of all that superseded one another."""

    whole_chain: bool | None = None


class SupersedeBody(Struct, kw_only=True):
    """The id of the memory that takes another one's place; null lets that one hold again."""

    by: str | None


class ExportQuery(ScopeFields, kw_only=True):
    """The scope whose memories are exported; without ids all of them. `after` is the `next` of the page before."""

    after: Whole | None = None


class ImportBody(ScopeFields, kw_only=True):
    """Memories of an export. Those without ids belong to the scope that is named."""

    memories: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)]


class BatchEntry(Struct, kw_only=True):
    """One memory of a batch, with its changes."""

    memory_id: str
    text: Any = None
    metadata: Any = None


class BatchBody(Struct, kw_only=True):
    """Many memories at once."""

    memories: Annotated[list[BatchEntry], Meta(min_length=1, max_length=1000)]


def add(call: Call, body: AddBody) -> Any:
    """Remembers `messages`."""
    options = options_of(body, RememberOptions)
    return _told(call, lambda memory: memory.add(body.messages, **body.scope(), options=options))


def every(call: Call, query: ListQuery) -> Any:
    """Lists the memories of a scope, newest first."""
    most, hidden = query.top_k or query.limit or 100, bool(query.show_expired)
    return _told(call, lambda memory: memory.get_all(**query.scope(), top_k=most, show_expired=hidden))


def listed(call: Call, body: ListBody, query: PageQuery) -> Any:
    """Lists the memories that pass `filters`, newest first, page by page. `count` counts up to the first memory of the
    next page; it is 0 behind the last page."""
    page, size = query.page or 1, query.page_size or 100
    offset = (page - 1) * size

    def read(memory: Memory) -> dict[str, Any]:
        scope = body.scope(body.filters)
        results = memory.get_all(
            **scope, filters=body.filters, top_k=size + 1, offset=offset, show_expired=bool(body.show_expired)
        )["results"]
        after = _page(page + 1, size) if len(results) > size else None
        before = _page(page - 1, size) if page > 1 else None
        count = offset + len(results) if results else 0
        return {"count": count, "next": after, "previous": before, "results": results[:size]}

    return _told(call, read)


def _page(number: int, size: int) -> str:
    return f"/v3/memories/?page={number}&page_size={size}"


def find(call: Call, body: FindBody) -> Any:
    """Finds the memories of a scope that say most about a query, best first."""
    options = options_of(body, RecallOptions)
    return _told(
        call,
        lambda memory: memory.search(body.query, options=options, **body.scope(options.filters)),  # type: ignore[arg-type]
    )


async def ping(call: Call) -> dict[str, str]:
    """Answers the first request of mem0's client."""
    return {"status": "ok", "org_id": "local", "project_id": "local", "user_email": ""}


def one(call: Call) -> Any:
    """Shows one memory."""
    return _known(call.library.memory(), [call.named("memory_id")])


def update(call: Call, body: ChangeBody) -> Any:
    """Changes the `text` or the `metadata` of a memory, pins it (`pinned`), or hides it (`forgotten`)."""
    name, memory = call.named("memory_id"), call.library.memory()
    _known(memory, [name])
    options = options_of(body, ChangeOptions)
    return memory.update(name, options=options, data=body.data if body.data is not None else body.memory)


class PurgeQuery(Struct, kw_only=True):
    """`purge`: erase the memory with its history, also where it was deleted before."""

    purge: bool | None = None


def delete(call: Call, query: PurgeQuery) -> Any:
    """Deletes one memory; its history stays, unless `purge`."""
    name, memory = call.named("memory_id"), call.library.memory()
    if not (query.purge and memory.history(name)):
        _known(memory, [name])
    return memory.delete(name, purge=bool(query.purge))


@with_idle({"filters": ()})
class DeleteQuery(ScopeFields, kw_only=True):
    """The scope whose memories are deleted; `purge` erases them with all histories of the scope."""

    purge: bool | None = None


def delete_all(call: Call, query: DeleteQuery) -> Any:
    """Deletes the memories of a scope, which must be named; their histories stay, unless `purge`."""
    return call.library.memory().delete_all(**query.named(), purge=bool(query.purge))


def history(call: Call, query: HistoryQuery) -> Any:
    """Lists every change of a memory, oldest first."""
    return call.library.memory().history(call.named("memory_id"), whole_chain=bool(query.whole_chain))


def supersede(call: Call, body: SupersedeBody) -> Any:
    """Ends a memory where another one takes its place, or lets it hold again."""
    name, memory = call.named("memory_id"), call.library.memory()
    _known(memory, [name])
    return memory.supersede(name, body.by)


_PAGE_NBYTES = 1 << 20


def export(call: Call, query: ExportQuery) -> dict[str, Any]:
    """Returns the memories of a scope with their histories, oldest first, page by page. `next` is null at the end."""
    memories: list[dict[str, Any]] = []
    nbytes = 0
    with closing(exported(call.library.memory().store, Scope.of(query.named()), query.after or 0)) as found:
        for number, memory in found:
            memories.append(memory)
            size = len(msgspec.json.encode(memory))
            call.hold_more(_COPIES * size)
            nbytes += size
            if nbytes >= _PAGE_NBYTES:
                return {"memories": memories, "next": number}
    return {"memories": memories, "next": None}


_COPIES = 4


def take_in(call: Call, body: ImportBody) -> dict[str, int]:
    """Takes in memories of an export. Those that are there already stay as they are."""
    lines = BytesIO(b"\n".join(map(msgspec.json.encode, body.memories)))
    return {"count": call.library.memory().within(Scope.of(body.named())).import_jsonl(lines)}


def reset(call: Call) -> dict[str, str]:
    """Deletes everything."""
    call.library.memory().reset()
    return {"message": "All memories reset"}


_KINDS = ("user", "agent", "run")


def entities(call: Call) -> dict[str, Any]:
    """Lists the users, agents and runs that memories belong to, each with the number of its memories."""
    found = []
    with call.library.memory().store.read() as db:
        for kind in _KINDS:
            column = f"{kind}_id"
            named = f"FROM memories WHERE {column} IS NOT NULL GROUP BY {column} ORDER BY {column}"
            rows = db.execute(f"SELECT {column}, count(*) {named}").fetchall()
            found += [{"id": name, "name": name, "type": kind, "total_memories": count} for name, count in rows]
    return {"count": len(found), "next": None, "previous": None, "results": found}


def delete_entity(call: Call, query: PurgeQuery) -> Any:
    """Deletes the memories of a user, an agent or a run; their histories stay, unless `purge`."""
    kind, name = call.named("kind"), call.named("name")
    if kind not in _KINDS:
        raise HttpRefusal(422, f"an entity is a {', '.join(_KINDS[:-1])} or {_KINDS[-1]}, not {kind[:40]!a}")
    # A name without memories is no error: the client's `reset` lists all entities first, and a memory may belong to
    # several of them.
    return call.library.memory().delete_all(**{f"{kind}_id": name}, purge=bool(query.purge))


def update_batch(call: Call, body: BatchBody) -> dict[str, str]:
    """Changes the text or the metadata of many memories."""
    for change in body.memories:
        if change.text is None and change.metadata is None:
            raise HttpRefusal(422, "an entry of `memories` has a `text` or `metadata`; nothing was changed")
        if change.text is not None:
            check_text(change.text, "text")
        if change.metadata is not None:
            check_metadata(change.metadata)
    memory = call.library.memory()
    _known(memory, [change.memory_id for change in body.memories])
    for change in body.memories:
        memory.update(change.memory_id, change.text, change.metadata)
    return {"message": f"Successfully updated {len(body.memories)} memories"}


def delete_batch(call: Call, body: BatchBody) -> dict[str, str]:
    """Deletes many memories."""
    memory, names = call.library.memory(), [change.memory_id for change in body.memories]
    _known(memory, names)
    for name in dict.fromkeys(names):
        memory.delete(name)
    return {"message": f"Successfully deleted {len(names)} memories"}


def _told(call: Call, work: Callable[[Memory], dict[str, Any]]) -> dict[str, Any]:
    memory = call.library.memory()
    result, health = work(memory), memory.health()
    return result if health else {**result, "health": health.to_json()}


def _known(memory: Memory, names: Sequence[str]) -> Any:
    found = None
    for name in names:
        found = memory.get(name)
        if found is None:
            raise HttpRefusal(404, f"there is no memory {name[:80]!a}; nothing was changed")
    return found


def _under(base: str) -> tuple[ServedPath, ...]:
    return (
        ServedPath("POST", base, add, AddBody),
        ServedPath("GET", base, every, query=ListQuery),
        ServedPath("DELETE", base, delete_all, query=DeleteQuery),
        ServedPath("GET", base + "/{memory_id}", one),
        ServedPath("PUT", base + "/{memory_id}", update, ChangeBody),
        ServedPath("DELETE", base + "/{memory_id}", delete, query=PurgeQuery),
        ServedPath("GET", base + "/{memory_id}/history", history, query=HistoryQuery),
        ServedPath("POST", base + "/{memory_id}/supersede", supersede, SupersedeBody),
    )


PATHS = (
    *_under("/memories"),
    *_under("/v1/memories"),
    ServedPath("POST", "/search", find, FindBody),
    ServedPath("POST", "/v1/memories/search", find, FindBody),
    ServedPath("POST", "/v3/memories/search", find, FindBody),
    ServedPath("POST", "/v3/memories/add", add, AddBody),
    ServedPath("POST", "/v3/memories", listed, ListBody, PageQuery),
    ServedPath("GET", "/v1/export", export, query=ExportQuery),
    ServedPath("POST", "/v1/import", take_in, ImportBody),
    ServedPath("POST", "/reset", reset),
    ServedPath("GET", "/v1/ping", ping),
    ServedPath("GET", "/v1/entities", entities),
    ServedPath("DELETE", "/v2/entities/{kind}/{name:path}", delete_entity, query=PurgeQuery),
    ServedPath("PUT", "/v1/batch", update_batch, BatchBody),
    ServedPath("DELETE", "/v1/batch", delete_batch, BatchBody),
)
