"""Makes pairs of statements of which the newer one ends the older one, or does not, from `updates/*.txt`: what people
say of themselves, and how they say that it changed, in eight languages.

A line of these files names a kind, and alternatives between bars. `^` is who speaks or is spoken of, `a/b` the forms
for the first and for the third person, `{v}` a value, `{w}` another one, and `_` a whole statement. A topic has states
(s), changes to another value (c), ends (e) and statements that end nothing (n). In a topic `one` a value excludes the
others. A `pair` is older statements, `=>` newer ones that end them, `//` newer ones that do not.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from edge.models.statements import words

FOLDER = Path(__file__).parent / "updates"
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl")

_VALUES = {
    "system": "tech", "place": "tech", "port": "number", "amount": "number", "limit": "number", "price": "number",
    "event": "day", "clock": "time", "assigned": "project", "named": "person",
}  # fmt: skip
_THINGS = {"event": "event", "clock": "event"}
_SURE = {"event", "clock", "port", "amount", "limit", "price", "person", "place"}
"""Topics in which another value, said without a word of change, ends the former one."""

_BESIDE = {"book", "trip", "animal", "allergy", "tongue"}
"""Topics in which a new value ends no other one, even if it is said to be new."""

_ARTICLES = {"de": ("das", "der"), "fr": ("le", "la"), "es": ("el", "la"), "it": ("il", "la"), "pt": ("o", "a"),
             "nl": ("de", "het")}  # fmt: skip
_WITH_ARTICLE = {"event", "clock", "system"}
"""Topics whose nouns have the other article in half of the pairs."""

_TOLD, _MOST_TOLD = 0.01, 0.3
"""The share of pairs that each line of whole statements gives, and that all give at most."""

_OBJECTS = ("o", "r", "x", "a")
"""The slots of what a statement is about, beside a person; `o2` and its like are others of the kind."""

_SELF = ""
_PAST = re.compile(
    r"I (?:finally )?(?:\w+ed|got|bought|sold|left|quit|found|gave|took|went|became|met|moved|lost|broke|paid|cut) "
    r"(?!.*\b(?:I|me|my)\b)"
)
"""What reads the same of another person."""

_SLASHED = re.compile(r"([^\s/,?]+)/([^\s/,?]+)")
_SLOT = re.compile(r"\{(\w+)(?::(\w+))?\}")
_VOWELS = "aeiouyhàâéèêîôûAEIOUYHÉ"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two statements of one user, and how certainly the newer one ends the older one, 0 ... 1."""

    language: str
    old: str
    new: str
    ends: float


@dataclass
class Topic:
    """What can be said of one thing: patterns by kind."""

    name: str
    one: bool
    patterns: dict[str, list[str]] = field(default_factory=dict)
    nouns: tuple[str, str] = ("", "")


@dataclass
class Language:
    """The content of one file."""

    code: str
    subject: str = ""
    words: dict[str, list[str]] = field(default_factory=dict)
    topics: list[Topic] = field(default_factory=list)
    nouns: dict[str, list[Topic]] = field(default_factory=lambda: defaultdict(list))
    lists: dict[str, list[str]] = field(default_factory=dict)
    told: list[tuple[list[str], list[str], list[str]]] = field(default_factory=list)
    frames: dict[str, list[str]] = field(default_factory=dict)


def read(code: str) -> Language:
    """The content of a language's file."""
    language = Language(code)
    for line in (FOLDER / "values.txt").read_text("utf-8").splitlines():
        name, _, rest = line.partition(" ")
        language.lists[name] = rest.split("|")
    for line in (FOLDER / f"{code}.txt").read_text("utf-8").splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "subject":
            language.subject = rest.replace("-", "")
        elif kind == "list":
            name, _, values = rest.partition(" ")
            language.lists[name] = values.split("|")
        elif kind == "topic":
            number, name = rest.split()
            language.topics.append(Topic(name, number == "one"))
        elif kind == "noun":
            both, _, values = rest.rpartition(" ")
            plain, new = both.split("/")
            language.nouns[values].append(Topic(values, True, language.frames, (plain, new)))
        elif kind == "pair":
            old, _, news = rest.partition(" => ")
            ends, _, others = news.partition(" // ")
            language.told.append((old.split(" | "), ends.split(" | "), others.split(" | ")))
        else:
            name, _, rest = rest.partition(" ") if kind == "frame" else (kind, "", rest)
            found = rest.split(" | ")
            target = language.frames if kind == "frame" else language.topics[-1].patterns if kind in "scen" else None
            if target is None:
                language.words[kind] = found
            else:
                target[name] = found
    return language


