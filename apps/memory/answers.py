"""Results in the form callers get them: mem0's, with what only this library knows beside it."""

from __future__ import annotations

from typing import Any

from edge.apps.memory.ledger import Added
from edge.apps.memory.searching import Candidate


def added_json(added: Added) -> dict[str, Any]:
    """What became of an entry: `id`, `memory`, `event`, and `similar` earlier memories if there are any."""
    record = added.record
    document: dict[str, Any] = {"id": record.uuid, "memory": record.text, "event": added.event}
    if record.role is not None:
        document |= {"actor_id": record.actor_id, "role": record.role}
    if added.similar:
        document["similar"] = [
            {"id": other.uuid, "memory": other.text, "similarity": similarity} for other, similarity in added.similar
        ]
    return document


def found_json(candidate: Candidate, *, explain: bool) -> dict[str, Any]:
    """A search result: the memory, its `score` and `relevance`, and, if asked for, `score_details`."""
    document = {**candidate.record.to_json(), "score": candidate.score, "relevance": candidate.relevance}
    if explain:
        document["score_details"] = dict(candidate.details)
    return document
