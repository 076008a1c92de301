"""Checks that the passages support an answer: the numbers, units, dates and names of each sentence, and its subject. A
number is supported if a unit of a passage holds it with the same thing counted, and shares a word with the sentence or
the question. A name is, if the question holds it, or a passage at or beside the unit that shares most words with the
sentence. Both must belong to the passage that shares most words with what is said about them. A denial needs a unit
that denies. A sentence is about something else if the passages hold few of the words that it adds to the question, and
the reranker relates none to it. An unsupported sentence is replaced by one of a passage; without one its facts are
marked. A small model may only copy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache

from edge.apps.assistant.citations import MARK, numbers_of
from edge.apps.assistant.prompts import is_refusal
from edge.apps.assistant.units import Unit, units
from edge.apps.collection.hits import Hit
from edge.apps.collection.query import stems
from edge.apps.documents.kinds import Part
from edge.apps.store.lexical import FUNCTION_WORDS
from edge.text.languages import MONTHS, WEEKDAYS
from edge.text.sentences import boundaries

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = {
    word: 10 * number
    for number, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "dozen": 12}
NUMBER_WORDS: dict[str, Decimal] = {
    **{word: Decimal(number) for number, word in enumerate(_UNITS.split())},
    **{word: Decimal(number) for word, number in (_TENS | _SCALES).items()},
    "half": Decimal("0.5"), "quarter": Decimal("0.25"), "once": Decimal(1), "twice": Decimal(2), "thrice": Decimal(3),
}  # fmt: skip
"""Number words of English, and their values."""

_SEPARATOR = re.compile(r"[,.](?=\d{3}(?:\D|$))")


def number_at(words: Sequence[str], at: int) -> tuple[str, int] | None:
    """The number that begins at a word, in a normal form, and how many words it has; None if none begins there.

    >>> number_at(["2", "million", "euros"], 0), number_at(["Seventy", "five"], 0), number_at(["3.0"], 0)
    (('2000000', 2), ('75', 2), ('3', 1))
    """
    value = _value(words[at])
    if value is None:
        # A time, or a number of several parts, is only itself.
        return (words[at].lstrip("0") or "0", 1) if words[at][:1].isdigit() else None
    end = at + 1
    if words[at].casefold() in _TENS and end < len(words) and _UNITS.split().count(words[end].casefold()):
        value, end = value + NUMBER_WORDS[words[end].casefold()], end + 1
    while end < len(words) and words[end].casefold() in _SCALES:
        value, end = value * _SCALES[words[end].casefold()], end + 1
    return normal(value), end - at


def normal(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _value(word: str) -> Decimal | None:
    """The value of one word. A comma or a point before three digits separates thousands."""
    if word.casefold() in NUMBER_WORDS:
        return NUMBER_WORDS[word.casefold()]
    if not word[:1].isdigit():
        return None
    digits = _SEPARATOR.sub("", word).replace(",", ".")
    return Decimal(digits) if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", digits) else None


_CURRENCIES = {"€": "euro", "$": "dollar", "£": "pound", "%": "percen", "°": "degree"}
_SAME = {"eur": "euro", "usd": "dollar", "gbp": "pound", "cent": "cent", "kilo": "kg", "hr": "hour", "min": "minut"}
_TOKEN = re.compile(r"(?<!\w)\d+(?:[.,:]\d+)*|[€$£%°]|[^\W\d_]+(?:['’][^\W\d_]+)?")
_POSSESSIVE = re.compile(r"(?<=\w)['’]s?(?!\w)")
_CLAUSE = re.compile(r"[,;]\s")
_PER_CENT = re.compile(r"\bper cent\b", re.IGNORECASE)
_STEM_CHARS = 6
"""Words that share their first six letters are taken to mean the same: examined, examination."""

_WHOLE = frozenset(map(str.lower, (*MONTHS, *WEEKDAYS)))
_EMPTY = FUNCTION_WORDS | {
    "about", "according", "also", "answer", "document", "documents", "dr", "during", "get", "into", "most", "mr", "mrs",
    "ms", "one", "only", "other", "out", "passage", "passages", "per", "please", "question", "since", "up", "within",
    "yes",
}  # fmt: skip
"""Words that do not tell the subject of a text."""

_LIST_MARK = re.compile(r"\A\s*\d{1,2}[.)]")
_LISTED = re.compile(r"(?<=:)\s*\d{1,2}[.)](?=\s|$)|(?<=\s)\d{1,2}[.)](?=\s+[A-Z])")
"""The number of an item in a list that a statement holds on one line."""

_RUN = 5
"""The length of a run of words around a fact that proves it, if a passage holds them in this order. Of 400 sentences of
another author (MT-RAG) 59 instead of 74 are flagged, and of 923 planted errors 709 instead of 712 are found."""

_NEAR = 3
"""The most words after a number among which the counted thing is looked for, and before a word that denies it."""

_LEAST_SHARED = 2
_SAID_ONCE = 4
"""Sentences of at least this many words are shown only once; shorter ones may be list items, or a "yes"."""
_SAID_SHORT = 3
"""The most times that a shorter sentence is shown."""
_LONG = 60
"""The least characters of a sentence that may repeat its clauses too often."""
_LOOP = 2
"""The number of repeated sentences at which the generator is stopped."""

_FEW_HELD, _MANY_WORDS, _RELATED = 2 / 3, 2, 0.1
"""A sentence with at least `_MANY_WORDS` content words that the question lacks is about something else if the passages
hold less than the share `_FEW_HELD` of them, and none is related to it with the probability `_RELATED` or more. Of 200
sentences of another author (MT-RAG) this flags 5 beside their own passages, and 149 beside others that share many words
with them. The share alone, of one half, flags 14 and 114."""

_JOINED = re.compile(r"[,;] | (?:and|but|und|aber|et|mais) ")

_KNOWN_ONES = frozenset([
    "the", "first", "second", "third", "last", "next", "previous", "other", "another", "this", "that", "these", "those",
    "which", "every", "each", "no", "any", "some", "only", "same", "new", "old", "big", "small", "former", "latter",
])  # fmt: skip
"""Words after which a number word counts nothing, but takes up what was named before: "the first one", "these two"."""

ASKING_WORDS = (
    r"what|when|where|who|whom|whose|which|why|how|was|wann|wo|wer|wen|wem|welche[rsnm]?|warum|wie|quand|où|qui|quel(?:le)?s?"
    r"|combien|comment|pourquoi|qué|cuándo|dónde|quién|cuál(?:es)?|cuánt[oa]s?|cómo|quando|dove|chi|quale|quali|quant[oaie]"
)
_ASKING = re.compile(rf"\W*(?:\w+ )?(?:{ASKING_WORDS})\b", re.IGNORECASE)
"""The beginning of a question that yes, no and its own words do not answer."""

_NEGATION = re.compile(
    r"(?i)\b(?:not|no|never|none|nobody|nothing|neither|nor|without|cannot|\w+n['’]t|un(?:able|likely)|fail\w*|refus\w*|"
    r"lack\w*|hardly|rarely|nicht|kein\w*|nie)\b"
)

_FENCE = "```"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A sentence with facts that the passages do not support: the `text` as it was written, the numbers, names or
    words, and what was `shown` instead."""

    text: str
    facts: tuple[str, ...]
    shown: str


