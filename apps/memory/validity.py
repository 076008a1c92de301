"""When a memory holds, the time that a question asks about ("where did she live before", "last year"), and the chain of
memories that superseded one another. A memory holds from `valid_from`, or from when it was said or stored, until
`valid_until`. `Judge`: whether a new statement ends an older one, "I moved to Trondheim" for "I live in Oslo". A small
model tells (`edge.models.statements`), in eight languages; the benchmark `supersession` chose `ENDS` and `ORDERS`."""

from __future__ import annotations

import json
import re
from calendar import monthrange
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np

from edge.apps.memory.arguments import Scope, parse_moment, stamp, whole_day
from edge.apps.memory.filters import Condition
from edge.ivf.base import Connection
from edge.models.statements import LONGEST, StatementModel, words
from edge.text.sentences import sentences

_SINCE = "coalesce(memories.valid_from, memories.timestamp, memories.created_at)"

_DAYS_END = "T23:59:59.999999"

LONGEST_CHAIN = 10_000


def moment_of(value: object) -> str:
    """The stored form of the moment that `as_of` names. A day means its end, in UTC."""
    day = whole_day(value)
    return parse_moment(value if day is None else day + _DAYS_END, "as_of")


@dataclass(frozen=True, slots=True)
class Asked:
    """The time that a search asks about: `start` to `end`, a moment (`as_of`) or a period; empty for what holds now.
    `before`: what held before now; `at_any_time`: whatever was ever remembered."""

    now: str
    start: str = ""
    end: str = ""
    before: bool = False
    at_any_time: bool = False

    @property
    def strictly(self) -> bool:
        return bool(self.start) and self.start == self.end

    def conditions(self, db: Connection) -> list[Condition]:
        """The conditions of the memories that are results themselves and, if any, of those that may stand for one:
        ended or of chains."""
        if self.at_any_time:
            return [Condition("1")]
        own = _held(self.start, self.end) if self.strictly else _holding(db, self.now)
        if db.execute("SELECT 1 FROM memories WHERE valid_until IS NOT NULL LIMIT 1").fetchone() is None:
            return [own]
        return [own, Condition.all_of([Condition(f"memories.id IN ({_ENDED} UNION ALL {_LATER})"), own.negated()])]

    def fits(self, member: Member) -> bool:
        """Whether a memory of a chain may be a result."""
        if self.strictly:
            return self._held(member)
        if self.before and member.valid_until is not None:
            return True
        return self._holds(member) or (bool(self.start) and self._held(member))

    def in_place_of_others(self, members: Iterable[Member]) -> list[Member]:
        """The members that another one of their chain may stand for."""
        soft = self.before or (bool(self.start) and not self.strictly)
        return [member for member in members if soft or not self.fits(member)]

    def best(self, chain: Sequence[Member]) -> Member | None:
        """The memory of a chain that answers: the latest of those that held then, or else of those that hold now."""
        if self.before:
            ended = [one for one in chain if one.valid_until is not None and one.since < one.valid_until <= self.now]
            if ended:
                return max(ended, key=lambda one: (one.valid_until or "", one.id))
        then = [one for one in chain if self.start and self._held(one)]
        then = then or [one for one in chain if not self.strictly and self._holds(one)]
        return max(then, key=lambda one: (one.since, one.id), default=None)

    def _holds(self, member: Member) -> bool:
        begun = member.valid_from is None or member.valid_from <= self.now
        return begun and (member.valid_until is None or member.valid_until > self.now)

    def _held(self, member: Member) -> bool:
        return member.since <= self.end and (member.valid_until is None or member.valid_until > self.start)


_ENDED = "SELECT id FROM memories WHERE valid_until IS NOT NULL"
_SUCCESSORS = "SELECT DISTINCT superseded_by FROM memories WHERE superseded_by IS NOT NULL"
_LATER = f"SELECT id FROM memories WHERE uuid IN ({_SUCCESSORS})"


def _holding(db: Connection, now: str) -> Condition:
    """The condition that a memory holds now. It stays the same, parameters included, until one begins or ends to hold,
    so that its ids can be cached."""
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


def _held(start: str, end: str) -> Condition:
    return Condition(f"{_SINCE} <= ? AND (memories.valid_until IS NULL OR memories.valid_until > ?)", (end, start))


