"""Traces of the six pipelines for replay (TeleRAG, section 5.1): the texts that a language model would write in every
step.

They need no model. Their texts are taken from judged sets, whose questions come with the paragraph and the string that
answer them; there are several questions per paragraph and several paragraphs per article:

- passage (HyDE): the answering sentence, with the answer replaced by that of another question, and its neighbours.
- sub-questions: three other questions about the same article.
- narrower question (Iterative): another question about the same paragraph; in the second round the question itself.
- draft (Iter-RetGen): the answering sentence. The query is the question and the draft.
- sentence (FLARE): the answering sentence, with improbable answer words. It is looked up without them, and then kept.
- need for documents (Self-RAG): yes. The query is the question itself.

Lengths are those of the texts, at four letters per token. A prompt counts as 60 tokens for the instructions and the
question, and 100 tokens per passage, the passage length of the paper.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.models.training.corpora import Corpus
from edge.text.sentences import sentences

PIPELINES = ("hyde", "subquestion", "iterative", "iter-retgen", "flare", "self-rag")

PASSAGES = 3
ROUNDS = 3

LETTERS_PER_TOKEN = 4
_INSTRUCTIONS = 60
_PASSAGE = 100
_SUB_QUESTIONS = 3
_DOUBT = math.log(0.3)
_CERTAIN = math.log(0.95)


@dataclass(frozen=True, slots=True)
class Case:
    """A question of a judged set, with the sentence that holds the answer, the others of that paragraph (`around`),
    other questions about the same paragraph (`beside`) and the same article (`near`), and another question's answer
    (`wrong`)."""

    id: str
    question: str
    answer: str
    sentence: str
    around: tuple[str, ...]
    beside: tuple[str, ...]
    near: tuple[str, ...]
    wrong: str


def cases(corpus: Corpus) -> list[Case]:
    """The test questions of a judged set that share their paragraph and article with others, in random order."""
    texts = dict(zip(corpus.ids, corpus.texts, strict=True))
    titles = dict(zip(corpus.ids, corpus.titles, strict=True))
    of_paragraph: dict[str, list[str]] = defaultdict(list)
    of_article: dict[str, list[str]] = defaultdict(list)
    for query, grades in {**corpus.train, **corpus.test}.items():
        for paragraph in grades:
            of_paragraph[paragraph].append(query)
            of_article[titles[paragraph]].append(query)
    rng = random.Random(0)
    found = []
    for query in sorted(corpus.test):
        paragraph = next(iter(corpus.test[query]))
        answer = corpus.answers.get(query, [""])[0]
        parts = sentences(texts[paragraph])
        sentence = next((s for s in parts if answer and answer in s), "")
        beside = [q for q in of_paragraph[paragraph] if q != query]
        near = [q for q in of_article[titles[paragraph]] if q != query and q not in beside]
        others = [corpus.answers[q][0] for q in beside if q in corpus.answers]
        if not sentence or not beside or len(near) < _SUB_QUESTIONS or not others:
            continue
        found.append(
            Case(
                query,
                corpus.queries[query],
                answer,
                sentence,
                tuple(s for s in parts if s != sentence),
                tuple(corpus.queries[q] for q in beside),
                tuple(corpus.queries[q] for q in rng.sample(near, _SUB_QUESTIONS)),
                rng.choice(others),
            )
        )
    rng.shuffle(found)
    return found


def write_trace(path: Path, pipeline: str, chosen: Sequence[Case]) -> None:
    """Writes one pipeline's trace: every step of every case, in the order of the replay."""
    with path.open("w", encoding="utf-8") as file:
        for case in chosen:
            for record in _STEPS[pipeline](case):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _hyde(case: Case) -> Iterator[dict[str, Any]]:
    wrong = case.sentence.replace(case.answer, case.wrong)
    yield _said(" ".join([wrong, *case.around[:2]]), passages=0)
    yield _said(case.sentence)


def _subquestion(case: Case) -> Iterator[dict[str, Any]]:
    yield _said("\n".join(f"{number}. {question}" for number, question in enumerate(case.near, 1)), passages=0)
    yield _said(case.sentence)


def _iterative(case: Case) -> Iterator[dict[str, Any]]:
    for question, finding, enough in ((case.beside[0], case.wrong, "no"), (case.question, case.sentence, "yes")):
        yield _said(question, passages=0)
        yield _said(finding)
        yield _said(enough, passages=0)
    yield _said(case.sentence)


def _iter_retgen(case: Case) -> Iterator[dict[str, Any]]:
    for _ in range(ROUNDS):
        yield _said(case.sentence)


def _flare(case: Case) -> Iterator[dict[str, Any]]:
    second = case.around[0] if case.around else case.sentence
    # A model goes on writing; the pipeline stops it where the next sentence begins.
    yield _said(f"{case.sentence} {second}", doubt=case.answer)
    yield _said(f"{case.sentence} {second}")
    yield _said(second)


def _self_rag(case: Case) -> Iterator[dict[str, Any]]:
    yield _said("yes", passages=0)
    for _ in range(PASSAGES):
        yield _said(case.sentence, passages=1)
    for _ in range(PASSAGES):
        yield _said("fully", passages=1)
        yield _said("4", passages=0)


_STEPS = {
    "hyde": _hyde, "subquestion": _subquestion, "iterative": _iterative, "iter-retgen": _iter_retgen,
    "flare": _flare, "self-rag": _self_rag,
}  # fmt: skip


def _said(text: str, *, passages: int = PASSAGES, doubt: str = "") -> dict[str, Any]:
    """A record of a trace. The text is split into tokens of about four letters; those of `doubt` are improbable."""
    start = text.find(doubt) if doubt else len(text)
    pieces: list[tuple[str, float]] = []
    for match in re.finditer(r"\s*\S+", text):
        unsure = match.start() < start + len(doubt) and match.end() > start
        parts = max(1, round(len(match[0]) / LETTERS_PER_TOKEN))
        size = -(-len(match[0]) // parts)
        cut = [match[0][at : at + size] for at in range(0, len(match[0]), size)]
        pieces += [(part, _DOUBT if unsure else _CERTAIN) for part in cut]
    return {"prompt_tokens": _INSTRUCTIONS + passages * _PASSAGE, "pieces": pieces}