def _things(pattern: str) -> set[str]:
    return {name for name, _ in _SLOT.findall(pattern) if name in _OBJECTS}


def spoken() -> set[str]:
    """The words of the patterns and lists of all languages, in small letters."""
    texts = [(FOLDER / f"{code}.txt").read_text("utf-8") for code in LANGUAGES]
    return {word.casefold() for text in texts for word in words(re.sub(r"[|~_{}/+>^\n]", "\n", text), most=len(text))}


class Maker:
    """Makes pairs of one language."""

    def __init__(self, language: Language, rng: random.Random) -> None:
        self.language = language
        self.rng = rng
        self.swapped = False
        self.nouns = [noun for nouns in language.nouns.values() for noun in nouns]
        self._share = min(_TOLD * len(language.told), _MOST_TOLD)

    def pair(self) -> Pair:
        """A pair of statements."""
        self.swapped = self.rng.random() < 0.5
        while True:
            try:
                chance = self.rng.random()
                old, new, ends = (
                    self._notes() if chance < 0.05 else self._told() if chance < 0.05 + self._share
                    else self._made()
                )  # fmt: skip
                break
            except KeyError:  # nothing of the chosen kind is said of the chosen thing
                continue
        return Pair(self.language.code, self._typed(old), self._typed(new), ends)

    def _value(self, kind: str) -> str:
        rng = self.rng
        lists = self.language.lists
        number = rng.choice([rng.randint(2, 99), rng.randint(100, 9999), 10 * rng.randint(1, 99)])
        if kind == "number":
            return str(number)
        if kind == "email":
            name, place = rng.choice(["jo", "kim", "nan", "stella"]), rng.choice(["new", "old", "x", "mail"])
            return f"{name}@{place}.example"
        if kind == "money":
            return f"{number} {rng.choice(['euros', 'dollars', 'euro', 'pounds', 'PLN', 'zł', '€'])}"
        if kind == "time":
            return rng.choice([f"{rng.randint(6, 22)}:{rng.choice(['00', '15', '30', '45'])}", str(rng.randint(1, 12))])
        if kind == "day" and rng.random() < 0.4:
            kind = "date"
        return rng.choice(lists[kind])

    def _others(self, kind: str, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            value = self._value(kind)
            if value not in found:
                found.append(value)
        return found

    def _told(self) -> tuple[str, str, float]:
        rng = self.rng
        olds, ends, others = rng.choice(self.language.told)
        old = rng.choice(olds)
        ended = rng.random() < 0.45
        new = rng.choice(ends if ended else others)
        chance = rng.random()
        if chance < 0.1:  # what ends something else
            said, others, _ = rng.choice(self.language.told)
            new, ended = rng.choice(others), said is olds
        elif ended and chance < 0.3 and (of_another := self._of_another(new)) != new:
            new, ended = of_another, False
        elif ended and chance < 0.36 and "{v" in new and "{w" not in new and "{v" in old:  # of another value
            new, ended = new.replace("{v:", "{w:"), False
        elif not ended and chance > 0.9:  # the same in other words
            new = rng.choice(olds)
        elif not ended and chance > 0.45:  # something else
            new = self._random(self._person())
            new = self._around("now", new, "") if chance < 0.55 else new
        n = rng.randint(2, 80)
        slots = {"{n}": str(n), "{m}": str(n + rng.choice([1, 1, 2, 3, 10]))}
        kinds = {slot[0]: slot[2] for slot in _SLOT.finditer(old + new) if slot[2]}
        for name, kind in kinds.items():
            same = [slots[other] for other in kinds if other in slots and kinds[other] == kind]
            slots[name] = next(value for value in iter(partial(self._value, kind), None) if value not in same)
        old, new = (_SLOT.sub(lambda match: slots[match[0]], text) for text in (old, new))
        if rng.random() < 0.15:
            return old, self._around("maybe", new, ""), 0.0
        return old, self._when(new) if ended else new, float(ended)

    def _of_another(self, text: str) -> str:
        """A statement of oneself as one of another person, where its form tells how: "I sold it", "my tooth"."""
        person = self.rng.choice(self.language.words["people"])
        return f"{person}{text[1:]}" if _PAST.match(text) else self._owned(text, person)

    def _notes(self) -> tuple[str, str, float]:
        """Two notes that are no statements: "room 7" beside "room 8"."""
        rng = self.rng
        lists = self.language.lists
        if rng.random() < 0.3:
            kinds = [kind for kind in ("drink", "food", "job", "day", "colour", "city") if kind in lists]
            one, two = self._others(rng.choice(kinds), 2)
            head = rng.choice(["", "", f"{rng.choice(lists['colour'])} ", "good ", "two "])
            return head + one, rng.choice([head, ""]) + two, 0.0
        thing, other = rng.sample([*lists["event"], *lists["thing"], "note", "text", "item", "home", "memory"], 2)
        joined = rng.choice(["", "of ", "in ", "at ", "number ", "with ", "from "])
        kind = rng.choice(["number", "city", "person", "word", "topic", "time"])
        one, two = self._others(kind, 2)
        end = rng.choice(["", "", f" {other}", f" is {other}", f" and {other}"])
        head = rng.choice([thing, f"the {thing}", f"my {thing}", f"{other} {thing}"])
        return f"{head} {joined}{one}{end}", f"{head} {joined}{two}{rng.choice([end, ''])}", 0.0

    def _made(self) -> tuple[str, str, float]:
        rng = self.rng
        topic = rng.choice(self.nouns) if rng.random() < 0.3 else rng.choice(self.language.topics)
        person = self._person()
        slots = self._slots(topic)
        back = {**slots, "v": slots["w"], "w": slots["v"]}
        third = {**slots, "v": slots["w"], "w": slots["u"]}
        pattern = rng.choice(topic.patterns["s"])
        changed = False
        if topic.one and rng.random() < 0.2 and (changes := [c for c in topic.patterns.get("c", ()) if "{v}" not in c]):
            pattern, changed = rng.choice(changes), True
            state = self._filled(pattern, topic, person, back)
        else:
            state = self._filled(pattern, topic, person, slots)
        topic = self._about_the_same(topic, pattern)

        def say(kind: str, values: dict[str, str] = slots) -> str:
            return self._say(topic, kind, person, values)

        sure = changed or topic.name in _SURE or bool(topic.nouns[0])
        chance = rng.random()
        if chance < 0.42:  # it ends
            way = rng.random()
            if (changed or topic.nouns[0]) and rng.random() < 0.2:
                return state, say("s", back), 1.0
            if way < 0.36 and "e" in topic.patterns:
                return state, self._when(say("e")), 1.0
            if not topic.one:
                mentioned = [one for one in topic.patterns.get("c", ()) if "{v}" in one]
                if mentioned and way < 0.75:
                    return state, self._when(self._filled(rng.choice(mentioned), topic, person, slots)), 1.0
                if way < 0.85:
                    return say("e"), self._around("now", state, ""), 1.0
                if topic.patterns.get("c") and slots["v"]:
                    change = say("c")
                    return state, change, 1.0 if slots["v"] in change else 0.4
                if "e" not in topic.patterns:
                    return state, say("n"), 0.0
                return state, self._when(say("e")), 1.0
            if way < 0.7:
                return state, self._when(say("c")), 1.0
            if way < 0.81:
                return state, self._around("now", say("s", back), ""), 1.0
            if way < 0.89:
                return state, self._around("fix", say("s", back), slots["v"]), 1.0
            return state, say("s", back), 1.0 if sure else 0.5
        kind = rng.choice("nnnnppppoooommmaaastrrrrrrrrqvcb")
        if kind == "n":
            return state, say("n"), 0.0
        if kind == "p":  # of another person
            other = next(one for one in iter(self._person, None) if one != person)
            return self._of_two(state, topic, pattern, person, other, slots)
        if kind == "o":  # of another thing
            return state, *self._other_thing(topic, person, slots)
        if kind == "m":
            base = say(rng.choice("se" if "c" not in topic.patterns else "sc"), back if rng.random() < 0.5 else slots)
            return state, self._around("maybe", base, ""), 0.0
        if kind == "a":
            if rng.random() < 0.5:
                return state, self._around("before", say("s", back), ""), 0.0
            if topic.one:
                return state, self._around("still", say("s"), ""), 0.0
            return state, self._around("also", say("s", back), ""), 0.0
        if kind == "s":  # the same, or what may hold beside it
            if topic.one:
                return state, self._around(rng.choice(["now", "still"]), say("s"), ""), 0.0
            if topic.name in _BESIDE and rng.random() < 0.4:
                return state, self._around("now", say("s", back), ""), 0.0
            return state, say(rng.choice("se" if "e" in topic.patterns else "s"), back), 0.0
        if kind == "t":
            if topic.one or not topic.patterns.get("c"):
                return state, say("s"), 0.0
            return state, self._when(say("c", third)), 0.0
        if kind == "q":
            return self._around(rng.choice(["maybe", "before"]), state, ""), self._change(topic, person, slots), 0.0
        if kind == "v":  # of somebody whom only the conversation names
            vague = rng.choice(self.language.words["vague"])
            if rng.random() < 0.5:
                return self._of_two(state, topic, pattern, person, vague, slots)
            return self._filled(pattern, topic, vague, slots), self._change(topic, vague, slots), 0.0
        if kind == "c":  # the old one says more than one thing
            more = self._random(person)
            both = [state, more] if rng.random() < 0.5 else [more, state]
            return f" {self.language.words['and'][0]} ".join(both), self._change(topic, person, slots), 0.0
        if kind == "b" and "e" in topic.patterns:
            return say("e"), say(rng.choice("en"), slots if rng.random() < 0.5 else third), 0.0
        if rng.random() < 0.3:
            return rng.choice(self.language.words["said"]), self._change(topic, person, slots), 0.0
        return state, self._random(person), 0.0

    def _person(self) -> str:
        return _SELF if self.rng.random() < 0.62 else self.rng.choice(self.language.words["people"])

    def _slots(self, topic: Topic) -> dict[str, str]:
        lists = self.language.lists
        kind = _VALUES.get(topic.name, topic.name)
        slots = {"v": "", "w": "", "u": ""}
        if kind in lists or kind in ("number", "email", "money", "time", "day", "date"):
            slots = dict(zip("vwu", self._others(kind, 3), strict=True))
        for name, values in (("o", _THINGS.get(topic.name, "thing")), ("r", "role"), ("x", "order"), ("a", "relation")):
            if values in lists:
                slots[name], slots[name + "2"] = self.rng.sample(lists[values], 2)
        return slots

    def _about_the_same(self, topic: Topic, pattern: str) -> Topic:
        """The topic with the patterns that speak of the same things as `pattern`: of the project, or of its lead."""
        things = _things(pattern)
        patterns = {
            kind: [one for one in found if kind == "n" or _things(one) == things]
            for kind, found in topic.patterns.items()
        }
        return replace(topic, patterns={kind: found for kind, found in patterns.items() if found})

    def _of_two(
        self, state: str, topic: Topic, pattern: str, one: str, other: str, slots: dict[str, str]
    ) -> tuple[str, str, float]:
        """What is said of two people; if it names none of them, what ends nothing."""
        kind = self.rng.choice([kind for kind in "scce" if kind in topic.patterns])
        change = self.rng.choice(topic.patterns[kind])
        said = [self._filled(pattern, topic, who, slots) for who in (one, other)]
        changed = [self._filled(change, topic, who, slots) for who in (one, other)]
        if said[0] == said[1] or changed[0] == changed[1]:
            return state, self._say(topic, "n", one, slots), 0.0
        return said[0], self._around("now", changed[1], "") if kind == "s" else self._when(changed[1]), 0.0

    def _say(self, topic: Topic, kind: str, person: str, slots: dict[str, str]) -> str:
        return self._filled(self.rng.choice(topic.patterns[kind]), topic, person, slots)

    def _change(self, topic: Topic, person: str, slots: dict[str, str]) -> str:
        """A change or an end, as one that ends a state of the same person would be said."""
        kinds = [kind for kind in "cce" if kind in topic.patterns] or ["n"]
        if topic.one and self.rng.random() < 0.25:
            return self._around("now", self._say(topic, "s", person, {**slots, "v": slots["w"]}), "")
        return self._when(self._say(topic, self.rng.choice(kinds), person, slots))

    def _other_thing(self, topic: Topic, person: str, slots: dict[str, str]) -> tuple[str, float]:
        if topic.nouns[0]:
            alike = [noun for noun in (self.language.nouns[topic.name] if self.rng.random() < 0.7 else self.nouns)
                     if noun is not topic]  # fmt: skip
            if not alike:
                return self._random(person), 0.0
            other = self.rng.choice(alike)
            values = slots if other.name == topic.name else self._slots(other)
            if other.name == topic.name and self.rng.random() < 0.5:
                values = {**values, "v": values["u"]}
            return self._change(other, person, values), 0.0
        if not _things(" ".join(topic.patterns["s"])):
            return self._random(person), 0.0
        swapped = {**slots, **{name: slots[name + "2"] for name in _OBJECTS if name in slots}}
        if self.rng.random() < 0.6:
            swapped["v"] = swapped["u"]
        return self._change(topic, person, swapped), 0.0

    def _random(self, person: str) -> str:
        """A statement about something else."""
        chance = self.rng.random()
        if chance < 0.35:
            return self.rng.choice(self.language.words["said"])
        if chance < 0.5 and self.language.told:
            olds, ends, others = self.rng.choice(self.language.told)
            return _SLOT.sub(self._filling, self.rng.choice([*olds, *ends, *others]))
        topic = self.rng.choice(self.nouns) if chance < 0.65 else self.rng.choice(self.language.topics)
        kind = self.rng.choice([kind for kind in "scencee" if kind in topic.patterns])
        return self._say(topic, kind, person, self._slots(topic))

    def _filling(self, slot: re.Match[str]) -> str:
        return self._value(slot[2]) if slot[2] else str(self.rng.randint(2, 80))

    def _when(self, text: str) -> str:
        return self._around("when", text, "") if self.rng.random() < 0.25 else text

    def _around(self, kind: str, text: str, value: str) -> str:
        around = self.rng.choice(self.language.words[kind]).replace("{v}", value)
        return around.replace("_", text)

    def _filled(self, pattern: str, topic: Topic, person: str, slots: dict[str, str]) -> str:
        """A pattern as a sentence about a person."""
        first = person == _SELF

        def form(match: re.Match[str]) -> str:
            mine, theirs = match[1], match[2]
            if mine.startswith("n'") and not theirs.startswith("n"):
                theirs = f"n'{theirs}" if theirs[0] in _VOWELS else f"ne {theirs}"
            return mine if first else theirs

        text = _SLASHED.sub(form, pattern)
        if self.swapped and topic.name in _WITH_ARTICLE:
            one, other = _ARTICLES.get(self.language.code, ("", ""))
            text = re.sub(rf"\b{one} \{{(?=o|x)", f"{other} {{", text) if one else text
        if topic.nouns[0]:
            plain, new = (self._owned(noun, person) for noun in topic.nouns)
            text = text.replace("~+", new).replace("~", plain)
        text = text.replace("^", self.language.subject if first else person)
        text = re.sub(r"\bP\b", lambda _: person, text)
        text = _SLOT.sub(lambda match: slots.get(match[1], ""), text)
        text = re.sub(rf"\bje (?=[{_VOWELS}])", "j'", text) if self.language.code == "fr" else text
        return " ".join(text.split())

    def _owned(self, noun: str, person: str) -> str:
        if person == _SELF:
            return noun
        for rule in self.language.words["possessive"]:
            mine, theirs = rule.split(">")
            if noun.startswith(mine.replace("_", "")):
                rest = noun.removeprefix(mine.replace("_", ""))
                return theirs.replace("_", rest).replace("P", person, 1)
        return noun

    def _typed(self, text: str) -> str:
        """The text as people type it: mostly with a capital letter, sometimes with a full stop."""
        chance = self.rng.random()
        if chance < 0.85:
            text = text[:1].upper() + text[1:]
        elif chance < 0.93:
            text = text.lower()
        if text[-1:] not in "?!." and self.rng.random() < 0.35:
            text += "."
        return re.sub(r"\bi\b", "I", text) if self.language.code == "en" and chance < 0.85 else text


def pairs(count: int, seed: int) -> Iterator[Pair]:
    """Random pairs: two in five English, the others of the other languages in turn."""
    rng = random.Random(seed)
    makers = [Maker(read(code), rng) for code in LANGUAGES]
    for _ in range(count):
        yield (makers[0] if rng.random() < 0.4 else rng.choice(makers[1:])).pair()