@dataclass(frozen=True, slots=True)
class Member:
    """What decides which memory of a chain answers, as it is read; `shown`: whether it may be returned."""

    id: int
    uuid: str
    superseded_by: str | None
    since: str
    valid_from: str | None
    valid_until: str | None
    shown: bool


_MEMBER = f"memories.id, memories.uuid, superseded_by, {_SINCE}, valid_from, valid_until"


def in_chains(db: Connection, ids: Iterable[int]) -> list[Member]:
    """The memories among `ids` that have an end or are of a chain."""
    rows = db.execute(
        f"SELECT {_MEMBER}, 1 FROM json_each(?) AS wanted CROSS JOIN memories ON memories.id = wanted.value "
        "WHERE valid_until IS NOT NULL OR EXISTS (SELECT 1 FROM memories AS other "
        "WHERE other.superseded_by = memories.uuid)",
        (json.dumps(list(ids)),),
    )
    return [Member(*row) for row in rows]


def chains(db: Connection, uuids: Sequence[str], shown: Condition) -> list[list[Member]]:
    if not uuids:
        return []
    starts = ", ".join("(?)" for _ in uuids)
    rows = db.execute(
        f"WITH RECURSIVE chain(uuid) AS (VALUES {starts} {_EARLIER_AND_LATER} LIMIT ?) "
        f"SELECT {_MEMBER}, {shown.sql} "
        "FROM chain CROSS JOIN memories ON memories.uuid = chain.uuid",
        (*uuids, LONGEST_CHAIN, *shown.params),
    )
    members = {row[1]: Member(*row) for row in rows}
    of: dict[str, list[Member]] = {uuid: [member] for uuid, member in members.items()}
    for member in members.values():
        later = of.get(member.superseded_by or "")
        if later is not None and later is not of[member.uuid]:
            one, other = sorted((of[member.uuid], later), key=len)
            other += one
            of |= {each.uuid: other for each in one}
    return list({id(group): group for group in of.values()}.values())


_EARLIER_AND_LATER = (
    "UNION SELECT earlier.uuid FROM memories AS earlier, chain WHERE earlier.superseded_by = chain.uuid "
    "UNION SELECT later.superseded_by FROM memories AS later, chain "
    "WHERE later.uuid = chain.uuid AND later.superseded_by IS NOT NULL"
)


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
    sql, params = scope.condition()
    groups = chains(db, [uuid], Condition(sql, tuple(params)))  # several if `uuid` itself was deleted
    return [uuid, *(member.uuid for group in groups for member in group if member.shown and member.uuid != uuid)]


_MONTHS = (
    "january januar janvier enero gennaio", "february februar février febrero febbraio", "march märz mars marzo",
    "april avril abril aprile", "may mai mayo maggio", "june juni juin junio giugno", "july juli juillet julio luglio",
    "august août agosto", "september septembre septiembre settembre", "october oktober octobre octubre ottobre",
    "november novembre noviembre", "december dezember décembre diciembre dicembre",
)  # fmt: skip
_MONTH = {name: number for number, names in enumerate(_MONTHS, 1) for name in names.split()}
_NAMES = "|".join(_MONTH)
_IN = r"(?:in|im|during|en|au|nel|a(?! march)|until|by|of|de|di)"
_IN_MONTH = re.compile(
    rf"\b{_IN}\s+(?:mois de\s+)?(?P<month>{_NAMES})\b(?:\s+(?:de\s+|del\s+)?(?P<year>\d{{4}}))?", re.I
)
_IN_YEAR = re.compile(rf"\b{_IN}\s+(?P<year>(?:19|20)\d\d)\b(?!-)", re.I)
_LAST_YEAR = re.compile(
    r"\blast year\b|\bletztes jahr\b|\bl['’]année dernière\b|\bel año pasado\b|\bl['’]anno scorso\b", re.I
)
_LAST_MONTH = re.compile(
    r"\blast month\b|\bletzten monat\b|\ble mois dernier\b|\bel mes pasado\b|\bil mese scorso\b", re.I
)
_BEFORE = re.compile(
    r"\bdid\b[^.?!]*\bused? to\b|\b(?:i|you|he|she|we|they|it|who|(?-i:[A-Z]\w*))\s+used to\b|"
    r"\b(?:previous|previously|former|formerly|früher\w*|vorherige\w*|ehemalige\w*|auparavant|précédente?|"
    r"anteriormente|anterior|precedente|in passato)\b|\b(?:before|earlier|vorher|davor|avant|antes|prima)\s*[?.!]*$",
    re.I,
)
"""Words that ask for what held before. "Before" does so only at the end: "before the trip" does not, nor "use to" of
the present."""


