"""The kind of value that a question asks for: a price, a number or a time; and the texts that hold one.

A sentence that repeats the question may leave its value to the next one: "We bought the boat. It cost 4,000 euros."
English and German questions are understood; any other asks for no kind of value.
"""

from __future__ import annotations

import re
from typing import Literal

from edge.apps.assistant.grounding import NUMBERS

Kind = Literal["price", "number", "time"]

_PRICE = re.compile(
    r"\b(?:costs?|prices?|pa(?:y|ys|id)|fees?|fare|charge[sd]?|rent|salary|budget|spen[dt]|earn|owe|fine|penalty|deposit"
    r"|expensive|kostet|kosten|preis|gebühr|miete|bezahlen)\b"
)
_AMOUNT = re.compile(r"\b(?:how much|wie ?viel)\b|^(?:what|was)\b")
_WHEN = re.compile(
    r"^(?:(?:and|but|so|from|until|since|by|at|on|in|und|bis|ab|seit)\b[ ,]*)*"
    r"(?:when|(?:what|which) (?:time|date|day|year|month)|how (?:late|early)|wann)\b"
)
_NUMBER = re.compile(
    r"\bhow (?:much|many|long|far|high|heavy|deep|old|often|fast|wide|tall|big|large|hot|warm|loud|soon|slow)\b"
    r"|\bwie ?viele?\b|\bwie (?:lange|oft|hoch|weit|alt|groß|schwer)\b"
)
_MONTHS = (
    r"jan(?:uary|uar)?|feb(?:ruary|ruar)?|mar(?:ch)?|märz|apr(?:il)?|may|mai|jun[ei]?|jul[yi]?|aug(?:ust)?|sept?(?:ember)?"
    r"|o[ck]t(?:ober)?|nov(?:ember)?|de[cz](?:ember)?"
)
_HOLDS: dict[Kind, re.Pattern[str]] = {
    "price": re.compile(
        r"[$€£]\s?\d|\d[.,]\d\d\b|\d[\d,.]*\s?(?:[$€£%]|euros?\b|eur\b|cents?\b|dollars?\b|pounds?\b|million|billion)"
        r"|\b(?:price|cost|fee|amount|total|rent|rate|spent|budget|salary|betrag|preis|kosten)\w*[^.]*\d"
        r"|\b(?:free|nothing|included|kostenlos|umsonst)\b",
        re.IGNORECASE,
    ),
    "number": re.compile(
        rf"\d|\b(?:{'|'.join(NUMBERS)}|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn)\b", re.IGNORECASE
    ),
    "time": re.compile(
        rf"\b(?:{_MONTHS})\b|\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b"
        r"|\b(?:mon|diens|donners|frei|sams|sonn)tags?\b|\d[:.]\d\d|\b(?:1\d|20)\d\d\b"
        r"|\d(?:st|nd|rd|th)\b|\b(?:noon|midnight|morning|evening|night|uhr|spring|summer|autumn|winter|century|never|always"
        r"|hours?|minutes?|days?|weeks?|months?|years?|stunden?|minuten?|wochen?|jahr\w*|after|before|until|once|nach|vor)\b",
        re.IGNORECASE,
    ),
}  # fmt: skip


def asked_value(question: str) -> Kind | None:
    """The kind of value that a question asks for; None if it asks for none.

    >>> asked_value("How much is the fee?"), asked_value("Until when?"), asked_value("Who is Ada?")
    ('price', 'time', None)
    """
    question = question.casefold().strip()
    if _WHEN.search(question):
        return "time"
    if _PRICE.search(question) and _AMOUNT.search(question):
        return "price"
    return "number" if _NUMBER.search(question) else None


def holds_value(kind: Kind, text: str) -> bool:
    """Whether a text holds a value of a kind."""
    return _HOLDS[kind].search(text) is not None
