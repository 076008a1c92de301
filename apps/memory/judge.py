"""Judges without a model whether a new statement ends an older one: "I moved to Trondheim" ends "I live in Oslo".

A statement is read as a speaker, a subject, a predicate and a value, in five languages. It ends an older one that gives
another value to the same thing, if that has one value at a time or the statement says that it changed. A wrong ending
is worse than a missed one: what is not understood ends nothing. The benchmark `supersession` counts both."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from edge.text.sentences import sentences


def _words(text: str) -> frozenset[str]:
    return frozenset(text.casefold().split())


FIRST = _words(
    "i ich je j yo io vivo trabajo tengo soy fumo toco como hablo conduzco uso estoy llevo juego bebo dejé cancelé "
    "vendí compré cumplí volví lavoro ho sono abito suono mangio parlo guido bevo gioco sto faccio smesso me he mudé"
)
"""Words that begin a statement of the speaker: pronouns, and verbs of the languages that leave them out."""

FIRST_AFTER_MI = _words("sono chiamo trovo piace piacciono trasferisco")
"""Italian "mi" before these is the speaker, otherwise "mi" is Spanish for "my"."""

WE = _words("we wir nous on nosotros noi")

VAGUE = _words(
    "you he she it they this that these those there his her its their du er sie es ihr das dies sein seine ihre il "
    "elle ils elles tu vous ce cela ça son sa ses leur él ella ellos ellas eso esto su sus usted lui lei loro questo "
    "quello suo sua"
)
"""Subjects that only the conversation explains. Nothing is concluded from them."""

ARTICLES = _words(
    "the a an der die das den dem des ein eine einen einem einer le la les l un une du de d el los las una il lo gli "
    "i uno"
)
INDEFINITE = _words("a an ein eine einen einem einer un une una uno")

HOME = _words(
    "live lives living reside resides wohne wohnt lebe lebt gezogen umgezogen habite vis vit déménagé vivo vive "
    "resido mudé mudó mudado abito abita trasferito trasferita"
)
WORK = _words("work works employed joined arbeite arbeitet travaille trabajo trabaja lavoro lavora")
WORK_AT = _words("at bei chez")
"""Before the name of an employer, with a word of `STARTED`: "started at", "zurück bei", "de retour chez"."""
WORK_PLACE = _words("at for bei beim chez en alla al allo")
NAMED = _words("called named heißt heiße appelle llama llamo chiama chiamo")
IS = _words("is are am m re ist sind bin est sont suis es son soy está è sono sei")
AGE = _words("old alt ans años anni turned geworden cumplí compiuto")
MOVED = _words(
    "moved postponed rescheduled shifted changed verschoben verlegt geändert reporté reportée repoussée déplacée "
    "cambió aplazó trasladó spostata spostato rinviata went rose dropped increased stieg gestiegen augmenté baissé "
    "subió aumentó aumentato salito"
)
OTHER_VERBS = _words(
    "has have had uses use drive drives costs runs plays play likes like eats eat speaks read starts started "
    "quit switched got hat habe haben fahre fährt benutze benutzt benutzen kostet beträgt läuft spielt spiele wurde "
    "mag esse spreche a ai as utilise conduis conduit coûte tourne joue fume fumo mange parle aime va utiliza usa "
    "cuesta corre toca juega tiene se ha costa gira suona utilizzo prende planned painted smoke rauche deploy"
)
VERBS = HOME | WORK | NAMED | IS | MOVED | OTHER_VERBS

FUNCTIONAL = _words(
    "name number address email password birthday age price rent salary deadline port phone numéro adresse loyer prix "
    "número dirección alquiler precio numero indirizzo affitto prezzo adresse miete preis telefonnummer nummer "
    "passwort"
)
"""Nouns that have one value at a time."""

FAVOURITE = _words("favourite favorite préférée préféré favorito favorita preferito preferita")
FAVOURITE_PREFIX = "liebling"

EXCLUSIVE = _words(
    "use uses drive drives run runs study studies deploy ship benutze benutzt benutzen fahre fährt läuft studiere "
    "utilise conduis conduit tourne conduzco usa uso utiliza guido utilizza utilizzo"
)
"""Verbs with one object at a time, if a word says that it changed."""

PRACTISED = _words("play plays spiele spielt joue toco toca juego juega suono suona gioco gioca")
STARTED = _words("started starting start back zurück retour")
SWITCHED = _words("switched migrated umgestiegen passé passée migrado migrato")

NEW = _words(
    "now new moved switched started again back became become turned since migrated sold replaced instead jetzt neu "
    "neue neuer neues neuen inzwischen gezogen umgezogen umgestiegen verschoben wieder zurück geworden seit verkauft "
    "stattdessen sofort maintenant désormais nouveau nouvelle nouvel déménagé reportée reporté retour dorénavant "
    "ahora nuevo nueva mudé mudó cambió ya vuelto adesso ora nuovo nuova trasferito trasferita spostata spostato "
    "tornato tornata compiuto married promoted"
)
NEW_PHRASES = ("went up", "went down", "from now on", "ab sofort", "de nouveau", "de nuevo", "di nuovo", "passé à")

ENDED = _words(
    "quit stopped cancelled canceled ended gave sold aufgehört gekündigt beendet verkauft arrêté annulé vendu résilié "
    "dejé cancelé vendí abandoné smesso annullato venduto disdetto"
)
ENDED_PHRASES = ("no longer", "any more", "anymore", "nicht mehr", "ya no", "non più")
ENDED_PAIRS = (("kein", "mehr"), ("keine", "mehr"), ("keinen", "mehr"), ("ne", "plus"), ("n", "plus"), ("non", "più"))

CORRECTED = _words("correction actually sorry korrektur nein entschuldigung corrección perdón correzione scusa")
CORRECTED_PHRASES = ("en fait", "en realidad", "in realtà", "i meant", "ich meinte")

ALSO = _words(
    "also too another besides additionally auch außerdem zusätzlich noch weiterer weitere aussi également autre outre "
    "también además otro otra anche inoltre altro altra"
)

UNSURE = _words(
    "would want wants wish hope hoping maybe perhaps might may should could if plan planning considering thinking "
    "dream würde möchte will vielleicht könnte sollte falls wenn hoffe überlege aimerais voudrais peut-être espère "
    "pourrais gustaría quisiera quizás quizá tal espero podría quiero vorrei forse piacerebbe spero potrei voglio "
    "will shall nearly almost imagine pretend unless"
)
PAST = _words(
    "used before previously formerly once was were born ago früher davor damals war geboren ehemals avant auparavant "
    "jadis étais était antes anteriormente era prima precedentemente passato ero"
)
"""A statement with one of these tells of an earlier time, and ends nothing."""

NOT = _words("not no nicht kein keine keinen ne n pas non")

FROM = _words("from von de da del des")

AUXILIARY = IS | _words("have has had been habe hat haben ai as a ont he ha han ho hai si se s me mi")

_SMALL = _words(
    "in at to on for from of with and or as by my our your mein meine meinen meiner unser unsere mon ma mes notre "
    "mi mis nuestro il mio mia miei nostro bei nach zu am im um mit für von auf und als chez à au aux en dans sur "
    "pour avec et par sur con por para y al del alla allo a da di del della su per e che just gerade gestern "
    "yesterday last week i ich je j yo io we wir nous me mich mir se s m ve re d ll up down pm is been so very "
    "really ab but aber mais pero ma"
)
FUNCTION = ARTICLES | NOT | AUXILIARY | _SMALL
"""Words that are no part of a value."""

DATES = _words(
    "monday tuesday wednesday thursday friday saturday sunday mondays tuesdays wednesdays thursdays fridays montag "
    "dienstag mittwoch donnerstag freitag samstag sonntag lundi mardi mercredi jeudi vendredi samedi dimanche lunes "
    "martes miércoles jueves viernes sábado domingo lunedì martedì mercoledì giovedì venerdì sabato domenica january "
    "february march april may june july august september october november december januar februar märz mai juni juli "
    "oktober dezember janvier février mars avril juin juillet août septembre octobre novembre décembre enero febrero "
    "marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre gennaio febbraio aprile maggio giugno "
    "luglio settembre ottobre novembre dicembre"
)

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
    if match and match["name"].casefold() in CORRECTED:
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
    known = old.kind in _CLASSES | PRACTISED or len(content) > 1 or _said(old.kind, new.words)
    if new.has("ended") and ((named and known) or (same and not new.value)):
        return Judgement(True, "it is said to have ended")
    after = {word for before, word in itertools.pairwise(new.words) if before in FROM}
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
        return bool(kinds & EXCLUSIVE) and bool(old.value & new.value)
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
        favourite = any(w in FAVOURITE or w.startswith(FAVOURITE_PREFIX) for w in old.subject)
        single = changed or _form(old) != "" or bool(old.subject & FUNCTIONAL)
        return old.subject != {_SELF} and (favourite or new.has("corrected") or (alike and single))
    return changed and alike and (_form(old) != "" or old.kind in EXCLUSIVE)


def _form(clause: Clause) -> str:
    """The form of a value: a time, a date, an address, a number, or none of these."""
    return next(
        (
            form
            for form, there in (
                ("time", lambda word: ":" in word and word[0].isdigit()),
                ("date", lambda word: word in DATES),
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
        {word for word in clause.value if not _NUMBER.search(word) and "@" not in word and word not in DATES}
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
    """A clause; None if its subject or its predicate is not understood."""
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
    elif said[start] in WE:
        subject, verb = frozenset({"we"}), start + 1
    elif said[start] in VERBS and before:
        subject, verb = before, start
    else:
        verb = next((n for n in range(start + 1, min(len(said), start + _MOST_SUBJECT)) if said[n] in VERBS), 0)
        named = said[start:verb]
        if not verb or (named[0] in VAGUE and (named[0] != "il" or len(named) == 1)):
            return None
        subject = frozenset(named) - ARTICLES - NEW - AUXILIARY
    if not subject:
        return None
    rest = list(zip(said[verb:], spelled[verb:], strict=True))
    kind, consumed = _kind([word for word, _ in rest], subject)
    behind = [
        (place, word, shape)
        for place, (word, shape) in enumerate(rest)
        if word not in FUNCTION and word not in _MARKS and place not in consumed
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
        return before[0] in HOME | WORK | NEW
    return not before or before[-1] not in INDEFINITE


_MARKS = NEW | ENDED | CORRECTED | ALSO | UNSURE
_SKIPPED = (NEW | CORRECTED | ALSO | NOT | frozenset({"just", "well", "oh", "in", "en", "fait",
    "realidad", "realtà"})) - FIRST  # fmt: skip


def _begins_self(said: Sequence[str], place: int) -> bool:
    """Whether the speaker is the subject that begins here."""
    if said[place] == "mi":
        return place + 1 < len(said) and said[place + 1] in FIRST_AFTER_MI
    return said[place] in FIRST


def _kind(rest: Sequence[str], subject: frozenset[str]) -> tuple[str, frozenset[int]]:
    """The class of a predicate, and the places of the words that tell it."""
    present = set(rest)
    if present & AGE and any(_NUMBER.search(word) for word in rest):
        return "age", frozenset(n for n, word in enumerate(rest) if word in AGE or not _NUMBER.search(word))
    for kind, known in (("home", HOME), ("name", NAMED)):
        if found := _places(rest, known):
            return kind, found
    if found := _places(rest, WORK):
        after = [word for word in rest[max(found) + 1 :] if word not in NEW]
        return ("work" if after and after[0] in WORK_PLACE else "work otherwise"), found
    if found := _places(rest, SWITCHED):
        return "switched", found
    if present & WORK_AT and present & STARTED:
        return "work", frozenset()
    if subject == {_SELF} and present & {"back", "again"} and "in" in present:
        return "home", frozenset()
    if found := _places(rest, MOVED):
        return ("home" if subject == {_SELF} and rest[min(found)] == "moved" else "moved"), found
    if found := _places(rest, IS):
        return "is", found
    verb = next((n for n, word in enumerate(rest) if word not in FUNCTION and word not in _MARKS), None)
    return ("", frozenset()) if verb is None else (rest[verb], frozenset({verb}))


def _places(rest: Sequence[str], known: frozenset[str]) -> frozenset[int]:
    return frozenset(n for n, word in enumerate(rest) if word in known)


def _flags(said: Sequence[str]) -> frozenset[str]:
    present, line = set(said), f" {' '.join(said)} "
    ended = (
        any(word in ENDED and not NOT & set(said[max(0, n - 2) : n]) for n, word in enumerate(said))
        or any(f" {phrase} " in line for phrase in ENDED_PHRASES)
        or any(one in present and other in said[said.index(one) :] for one, other in ENDED_PAIRS)
    )
    found = {
        "new": bool(present & NEW) or any(f" {phrase} " in line for phrase in NEW_PHRASES),
        "ended": ended,
        "corrected": bool(present & CORRECTED) or any(f" {p} " in line for p in CORRECTED_PHRASES),
        "also": bool(present & ALSO),
        "unsure": bool(present & UNSURE),
        "past": bool(present & PAST),
        "not": bool(present & NOT) and not ended,
    }
    return frozenset(name for name, there in found.items() if there)
