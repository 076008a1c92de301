"""The work of a memory's verbs. Each result is under `result`, with the state of the memory beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.apps.memory.memory import Memory
from edge.apps.verbs.home import Home
from edge.apps.verbs.memories import Change, Delete, Supersede
from edge.apps.verbs.verb import Listener

Work = Callable[[Home, Any, Listener], dict[str, Any]]


def _memory(work: Callable[[Memory, Any], Any], *, make: bool = False) -> Work:
    def done(home: Home, asked: Any, listener: Listener) -> dict[str, Any]:
        with home.memory(asked, make=make) as memory:
            result, health = work(memory, asked), memory.health()
        return {"result": result, "health": health.to_json(), "troubles": [str(trouble) for trouble in health]}

    return done


def _change(memory: Memory, asked: Change) -> Any:
    memory.update(asked.memory_id, options=asked)
    return memory.get(asked.memory_id)


def _delete(memory: Memory, asked: Delete) -> dict[str, Any]:
    """Says which, and with `purge` what was erased."""
    if asked.everything:
        done = [memory.delete_all(purge=asked.purge)]
    else:
        done = [memory.delete(memory_id, purge=asked.purge) for memory_id in asked.memory_ids]
    result: dict[str, Any] = {"deleted": "all" if asked.everything else list(asked.memory_ids)}
    if asked.purge and done:
        counts = {what: sum(one["erased"][what] for one in done) for what in done[0]["erased"]}
        result |= done[-1] | {"erased": counts}
    return result


def _supersede(memory: Memory, asked: Supersede) -> Any:
    memory.supersede(asked.memory_id, asked.by)
    return memory.get(asked.memory_id)


remember = _memory(lambda memory, asked: memory.add(list(asked.texts), options=asked), make=True)
recall = _memory(lambda memory, asked: memory.search(asked.query, options=asked))
list_memories = _memory(lambda memory, asked: memory.get_all(options=asked))
get = _memory(lambda memory, asked: memory.get(asked.memory_id))
change, delete, supersede = _memory(_change), _memory(_delete), _memory(_supersede)
history = _memory(lambda memory, asked: memory.history(asked.memory_id, whole_chain=asked.whole_chain))