@dataclass(frozen=True, slots=True)
class GivenPassage:
    """A passage that statements are checked against: its headings and text, and its units below those headings."""

    text: str
    units: tuple[Unit, ...]

    @classmethod
    def of(cls, text: str, parts: tuple[Part, ...] = (), context: str = "") -> GivenPassage:
        above = " > ".join(line.strip() for line in context.splitlines() if line.strip())
        found = units(text, parts)
        if not above:
            return cls(text, found)
        below = (replace(unit, heading=f"{above} > {unit.heading}" if unit.heading else above) for unit in found)
        return cls(f"{context}\n\n{text}", (Unit(above, "heading", 0, 0), *below))


@dataclass(frozen=True, slots=True)
class Judge:
    """What the reranker says of passages. `best`: the number of the one that answers best, and its unit; None without
    one. `related`: the probability, for each of some texts, that it is related to a statement."""

    best: Callable[[], tuple[int, str] | None]
    related: Callable[[str, Sequence[str]], Sequence[float]]


class Grounding:
    """Checks an answer sentence by sentence while it is written, and leaves out repeated sentences (`repeated` of
    them), because small models fall into loops."""

    def __init__(
        self, question: str, passages: Sequence[Hit], judge: Judge | None = None, *, copied: bool = False
    ) -> None:
        """`judge` gives what is shown in place of an unsupported sentence; without it `quotation` does, and only the
        facts of sentences are checked. `copied`: one clause of one unit must hold the words of each clause."""
        self._judge, self._copied = judge, copied
        self.unsupported: list[Unsupported] = []
        self.repeated = 0
        self._written: Counter[tuple[str, ...]] = Counter()
        self._question = question
        self._passages = [GivenPassage.of(hit.text, hit.kinds, hit.context or hit.title) for hit in passages]
        self._held = ""

    def feed(self, text: str) -> str:
        """Takes a piece of the answer. Returns the sentences that have ended, with the citation marks after them."""
        self._held += text
        shown = ""
        while (end := _ended(self._held)) is not None:
            sentence, self._held = self._held[:end], self._held[end:]
            shown += self._checked(sentence)
        if _rambles(self._held):
            shown += self.finish()
            self.repeated = _LOOP
        return shown

    def finish(self) -> str:
        held, self._held = self._held, ""
        return "" if self.loops else self._checked(held)

    @property
    def loops(self) -> bool:
        return self.repeated >= _LOOP

    def _checked(self, sentence: str) -> str:
        words = tuple(_words(_LIST_MARK.sub("", MARK.sub("", sentence), count=1)))
        if words and _FENCE not in sentence:
            self._written[words] += 1
            if self._written[words] > (1 if len(words) >= _SAID_ONCE else _SAID_SHORT):
                self.repeated += 1
                return ""
        cited = sorted({n for mark in MARK.finditer(sentence) for n in numbers_of(mark[1])})
        cited = [number for number in cited if 1 <= number <= len(self._passages)]
        given = [(number, self._passages[number - 1]) for number in cited] or list(enumerate(self._passages, 1))
        sources = [source for _, source in given]
        # What is copied is about the passages, and code is shown as it is.
        judge = None if self._copied or _FENCE in sentence else self._judge
        facts = missing(MARK.sub("", sentence), self._question, sources, self._passages, judge)
        facts = facts or (list(words) if _rambles(sentence) else [])
        best = self._judge.best() if self._judge is not None and (self._copied or facts) else None
        sources = [self._passages[best[0] - 1]] if best else sources
        facts = facts or (_composed(MARK.sub("", sentence), self._question, sources) if self._copied else [])
        if not facts or _FENCE in sentence or is_refusal(sentence):
            return sentence
        body = sentence.strip()
        before = sentence[: len(sentence) - len(sentence.lstrip())]
        after = sentence[len(sentence.rstrip()) :]
        quoted = best or quotation(self._question, body, given)
        lacking = f"{body} (not in the passages: {', '.join(facts)})"
        shown = lacking if quoted is None else f'"{quoted[1]}" [{quoted[0]}]'
        known = any(other.shown == shown for other in self.unsupported)
        self.unsupported.append(Unsupported(body, tuple(facts), shown))
        return "" if known else f"{before}{shown}{after}"


