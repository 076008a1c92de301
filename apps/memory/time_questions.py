"""The time that a question asks about: "where did she live before", "in May", "last year"."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import datetime, timedelta

from edge.apps.memory.arguments import stamp
from edge.apps.memory.validity import Asked, moment_of

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
"""Words that ask for what held before. "Before" and its like do so only at the end: "before the trip" does not. Neither
does "use to" of the present: "what do I use to deploy"."""


def time_meant(question: str, as_of: object, now: datetime, *, at_any_time: bool) -> Asked:
    """The time that a search asks about: the one given or, without one, the one that the question names."""
    if as_of is not None:
        moment = moment_of(as_of)
        return Asked(stamp(now), moment, moment)
    return Asked(stamp(now), at_any_time=True) if at_any_time else time_asked(question, now)


def time_asked(question: str, now: datetime) -> Asked:
    """The time that the words of a question ask about, in the time zone of `now`. A month without a year is the last
    one that has begun."""
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
    """The months `first` to `last` of a year, up to now."""
    start = datetime(year, first, 1, tzinfo=now.tzinfo)
    end = datetime(year, last, monthrange(year, last)[1], 23, 59, 59, 999_999, tzinfo=now.tzinfo)
    return Asked(stamp(now), stamp(start), min(stamp(end), stamp(now))) if start < now else Asked(stamp(now))
