"""`statements`: checks sentences of another author's answers, as they are and with planted errors.

The answers are those of MT-RAG (Katsis et al., TACL 2025), which people corrected or accepted, beside the passages that
they were written from (`mtragun-human/generation_tasks/reference.jsonl` of its repository). They also say what is in
no passage, so some of what is flagged is rightly flagged.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from bench.figures import Column, tabulate
from bench.options import File, Output, benchmark
from edge.apps.assistant.grounding import GivenPassage, Judge, missing
from edge.runtimes.reranker import Reranker
from edge.text.sentences import sentences

_NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?![\w])")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}")
_ITEM = re.compile(r"\A\s*\d{1,2}[.)]\s*")
_NUMBERED = re.compile(r"(?<=:)\s*\d{1,2}[.)](?=\s|$)|(?<=\s)\d{1,2}[.)](?=\s+[A-Z])")
_FEWEST_WORDS = 6
_COMPARED = 60
"""The other answers among whose passages those with most words of a sentence are looked for."""


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence of an answer, the questions before it, and the passages of the answer."""

    text: str
    question: str
    passages: Sequence[GivenPassage]


@benchmark
def statements(
    *,
    answers: Annotated[File, "MT-RAG's answers with their passages."],
    count: Annotated[int, "Sentences with a number or a name, and as many of any kind."] = 400,
    memory: str = "500MB",
    output: Output,
) -> None:
    """Check sentences that people accepted, with and without planted errors, against their passages."""
    said = list(read(json.loads(line) for line in answers.read_text("utf-8").splitlines()))
    rng = random.Random(1)
    told = [one for one in said if _NUMBER.search(one.text) or _NAME.search(one.text)]
    facts, any_kind = rng.sample(told, min(count, len(told))), rng.sample(said, min(count, len(said)))
    with Reranker(memory=memory) as reranker:

        def related(statement: str, texts: Sequence[str]) -> list[float]:
            return [ranked.relevance for ranked in reranker.rank(statement, texts)]

        judge = Judge(lambda: None, related)
        cases = [("as written", one) for one in [*facts, *any_kind]]
        cases += [planted for one in facts for planted in with_errors(one, said, rng)]
        cases += [("beside others' passages", beside(one, said, rng)) for one in any_kind]
        tried, flagged = Counter[str](), Counter[str]()
        for kind, one in cases:
            tried[kind] += 1
            flagged[kind] += bool(missing(one.text, one.question, one.passages, (), judge))
    rows = {kind: {"sentences": tried[kind], "flagged": flagged[kind] / tried[kind]} for kind in tried}
    columns = {"sentences": Column("sentences"), "flagged": Column("flagged", "%")}
    own = {"as written": rows.pop("as written")}
    figures = [*tabulate(own, columns, "right sentences"), *tabulate(rows, columns, "wrong sentences")]
    output.put({**own, **rows}, figures, f"{len(facts)} sentences with facts, and {len(any_kind)} of any kind")


def read(rows: Iterator[dict[str, Any]]) -> Iterator[Said]:
    """The longer sentences of answers that their passages support, by the words of the set's authors."""
    for row in rows:
        if row["answerability"][0].upper() == "ANSWERABLE" and row["contexts"]:
            passages = [GivenPassage.of(each["text"], (), each.get("title") or "") for each in row["contexts"]]
            question = " ".join(turn["text"] for turn in row["input"] if turn["speaker"] == "user")
            for sentence in sentences(row["targets"][0]["text"]):
                text = _ITEM.sub("", sentence.strip(), count=1)
                if len(text.split()) >= _FEWEST_WORDS:
                    yield Said(text, question, passages)


def with_errors(one: Said, said: Sequence[Said], rng: random.Random) -> Iterator[tuple[str, Said]]:
    """The sentence with another number, and with another name, that no passage holds, or that stands elsewhere in its
    passages."""
    held = "\n".join(passage.text for passage in one.passages)
    for kind, pattern in (("number", _NUMBER), ("name", _NAME)):
        own = pattern.findall(one.text)
        if not own or (kind == "number" and _NUMBERED.search(one.text)):
            continue
        was = rng.choice(own)
        others = [each for each in pattern.findall(held) if each not in one.text]
        if kind == "number":
            new = str(int(re.sub(r"\D", "", was)) + rng.choice((1, 2, 3, 7)))
        else:
            found = (name for other in rng.sample(said, len(said)) for name in _NAME.findall(other.text))
            new = next(name for name in found if name.lower() not in f"{held} {one.question}".lower())
        for how, other in (("new", new), *([("exchanged", rng.choice(others))] if others else [])):
            text = re.sub(rf"(?<![\w.]){re.escape(was)}(?!\w)", other, one.text, count=1)
            yield f"{kind}, {how}", Said(text, one.question, one.passages)


def beside(one: Said, said: Sequence[Said], rng: random.Random) -> Said:
    """The sentence beside the question and passages of another answer, of some those with most of its words."""
    words = set(one.text.casefold().split())
    others = [other for other in rng.sample(said, min(_COMPARED, len(said))) if other.question != one.question]

    def shared(other: Said) -> int:
        return len(words.intersection(" ".join(passage.text for passage in other.passages).casefold().split()))

    other = max(others, key=shared)
    return Said(one.text, other.question, other.passages)