def missing(
    statement: str, question: str, passages: Sequence[GivenPassage], others: Sequence[GivenPassage] = (),
    judge: Judge | None = None,
) -> list[str]:  # fmt: skip
    """The facts of a statement that no passage holds: numbers, each with the thing counted, and names; without any, the
    words of a statement that a `judge` finds to be about something else. `others`: passages that it does not cite, to
    which a fact may belong instead."""
    statement = _LISTED.sub("\n", statement)
    said, asked, every = _content(statement), _content(question), [*passages, *others]
    about = said | asked
    known = set(_words(_POSSESSIVE.sub("", f"{question}\n" + "\n".join(passage.text for passage in passages))))
    found: list[str] = []
    stated = {(value, counted) for value, counted, _ in _quantities(question)}
    for value, counted, text in _quantities(statement):
        if (value, counted) in stated:  # the question's own words are no claim
            continue
        own = frozenset([counted] if counted else ())
        holders = [
            passage
            for passage in passages
            for facts, near, above in _parts(passage)
            if near & about - own or above & (said - own or about - own)
            if (value, counted) in facts or (not counted and any(number == value for number, _ in facts))
        ]
        supported = bool(holders) and not _exchanged(value, counted, about - own, passages)
        if not supported or _misplaced(text, own, statement, question, holders, every):
            found.append(text)
    for name in _names(statement):
        if not known.intersection(_words(name)):
            found.append(name)
        elif not (own := _content(name)) <= asked:
            holders = [passage for passage in passages if own <= _content(passage.text)]
            if _apart(name, statement, passages) or _misplaced(name, own, statement, question, holders, every):
                found.append(name)
    found += _contradicted(statement, question, passages)
    facts = list(dict.fromkeys(found)) or _elsewhere(statement, question, passages, judge)
    copied = _copied(statement, passages) if facts else frozenset[str]()
    return [fact for fact in facts if _running(fact).split(" ")[0] not in copied]


