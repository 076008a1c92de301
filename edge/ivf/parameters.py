"""The parameters that an index is tuned to, and the record of that choice."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from edge.errors import CorruptBlock, InputError


@dataclass(frozen=True, slots=True)
class Parameters:
    """How an index is trained and searched.

    Attributes:
        lists: number of lists; 1 means that all vectors are scanned exactly.
        codec: flat, sq8, pq or opq (pq of vectors that were rotated first).
        code_size: bytes of a vector's code.
        rescore: exact scores computed per requested result, at most, where codes are not exact.
    """

    lists: int
    codec: str
    code_size: int
    rescore: int


@dataclass(frozen=True, slots=True)
class Goal:
    """The wishes that parameters are chosen by.

    Attributes:
        recall: least recall@10. Without it, the highest that `seconds` allow.
        seconds: most seconds per query; None for as few as possible.
        nbytes: most bytes of all lists (codes, ids and checksums), which a search keeps in memory; None for no bound.
    """

    recall: float | None = None
    seconds: float | None = None
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.recall is None and self.seconds is None:
            raise InputError("tuning needs a goal: a recall, or a time per query")
        if self.recall is not None and not 0 < self.recall <= 1:
            raise InputError(f"recall is above 0 and at most 1, not {self.recall}")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise InputError(f"the time per query is above 0, not {self.seconds * 1e3:g} ms")
        if self.nbytes is not None and self.nbytes < 1:
            raise InputError(f"the lists have at least one byte, not {self.nbytes}")


@dataclass(frozen=True, slots=True)
class Tuned:
    """The parameters that were chosen for an index, and why.

    Attributes:
        goal: the wishes.
        rows: number of vectors when the choice was made.
        nprobe: number of lists to probe, chosen with the parameters.
        aim: the recall on the index's own curve that needs `nprobe` lists. Searches aim at it, so that the number of
            lists follows the curve when the curve is measured again.
        seconds, recall, nbytes: predicted time per query, recall@10 on the sampled queries, and bytes of all lists.
    """

    parameters: Parameters
    goal: Goal
    rows: int
    nprobe: int
    aim: float
    seconds: float
    recall: float
    nbytes: int

    def to_json(self) -> str:
        """The record as text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Tuned:
        """The record that `to_json` wrote.

        Raises:
            CorruptBlock: the text is no such record.
        """
        try:
            values = json.loads(text)
            parameters, goal = Parameters(**values.pop("parameters")), Goal(**values.pop("goal"))
            return cls(parameters, goal, **values)
        except (ValueError, TypeError, KeyError, AttributeError, InputError) as error:
            raise CorruptBlock("the index is damaged: the record of its tuning cannot be read") from error


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of tuning an index: its parameters, and whether they were chosen now.

    If not, an earlier choice for the same goal still holds.
    """

    tuned: Tuned
    changed: bool