def time_meant(question: str, as_of: object, now: datetime, *, at_any_time: bool) -> Asked:
    if as_of is not None:
        moment = moment_of(as_of)
        return Asked(stamp(now), moment, moment)
    return Asked(stamp(now), at_any_time=True) if at_any_time else time_asked(question, now)


def time_asked(question: str, now: datetime) -> Asked:
    """The time that a question asks about, in the zone of `now`. A month without a year is the last that has begun."""
    present = stamp(now)
    if match := _IN_MONTH.search(question):
        month = _MONTH[match["month"].lower()]
        year = int(match["year"]) if match["year"] else now.year - (month > now.month)
        return _period(now, year, month, month)
    if match := _IN_YEAR.search(question):
        return _period(now, int(match["year"]), 1, 12)
    if _LAST_YEAR.search(question):
        return _period(now, now.year - 1, 1, 12)
    if _LAST_MONTH.search(question):
        last = now.replace(day=1) - timedelta(days=1)
        return _period(now, last.year, last.month, last.month)
    return Asked(present, before=bool(_BEFORE.search(question)))


def _period(now: datetime, year: int, first: int, last: int) -> Asked:
    start = datetime(year, first, 1, tzinfo=now.tzinfo)
    end = datetime(year, last, monthrange(year, last)[1], 23, 59, 59, 999_999, tzinfo=now.tzinfo)
    return Asked(stamp(now), stamp(start), min(stamp(end), stamp(now))) if start < now else Asked(stamp(now))


ENDS = 0.87
"""The least probability from which a newer statement ends an older one."""

ORDERS = 0.2
"""The least probability from which the newer one is found before the older one."""

RELATED = 0.2
"""The least cosine of two statements that may be of one thing. Of 128 endings none is below; of pairs of facts of one
person, two thirds are."""

MOST_CHARACTERS = 240
_MOST_SENTENCES = 6
_GREETING = 3
"""A sentence of so few words beside another one says nothing of its own."""

_SPEAKER = re.compile(r"(?P<name>[A-ZÄÖÜ]\w{1,30}): ")
_CORRECTED = {"correction", "korrektur", "corrección", "correzione", "correção", "correctie", "poprawka", "update"}
"""Words before a colon that name no speaker."""


@dataclass(frozen=True, slots=True)
class Statement:
    speaker: str
    sentences: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def read(text: str) -> Statement:
    """The statement that a text makes; without sentences if it is too long, or only asks."""
    match = _SPEAKER.match(text)
    if match and match["name"].casefold() in _CORRECTED:
        match = None
    said = text[match.end() :] if match else text
    found = sentences(said) if len(said) <= MOST_CHARACTERS else []
    if len(found) > _MOST_SENTENCES:
        found = []
    stated = [
        sentence
        for sentence in found
        if not (sentence.rstrip().endswith("?") or sentence.startswith("¿"))
        and _GREETING * (len(found) > 1) < len(words(sentence)) < LONGEST
    ]
    return Statement(match["name"] if match else "", tuple(stated))


class Judge:
    def __init__(self) -> None:
        self.model = StatementModel.open()

    def compare(self, pairs: Sequence[tuple[str, str, float]]) -> list[float]:
        """The probability that what was said later ends what was said before, for pairs of older text, newer text and
        the cosine of their vectors. It is 0 for texts of two speakers, for what is not `RELATED`, and if the older one
        makes more than one statement, or is an exclamation: "Thanks!" holds for the moment."""
        asked: list[tuple[str, str]] = []
        owners: list[int] = []
        for number, (before, after, cosine) in enumerate(pairs):
            old, new = read(before), read(after)
            alone = len(old.sentences) == 1 and not old.sentences[0].endswith("!")
            if cosine >= RELATED and old.speaker == new.speaker and alone:
                asked += [(old.sentences[0], sentence) for sentence in new.sentences]
                owners += [number] * len(new.sentences)
        highest = np.zeros(len(pairs), np.float32)
        np.maximum.at(highest, np.array(owners, np.intp), self.model.probabilities(asked))
        return [float(value) for value in highest]
