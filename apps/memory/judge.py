"""Judges without a model whether a new statement ends an older one: "I moved to Trondheim" ends "I live in Oslo".

A statement is read as a speaker, a subject, a predicate and a value, in five languages. It ends an older one that gives
another value to the same thing, if that has one value at a time or the statement says that it changed. A wrong ending
is worse than a missed one: what is not understood ends nothing. The benchmark `supersession` counts both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from edge.apps.memory import words_of_change as words
from edge.text.sentences import sentences

LONGEST = 240
"""The most characters of a statement that is judged. A longer text says more than one thing."""

_MOST_SENTENCES = 6
_GREETING = 3
"""A sentence of so few words beside another one says nothing of its own."""

_MOST_SUBJECT = 8

_TOKEN = re.compile(r"[^\W_]+(?:[.:/@-][^\W_]+)*")
_SPEAKER = re.compile(r"(?P<name>[A-ZÄÖÜ]\w{1,30}): ")
_APOSTROPHE = re.compile(r"n['’]t\b")
_CLAUSE = re.compile(r"(?:[;,]|\b(?:and|but|und|aber|et|mais|y|pero|e|ma)\b)\s+(?=\w)")
_NUMBER = re.compile(r"\d")
_SELF = "I"
_MAY = "mai"
"""The month May, so that it is not the verb."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One statement, as far as it is understood.

    Attributes:
        subject: the words that name who or what it is about; `I` for the speaker. Empty if that is not clear.
        kind: the class of its predicate: home, work, name, age, is, moved, or the beginning of its verb.
        value: its content words behind the predicate.
        proper: whether the value names something: it begins with a capital letter or a digit, without an indefinite
            article.
        words: all words of its sentence.
    """

    subject: frozenset[str]
    kind: str
    value: frozenset[str]
    proper: bool
    words: tuple[str, ...]
    flags: frozenset[str]

    def has(self, flag: str) -> bool:
        return flag in self.flags


@dataclass(frozen=True, slots=True)
class Statement:
    """A text of one speaker, with its clauses."""

    speaker: str
    clauses: tuple[Clause, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a new statement ends an old one, and why or why not."""

    ends: bool
    reason: str


@lru_cache(maxsize=256)
def read(text: str) -> Statement:
    """The statement that a text makes; without clauses if it is too long, or asks something."""
    match = _SPEAKER.match(text)
    if match and match["name"].casefold() in words.CORRECTED:
        match = None
    speaker = match["name"] if match else ""
    said = text[match.end() :] if match else text
    found = sentences(said) if len(said) <= LONGEST else []
    if not 1 <= len(found) <= _MOST_SENTENCES:
        return Statement(speaker)
    clauses: list[Clause] = []
    for sentence in found:
        subject: frozenset[str] = frozenset()
        if len(found) > 1 and len(_TOKEN.findall(sentence)) <= _GREETING:
            continue
        asks = sentence.rstrip().endswith("?") or sentence.startswith("¿")
        whole = _tokens(sentence.casefold())
        for part in _CLAUSE.split(sentence):
            clause = None if asks else _clause(part, subject, whole)
            clauses.append(clause or Clause(frozenset(), "", frozenset(), False, whole, frozenset()))
            subject = clauses[-1].subject
    return Statement(speaker, tuple(clauses))


def judge(old: Statement, new: Statement) -> Judgement:
    """Whether `new`, which was said later, ends `old`."""
    if len(old.clauses) != 1 or not old.clauses[0].subject:
        return Judgement(False, "the old one is not understood, or says more than one thing")
    if old.speaker != new.speaker:
        return Judgement(False, "another speaker")
    verdicts = [_compared(old.clauses[0], clause) for clause in new.clauses if clause.subject]
    same = [verdict for verdict in verdicts if verdict is not None]
    if not same:
        return Judgement(False, "another subject" if verdicts else "the new one is not understood")
    return next((verdict for verdict in same if verdict.ends), same[0])


