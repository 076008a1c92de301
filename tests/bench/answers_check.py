"""`answers-check`: the check of sentences on statements that are made from judged questions and their passages.

Statements of four kinds are right: a sentence that holds the answer, and the question with its answer in the place of
the asking words ("Who wrote Emma?" becomes "Jane Austen wrote Emma"), alone and behind a reference to the passage; the
questions were worded by people who read the passage. From each of them wrong statements are made: a number, a date or a
name is exchanged for another one of the same passage or of another passage, or the sentence is negated. With
`--beside`, the check knows other passages with words of the question, as a language model is given several, and facts
of theirs are exchanged, too. Nothing is fitted on these statements.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import ARGUMENT, Folder, Output, benchmark
from edge.apps.assistant.grounding import GivenPassage, missing
from edge.models.training.corpora import Corpus, Qrels, load
from edge.text.languages import MONTHS
from edge.text.sentences import sentences

_NUMBER = re.compile(r"(?<![\w.,])\d[\d,.]*\d(?![\w,.]\d)|(?<![\w.,])\d(?![\w,.]\d)")
_YEAR = re.compile(r"1\d{3}|20\d\d")
_MONTH = re.compile(rf"\b(?:{'|'.join(month for month in MONTHS if month not in ('May', 'March'))})\b")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}(?: [A-Z][a-z]+)*")
_ASKING = re.compile(r"(?:who|what|which (?:\w+ )?\w+|how many \w+)(?= (?:\w+ed|is|was|are|were|has|had|wrote|won|led|"
                     r"made|became|began|built|held|gave|took)\b)", re.IGNORECASE)  # fmt: skip
_WORD = re.compile(r"\w+")
_VERB = re.compile(r"\b(?:is|was|are|were|has|had|can|could|will|would|must|should)\b")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement about a passage, whether the passage says so (`right`), and the other passages with their titles
    (`beside`)."""

    kind: str
    right: bool
    question: str
    text: str
    passage: str
    title: str
    beside: tuple[tuple[str, str], ...] = ()


@benchmark
def answers_check(
    *,
    folders: Annotated[tuple[Folder, ...], ARGUMENT],
    count: Annotated[int, "--questions", "Of each set."] = 400,
    beside: Annotated[int, "Other passages that the check knows."] = 0,
    train: Annotated[bool, "Train questions, on which a rule may be chosen, instead of test questions."] = False,
    output: Output,
) -> None:
    """False alarms and recall of the check of sentences, on questions of FOLDERS, judged sets with answers."""
    rows: dict[str, dict[str, float]] = {}
    for corpus in map(load, folders):
        flagged = defaultdict[tuple[bool, str], list[bool]](list)
        for made in statements(corpus, count, corpus.train if train else corpus.test, beside):
            read = [GivenPassage.of(text, (), title) for title, text in ((made.title, made.passage), *made.beside)]
            flagged[made.right, made.kind].append(bool(missing(made.text, made.question, read)))
        for right in (True, False):
            every = [found for (kind_is, _), several in flagged.items() if kind_is == right for found in several]
            flagged[right, "all"] = every
        for (right, kind), found in flagged.items():
            rows[f"{corpus.name}, {'right' if right else 'wrong'}: {kind}"] = {
                "statements": float(len(found)), "flagged" if right else "found": sum(found) / max(1, len(found)),
            }  # fmt: skip
    output.put({"rows": rows}, figures(rows), "")


def figures(rows: Mapping[str, Mapping[str, float]]) -> Iterator[Figure]:
    columns = {
        "statements": neither("statements"), "flagged": lower("false alarms", "%"), "found": higher("found", "%"),
    }  # fmt: skip
    yield from tabulate(rows, columns)


def statements(corpus: Corpus, count: int, judged: Qrels, beside: int = 0) -> Iterator[Statement]:
    """The right and the wrong statements of some questions, with so many other passages."""
    chosen = random.Random(0)
    place = {identifier: number for number, identifier in enumerate(corpus.ids)}
    words = [set(_WORD.findall(text.casefold())) for text in corpus.texts] if beside else []
    often = Counter(word for own in words for word in own)
    names = sorted(judged)
    for name in chosen.sample(names, min(count, len(names))):
        document = next((document for document, grade in judged[name].items() if grade > 0), None)
        answers = sorted(corpus.answers.get(name, []), key=len)
        if document is None or not answers:
            continue
        at = place[document]
        text, title, question = corpus.texts[at], corpus.titles[at], corpus.queries[name]
        elsewhere = corpus.texts[chosen.randrange(len(corpus.texts))]
        answer = next((answer for answer in answers if answer in text), None)
        if answer is None:
            continue
        right = {"sentence": next((each for each in sentences(text) if answer in each), "")}
        asked, replaced = _ASKING.subn(lambda _, answer=answer: answer, question.strip().rstrip("?"), count=1)
        if replaced and len(answer.split()) <= 8:
            statement = asked[0].upper() + asked[1:] + "."
            right |= {"reworded": statement, "reworded, introduced": f"According to the passage, {asked}."}
        for kind, statement in right.items():
            if not statement:
                continue
            others = tuple(
                (corpus.titles[one], corpus.texts[one]) for one in nearest(question, words, often, at, beside)
            )
            yield Statement(kind, True, question, statement, text, title, others)
            for how, wrong in altered(statement, text, elsewhere, chosen).items():
                yield Statement(how, False, question, wrong, text, title, others)
            for how, wrong in altered(statement, text, others[0][1], chosen).items() if others else ():
                if how.endswith("of another passage"):
                    yield Statement(
                        how.replace("another passage", "one beside it"), False, question, wrong, text, title, others
                    )


def nearest(question: str, words: Sequence[set[str]], often: Counter[str], own: int, count: int) -> list[int]:
    """The passages, but for one, that hold most words of a question, each weighing less the more passages hold it."""
    asked = [word for word in set(_WORD.findall(question.casefold())) if often[word]]
    worth = [sum(1 / often[word] for word in asked if word in held) for held in words]
    return [at for at in sorted(range(len(words)), key=lambda at: (-worth[at], at))[: count + 1] if at != own][:count]


def altered(statement: str, passage: str, elsewhere: str, chosen: random.Random) -> dict[str, str]:
    """Wrong statements made from a right one, by the way in which they were made."""
    found: dict[str, str] = {}
    for what, pattern in (("date", _YEAR), ("month", _MONTH), ("number", _NUMBER), ("name", _NAME)):
        for where, source in (("same passage", passage), ("another passage", elsewhere)):
            spots = [spot for spot in pattern.finditer(statement) if what != "number" or not _YEAR.fullmatch(spot[0])]
            others = [each for each in pattern.findall(source) if each not in statement]
            if what == "number":
                others = [each for each in others if not _YEAR.fullmatch(each)]
            if where == "another passage":
                others = [each for each in others if each not in passage]
            if spots and others:
                spot, other = chosen.choice(spots), chosen.choice(others)
                key = f"{'date' if what == 'month' else what} of {where.replace('same', 'the same')}"
                found.setdefault(key, statement[: spot.start()] + other + statement[spot.end() :])
    if (verb := _VERB.search(statement)) is not None and not re.search(r"\b(?:not|no|never)\b", statement):
        found["negation"] = f"{statement[: verb.end()]} not{statement[verb.end() :]}"
    return found
