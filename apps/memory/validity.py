"""When a memory holds: what holds now, what held at a moment, and the chain of memories that superseded one another.

`timestamp` is when a memory was said. It holds from `valid_from`; without one, from when it was said or stored. It
holds until `valid_until`, or until now.
"""

from __future__ import annotations

from edge.apps.memory.arguments import Scope, parse_moment, whole_day
from edge.apps.memory.filters import Condition
from edge.ivf.base import Connection

_SINCE = "coalesce(memories.valid_from, memories.timestamp, memories.created_at)"

_DAYS_END = "T23:59:59.999999"

LONGEST_CHAIN = 1_000
"""The most memories of a chain that are read."""


def moment_of(value: object) -> str:
    """The stored form of the moment that `as_of` names. A day means its end, in UTC.

    Raises:
        InputError: the value is no moment.
    """
    day = whole_day(value)
    return parse_moment(value if day is None else day + _DAYS_END, "as_of")


def holding(db: Connection, now: str) -> Condition:
    """The condition that a memory holds now. It is the same, parameters included, until one begins or ends to hold, so
    that the ids that meet it can be cached."""
    until, since = (
        db.execute(f"SELECT max({name}) FROM memories WHERE {name} <= ?", (now,)).fetchone()[0]
        for name in ("valid_until", "valid_from")
    )
    later = db.execute("SELECT 1 FROM memories WHERE valid_from > ? LIMIT 1", (now,)).fetchone()
    if until is None and later is None:
        return Condition("1")
    # Few memories have ended. The indexes of a scope, which hold all that the other conditions compare, are still used.
    ended = "SELECT id FROM memories WHERE valid_until <= ? UNION ALL SELECT id FROM memories WHERE valid_from > ?"
    return Condition(f"memories.id NOT IN ({ended})", (until or "", since or ""))


def held(start: str, end: str) -> Condition:
    """The condition that a memory held at a moment between two moments, both included, as far as is known."""
    return Condition(f"{_SINCE} <= ? AND (memories.valid_until IS NULL OR memories.valid_until > ?)", (end, start))


def successors(db: Connection, uuid: str) -> list[str]:
    """The ids of the memories that superseded one another from `uuid` on, with `uuid` itself first."""
    rows = db.execute(
        "WITH RECURSIVE later(uuid) AS (VALUES (?) UNION SELECT memories.superseded_by FROM memories, later "
        "WHERE memories.uuid = later.uuid AND memories.superseded_by IS NOT NULL LIMIT ?) SELECT uuid FROM later",
        (uuid, LONGEST_CHAIN),
    )
    return [str(row[0]) for row in rows]


def chain(db: Connection, uuid: str, scope: Scope) -> list[str]:
    """The ids of the memories of `scope` that superseded one another up to `uuid` and from it on, with `uuid`."""
    sql, params = scope.condition("other")
    rows = db.execute(
        "WITH RECURSIVE chain(uuid) AS (VALUES (?) "
        f"UNION SELECT other.uuid FROM memories AS other, chain WHERE other.superseded_by = chain.uuid AND {sql} "
        "UNION SELECT later.superseded_by FROM memories AS later, chain, memories AS other "
        f"WHERE later.uuid = chain.uuid AND other.uuid = later.superseded_by AND {sql} "
        "LIMIT ?) SELECT uuid FROM chain",
        (uuid, *params, *params, LONGEST_CHAIN),
    )
    return [str(row[0]) for row in rows]