def _compared(old: Clause, new: Clause) -> Judgement | None:
    """The verdict about two clauses; None if their subjects differ."""
    if old.subject != new.subject:
        return None
    for flag, reason in _BLOCKS.items():
        if new.has(flag) or (flag != "also" and old.has(flag)):
            return Judgement(False, reason)
    changed = bool({"new", "ended", "corrected"} & new.flags)
    same = _same_predicate(old, new)
    differs = bool(new.value) and not old.value <= new.value
    content = old.value or frozenset({old.kind} - _CLASSES)
    named = bool(content) and all(_said(word, new.words) for word in content)
    known = old.kind in _CLASSES | words.PRACTISED or len(content) > 1 or _said(old.kind, new.words)
    if new.has("ended") and ((named and known) or (same and not new.value)):
        return Judgement(True, "it is said to have ended")
    after = {word for before, word in itertools.pairwise(new.words) if before in words.FROM}
    if new.has("new") and any(_said(word, after) for word in old.value):
        return Judgement(True, "the old value is left for another one")
    if not same or not differs:
        return Judgement(False, "something else is said" if differs else "no other value")
    if (new.has("not") or old.has("not")) and not new.has("corrected"):
        return Judgement(False, "one is a denial")
    beside = set(new.words) - new.value
    if old.kind == "is" and old.subject == {_SELF}:
        return Judgement(False, "both may hold")
    if changed and any(_said(word, beside) for word in old.value):
        return Judgement(True, "the old value is named beside the new one")
    if _one_value(old, new, changed):
        return Judgement(True, "another value of what has one value at a time")
    return Judgement(False, "both may hold")


_BLOCKS = {"also": "an addition", "unsure": "not certain, or a plan", "past": "of an earlier time"}
_CLASSES = frozenset({"home", "work", "name", "age", "is", "moved"})


def _same_predicate(old: Clause, new: Clause) -> bool:
    kinds = {old.kind, new.kind}
    if "switched" in kinds:
        return bool(kinds & words.EXCLUSIVE) and bool(old.value & new.value)
    return len(kinds) == 1 or (
        "moved" in kinds and bool({"home", "is"} & kinds) and (old.subject != {_SELF} or "home" in kinds)
    )


def _one_value(old: Clause, new: Clause, changed: bool) -> bool:
    """Whether the predicate has one value at a time, so that another value ends the former one."""
    kinds = {old.kind, new.kind}
    if kinds <= {"home", "work"} or kinds == {"home", "moved"}:
        return old.proper and new.proper
    if kinds <= {"name", "age"} or "switched" in kinds:
        return True
    alike = _same_kind(old, new)
    if kinds <= {"is", "moved"}:
        favourite = any(w in words.FAVOURITE or w.startswith(words.FAVOURITE_PREFIX) for w in old.subject)
        single = changed or _form(old) != "" or bool(old.subject & words.FUNCTIONAL)
        return old.subject != {_SELF} and (favourite or new.has("corrected") or (alike and single))
    return changed and alike and (_form(old) != "" or old.kind in words.EXCLUSIVE)


def _form(clause: Clause) -> str:
    """The form of a value: a time, a date, an address, a number, or none of these."""
    return next(
        (
            form
            for form, there in (
                ("time", lambda word: ":" in word and word[0].isdigit()),
                ("date", lambda word: word in words.DATES),
                ("address", lambda word: "@" in word),
                ("number", lambda word: bool(_NUMBER.search(word))),
            )
            if any(there(word) for word in clause.value)
        ),
        "",
    )


def _same_kind(old: Clause, new: Clause) -> bool:
    """Whether two values can take each other's place: names, or numbers of the same."""
    if _form(old) != _form(new):
        return False
    if not _form(old):
        return old.proper and new.proper
    rest, other = (
        {word for word in clause.value if not _NUMBER.search(word) and "@" not in word and word not in words.DATES}
        for clause in (old, new)
    )
    return rest == other or new.kind == "moved"


def _alike(one: str, other: str) -> bool:
    """Whether two words have the same stem, as far as their beginnings tell."""
    length = min(len(one), len(other))
    if _NUMBER.search(one) or length < 3:
        return one == other
    return one[: max(3, length - 2)] == other[: max(3, length - 2)] and (
        length > 3 or abs(len(one) - len(other)) in (0, 3)
    )


def _said(word: str, among: Iterable[str]) -> bool:
    return any(_alike(word, other) for other in among)


def _tokens(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(_APOSTROPHE.sub(" not", text)))


