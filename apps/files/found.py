"""`Found`: everything that `edge search` prints, found by this process or by the server."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from edge.apps.collection.hits import Hit, Stages


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search.

    Attributes:
        hits: best first.
        healths: the state of each collection, by the name it was chosen by.
        troubles: unfinished work and known damage, a sentence each.
        nothing: a possible reason why there are no hits.
        figures: memory in bytes, times in seconds, reads of the index.
    """

    hits: list[Hit]
    healths: dict[str, Any]
    troubles: list[str] = field(default_factory=list)
    nothing: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Found:
        """Reads the output of `to_json`."""
        return cls(**{**document, "hits": [hit_from_json(hit) for hit in document["hits"]]})


def hit_from_json(document: dict[str, Any]) -> Hit:
    """A hit from its fields, in which JSON has replaced tuples by lists."""
    return Hit(
        **{
            **document,
            "ordinals": tuple(document["ordinals"]),
            "numbers": tuple(document["numbers"]),
            "marks": tuple((start, end) for start, end in document["marks"]),
            "stages": Stages(**document["stages"]),
        }
    )