def _copied(statement: str, passages: Sequence[GivenPassage]) -> frozenset[str]:
    """The words of a statement that stand in a run of a passage's own words."""
    words = _running(statement).split(" ")
    runs = [words[at : at + _RUN] for at in range(len(words) - _RUN + 1)]
    texts = [f" {_running(passage.text)} " for passage in passages]
    return frozenset(word for run in runs if any(f" {' '.join(run)} " in text for text in texts) for word in run)


@lru_cache(maxsize=32)
def _running(text: str) -> str:
    return " ".join(token.casefold() for token in _TOKEN.findall(text))


def quotation(question: str, statement: str, passages: Sequence[tuple[int, GivenPassage]]) -> tuple[int, str] | None:
    """A passage's number and its sentence that shares most words with question and statement; None if none shares
    enough."""
    asked, said = _content(question), _content(statement)
    found = [(number, unit.text, _content(f"{unit.text} {unit.heading}"))
             for number, passage in passages for unit in passage.units if unit.quotable]  # fmt: skip
    shared = [(2 * len(own & asked) + len(own & said), -len(own)) for _, _, own in found]
    most = max(shared, default=(0, 0))
    return found[shared.index(most)][:2] if most[0] >= _LEAST_SHARED else None


def _rambles(text: str) -> bool:
    """Whether a sentence repeats a clause of several words again and again."""
    if len(text) < _LONG:
        return False
    clauses = Counter(tuple(_words(clause)) for clause in _CLAUSE.split(text))
    return any(count > _SAID_SHORT and len(words) > 1 for words, count in clauses.items())


def _composed(sentence: str, question: str, passages: Sequence[GivenPassage]) -> list[str]:
    """A sentence that adds nothing to the question, or its clauses whose words do not all stand in one clause of one
    unit."""
    told, asked = ({value for value, _, _ in _quantities(text)} for text in (sentence, question))
    if _content(sentence) <= _content(question) and told <= asked:
        return [sentence.strip()]
    fewest = clauses = [each.strip() for each in _CLAUSE.split(sentence)]
    for unit in (unit for passage in passages for unit in passage.units):
        held = [_content(f"{unit.heading} {clause}") for clause in _CLAUSE.split(unit.text)]
        lacking = [each for each in clauses if not any(_content(each) <= words for words in held)]
        fewest = min(fewest, lacking, key=len)
    return fewest