def _clause(text: str, before: frozenset[str], whole: tuple[str, ...]) -> Clause | None:
    """A clause; None if its subject or its predicate is not understood.

    Args:
        before: the subject of the clause before, which holds on where this one begins with a verb.
        whole: the words of the sentence.
    """
    spelled = _tokens(text)
    said = tuple(_MAY if word == "May" else word.casefold() for word in spelled)
    flags = _flags(said) | (_flags(whole) & {"corrected"})
    start = 0
    while start < len(said) and said[start] in _SKIPPED and not _begins_self(said, start):
        start += 1
    if start == len(said):
        return None
    if _begins_self(said, start):
        subject, verb = frozenset({_SELF}), start
    elif said[start] in words.WE:
        subject, verb = frozenset({"we"}), start + 1
    elif said[start] in words.VERBS and before:
        subject, verb = before, start
    else:
        verb = next((n for n in range(start + 1, min(len(said), start + _MOST_SUBJECT)) if said[n] in words.VERBS), 0)
        named = said[start:verb]
        if not verb or (named[0] in words.VAGUE and (named[0] != "il" or len(named) == 1)):
            return None
        subject = frozenset(named) - words.ARTICLES - words.NEW - words.AUXILIARY
    if not subject:
        return None
    rest = list(zip(said[verb:], spelled[verb:], strict=True))
    kind, consumed = _kind([word for word, _ in rest], subject)
    behind = [
        (place, word, shape)
        for place, (word, shape) in enumerate(rest)
        if word not in words.FUNCTION and word not in _MARKS and place not in consumed
    ]
    value = frozenset(word for _, word, _ in behind)
    proper = bool(behind) and _names(rest, behind[0][0])
    return Clause(subject, kind, value, proper, whole, flags)


def _names(rest: Sequence[tuple[str, str]], place: int) -> bool:
    """Whether the word at a place behind a predicate begins a name or a number, and is none of its kind."""
    shape, before = rest[place][1], [word for word, _ in rest[max(0, place - 2) : place]]
    if not (shape[0].isupper() or shape[0].isdigit()):
        return False
    if before[-1:] == ["a"]:  # English "in a Castle" and "drive a Skoda", but Italian "vivo a Roma"
        return before[0] in words.HOME | words.WORK | words.NEW
    return not before or before[-1] not in words.INDEFINITE


_MARKS = words.NEW | words.ENDED | words.CORRECTED | words.ALSO | words.UNSURE
_SKIPPED = (words.NEW | words.CORRECTED | words.ALSO | words.NOT | frozenset({"just", "well", "oh", "in", "en", "fait",
    "realidad", "realtà"})) - words.FIRST  # fmt: skip


def _begins_self(said: Sequence[str], place: int) -> bool:
    """Whether the speaker is the subject that begins here."""
    if said[place] == "mi":
        return place + 1 < len(said) and said[place + 1] in words.FIRST_AFTER_MI
    return said[place] in words.FIRST


def _kind(rest: Sequence[str], subject: frozenset[str]) -> tuple[str, frozenset[int]]:
    """The class of a predicate, and the places of the words that tell it."""
    present = set(rest)
    if present & words.AGE and any(_NUMBER.search(word) for word in rest):
        return "age", frozenset(n for n, word in enumerate(rest) if word in words.AGE or not _NUMBER.search(word))
    for kind, known in (("home", words.HOME), ("name", words.NAMED)):
        if found := _places(rest, known):
            return kind, found
    if found := _places(rest, words.WORK):
        after = [word for word in rest[max(found) + 1 :] if word not in words.NEW]
        return ("work" if after and after[0] in words.WORK_PLACE else "work otherwise"), found
    if found := _places(rest, words.SWITCHED):
        return "switched", found
    if present & words.WORK_AT and present & words.STARTED:
        return "work", frozenset()
    if subject == {_SELF} and present & {"back", "again"} and "in" in present:
        return "home", frozenset()
    if found := _places(rest, words.MOVED):
        return ("home" if subject == {_SELF} and rest[min(found)] == "moved" else "moved"), found
    if found := _places(rest, words.IS):
        return "is", found
    verb = next((n for n, word in enumerate(rest) if word not in words.FUNCTION and word not in _MARKS), None)
    return ("", frozenset()) if verb is None else (rest[verb], frozenset({verb}))


def _places(rest: Sequence[str], known: frozenset[str]) -> frozenset[int]:
    return frozenset(n for n, word in enumerate(rest) if word in known)


def _flags(said: Sequence[str]) -> frozenset[str]:
    present, line = set(said), f" {' '.join(said)} "
    ended = (
        any(word in words.ENDED and not words.NOT & set(said[max(0, n - 2) : n]) for n, word in enumerate(said))
        or any(f" {phrase} " in line for phrase in words.ENDED_PHRASES)
        or any(one in present and other in said[said.index(one) :] for one, other in words.ENDED_PAIRS)
    )
    found = {
        "new": bool(present & words.NEW) or any(f" {phrase} " in line for phrase in words.NEW_PHRASES),
        "ended": ended,
        "corrected": bool(present & words.CORRECTED) or any(f" {p} " in line for p in words.CORRECTED_PHRASES),
        "also": bool(present & words.ALSO),
        "unsure": bool(present & words.UNSURE),
        "past": bool(present & words.PAST),
        "not": bool(present & words.NOT) and not ended,
    }
    return frozenset(name for name, there in found.items() if there)
