"""The identity of the embedder that made a store's vectors."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from edge.apps.store.failures import WrongValue


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """The model that made a store's vectors.

    Attributes:
        name: name of the model.
        source: the name or path to open it by; empty if the caller passed an open model that has no files.
        fingerprint: changes with any of the model's weights.
        dim: width of a vector.
    """

    name: str
    source: str
    fingerprint: str
    dim: int

    def to_json(self) -> str:
        """The stored form, which `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EmbedderIdentity:
        """Reads the output of `to_json`.

        Raises:
            WrongValue: the text is none.
        """
        try:
            found = cls(**json.loads(text))
        except (TypeError, ValueError, RecursionError):
            found = None
        if found is None or [type(value) for value in asdict(found).values()] != [str, str, str, int]:
            raise WrongValue("the setting of the embedder names none")
        return found