def _ended(text: str) -> int | None:
    """The position after a text's first sentence with its citation marks; None if more text is needed."""
    if text.count(_FENCE) % 2:
        return None
    for _, begin in boundaries(text):
        at = begin
        while (mark := re.compile(r"\s*" + MARK.pattern, re.IGNORECASE).match(text, at)) is not None:
            at = mark.end()
        rest = text[at:].lstrip()
        if not rest or rest.startswith("["):
            return None  # a mark may follow
        return at + len(text[at:]) - len(rest)
    return None


def _elsewhere(statement: str, question: str, passages: Sequence[GivenPassage], judge: Judge | None) -> list[str]:
    """The content words of a statement about something else than the passages; none if these may be in another
    language."""
    held = frozenset[str]().union(*(_content(passage.text) for passage in passages))
    said, asked = _content(statement), _content(question)
    new = said - asked
    few = len(new) >= _MANY_WORDS and len(new & held) < _FEW_HELD * len(new)
    if judge is None or not few or not asked & held:
        return []
    if max(judge.related(statement, [passage.text for passage in passages])) >= _RELATED:
        return []
    return [word for word in _TOKEN.findall(statement) if _content(word) - held - asked]


@lru_cache(maxsize=32)
def _parts(passage: GivenPassage) -> tuple[tuple[frozenset[tuple[str, str]], frozenset[str], frozenset[str]], ...]:
    """Of each unit the quantities, its content words and those of the sentence before it, and those of its headings."""
    found = []
    before: frozenset[str] = frozenset()
    for unit in passage.units:
        own = _content(unit.text)
        facts = frozenset((value, counted) for value, counted, _ in _quantities(unit.text))
        every = frozenset((value, word) for value, _, _ in _quantities(unit.text) for word in own)
        found.append((facts | every, own | before, _content(unit.heading)))
        before = frozenset() if unit.kind == "heading" else own
    return tuple(found)


def _quantities(text: str) -> Iterator[tuple[str, str, str]]:
    """The numbers of a text: the value, the stem of the thing counted (empty if not stated), and the words."""
    text = _PER_CENT.sub("percent", text)
    tokens = list(_TOKEN.finditer(text))
    words = [token[0] for token in tokens]
    at = 0
    while at < len(tokens):
        token, number = tokens[at], number_at(words, at)
        at += 1 if number is None else number[1]
        if number is None or _LIST_MARK.fullmatch(text[: token.end() + 1].rpartition("\n")[2]):
            continue
        first = at - number[1]
        before = words[first - 1] if first else ""
        if token[0].isalpha() and before.casefold() in _KNOWN_ONES:
            continue
        counted = _CURRENCIES.get(before, "")
        end = tokens[at - 1].end()
        for follower in tokens[at : at + _NEAR] if not counted else ():
            word = follower[0].casefold()
            if number_at([word], 0) or word in _EMPTY or re.search(r"[.;!?]", text[end : follower.start()]):
                break
            if word in _CURRENCIES or word.isalpha() or "'" in word or "’" in word:
                counted, end = _CURRENCIES.get(word) or _short([word])[0], follower.end()
                break
        if counted or token[0].casefold() != "one":  # "one of them" counts nothing
            yield number[0], counted, text[token.start() : end]


def _exchanged(value: str, counted: str, about: frozenset[str], passages: Sequence[GivenPassage]) -> bool:
    """Whether a number stands in place of another: no clause that holds it shares a word with question and statement,
    and a clause with another number of the same kind does."""
    if not counted:
        return False
    right, other = False, False
    for unit in (unit for passage in passages for unit in passage.units):
        for clause in _CLAUSE.split(unit.text) if unit.kind == "sentence" else [unit.text]:  # a row is one statement
            numbers = {number for number, kind, _ in _quantities(clause) if kind == counted}
            if numbers and _content(clause) & about:
                right, other = right or value in numbers, other or value not in numbers
    return other and not right


def _nearest(said: frozenset[str], passage: GivenPassage) -> list[int]:
    """The indices of the units of a passage that share most words with what is said; empty if none shares enough."""
    shared = [0 if unit.kind == "heading" else len(_content(unit.text) & said) for unit in passage.units]
    return [at for at, count in enumerate(shared) if count == max(shared) >= _LEAST_SHARED]


