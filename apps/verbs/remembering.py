"""The work of a memory's verbs. Each result is under `result`, with the state of the memory beside it."""

from __future__ import annotations

from typing import Any

from edge.apps.memory.memory import Memory
from edge.apps.verbs.home import Home
from edge.apps.verbs.memories import Change, Delete, History, ListMemories, OneMemory, Recall, Remember, Supersede
from edge.apps.verbs.verb import Listener


def remember(home: Home, asked: Remember, listener: Listener) -> dict[str, Any]:
    with home.memory(asked, make=True) as memory:
        return _told(memory, memory.add(list(asked.texts), options=asked))


def recall(home: Home, asked: Recall, listener: Listener) -> dict[str, Any]:
    with home.memory(asked) as memory:
        return _told(memory, memory.search(asked.query, options=asked))


def list_memories(home: Home, asked: ListMemories, listener: Listener) -> dict[str, Any]:
    with home.memory(asked) as memory:
        return _told(memory, memory.get_all(options=asked))


def get(home: Home, asked: OneMemory, listener: Listener) -> dict[str, Any]:
    with home.memory(asked) as memory:
        return _told(memory, memory.get(asked.memory_id))


def change(home: Home, asked: Change, listener: Listener) -> dict[str, Any]:
    with home.memory(asked) as memory:
        memory.update(asked.memory_id, options=asked)
        return _told(memory, memory.get(asked.memory_id))


def delete(home: Home, asked: Delete, listener: Listener) -> dict[str, Any]:
    """Says which, and with `purge` what was erased."""
    with home.memory(asked) as memory:
        if asked.everything:
            done = [memory.delete_all(purge=asked.purge)]
        else:
            done = [memory.delete(memory_id, purge=asked.purge) for memory_id in asked.memory_ids]
        result: dict[str, Any] = {"deleted": "all" if asked.everything else list(asked.memory_ids)}
        if asked.purge and done:
            counts = {what: sum(one["erased"][what] for one in done) for what in done[0]["erased"]}
            result |= done[-1] | {"erased": counts}
        return _told(memory, result)


def supersede(home: Home, asked: Supersede, listener: Listener) -> dict[str, Any]:
    with home.memory(asked) as memory:
        memory.supersede(asked.memory_id, asked.by)
        return _told(memory, memory.get(asked.memory_id))


def history(home: Home, asked: History, listener: Listener) -> dict[str, Any]:
    with home.memory(asked) as memory:
        return _told(memory, memory.history(asked.memory_id, whole_chain=asked.whole_chain))


def _told(memory: Memory, result: Any) -> dict[str, Any]:
    health = memory.health()
    return {"result": result, "health": health.to_json(), "troubles": [str(trouble) for trouble in health]}