def _apart(name: str, statement: str, passages: Sequence[GivenPassage]) -> bool:
    """Whether every passage that treats what a statement says about a name holds the name more than a unit away
    only."""
    own = _content(name)
    said = next(_content(line) for line in statement.split("\n") if name in line) - own
    treated = False
    for passage in passages:
        for at in _nearest(said, passage):
            treated = True
            beside = passage.units[max(0, at - 1) : at + 2]
            if own <= _content(" ".join(f"{unit.heading} {unit.text}" for unit in beside)):
                return False
    return treated


def _misplaced(
    fact: str, own: frozenset[str], statement: str, question: str, holders: Sequence[GivenPassage],
    passages: Sequence[GivenPassage],
) -> bool:  # fmt: skip
    """Whether a passage without a fact treats what is said about it, and those that hold it do so less. `own`: the
    fact's stems."""
    clauses = _JOINED.split(statement)
    said = next((_content(clause) for clause in clauses if fact.split()[0] in clause), frozenset[str]())
    if len(clauses) == 1:
        said |= _content(question)

    def shared(some: Sequence[GivenPassage]) -> int:
        return max((len(_content(passage.text) & said - own) for passage in some), default=0)

    return shared(passages) - shared(holders) >= _LEAST_SHARED


def _contradicted(statement: str, question: str, passages: Sequence[GivenPassage]) -> list[str]:
    """A word that denies, if no unit near the statement denies; in something affirmed, the words that the first passage
    holds only shortly after a denial."""
    said, denied = _content(statement), _NEGATION.search(question)
    if (denial := _NEGATION.search(statement)) is not None:
        near = (passage.units[at].text for passage in passages for at in _nearest(said, passage))
        return [] if denied or len(said) < _LEAST_SHARED or any(map(_NEGATION.search, near)) else [denial[0]]
    if denied or _ASKING.match(question):
        said -= _content(question)
    return [word for word in _TOKEN.findall(statement) if _only_denied(said & _content(word), passages)]


def _only_denied(word: frozenset[str], passages: Sequence[GivenPassage]) -> bool:
    """Whether the first passage that holds a word has a denial shortly before it everywhere."""
    for passage in passages:
        denied = [
            _NEGATION.search(" ".join(tokens[max(0, at - _NEAR) : at]))
            for unit, (_, near, _) in zip(passage.units, _parts(passage), strict=True)
            if word & near
            for tokens in [_TOKEN.findall(unit.text)]
            for at, token in enumerate(tokens)
            if word & _content(token)
        ]
        if denied:
            return all(denied)
    return False


def _names(statement: str) -> Iterator[str]:
    """Words with a capital letter that do not begin a sentence, without possessive endings."""
    words = list(re.finditer(r"[^\W\d_][\w'’-]*", statement))
    for at, word in enumerate(words):
        text = word[0]
        between = statement[words[at - 1].end() : word.start()] if at else ""
        ended = between.rstrip()
        begins = not at or "\n" in between[len(ended) :] or ended.endswith((".", "!", "?", ":", '"', "“"))
        if begins or not text[0].isupper() or len(text) < 2:
            continue
        text = _POSSESSIVE.sub("", text)
        if text.casefold() not in _EMPTY:
            yield text


def _content(text: str) -> frozenset[str]:
    words = map(str.casefold, _TOKEN.findall(text))
    return frozenset(_short([w for w in words if w[0].isalpha() and w not in _EMPTY and w not in NUMBER_WORDS]))


def _words(text: str) -> list[str]:
    return stems(map(str.casefold, _TOKEN.findall(text)))


def _short(words: Sequence[str]) -> list[str]:
    """Short stems for comparing words in lower case. Names of months and days stay whole."""
    words = [word.split("'")[0].split("’")[0] for word in words]
    short = (form[:_STEM_CHARS] for form in stems(words))
    return [word if word in _WHOLE else _SAME.get(form, form) for word, form in zip(words, short, strict=True)]
