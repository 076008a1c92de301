"""Traces of the six pipelines for replay (TeleRAG, section 5.1): the texts that a language model writes in every step.

Recorded traces were written by a language model over the questions of a judged set. They name the questions by their
ids, so that a replay needs the set. Assembled traces need no model. Their texts are taken from judged sets, whose
questions come with the paragraph and the string that answer them; there are several questions per paragraph and several
paragraphs per article:

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
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from making.random_gguf import made_model
from making.recording import FORMAT, Speed
from making.replay import ReplayGenerator

from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.models.training.corpora import Corpus
from edge.runtimes.base import physical_cores
from edge.runtimes.generation.gguf_file import GGUFFile
from edge.runtimes.generation.llama_context import ContextShape, LlamaContext
from edge.runtimes.generation.llama_model import LlamaModel, llama_library
from edge.text.sentences import sentences

PIPELINES = ("hyde", "subquestion", "iterative", "iter-retgen", "flare", "self-rag")
SHIPPED = Path(__file__).parent / "traces"
"""The folder of the recorded traces that come with the program; its README describes them."""

PASSAGES = 3
ROUNDS = 3

_LETTERS_PER_TOKEN = 4
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


def write_trace(path: Path, pipeline: str, chosen: Sequence[Case], *, prefill: float, decode: float) -> None:
    """Writes one pipeline's trace: every step of every case, in the order of the replay, with its tokens per second."""
    with path.open("w", encoding="utf-8") as file:
        header = {"format": FORMAT, "name": f"replay-{pipeline}", "prefill": prefill, "decode": decode}
        file.write(json.dumps(header) + "\n")
        for case in chosen:
            for record in _STEPS[pipeline](case):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_recorded(path: Path, recorded: Path, chosen: Sequence[Case]) -> None:
    """Writes the part of a recorded trace that belongs to some questions, in their order."""
    try:
        header, *lines = recorded.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"the trace {recorded} cannot be read: {error.strerror}") from error
    answers: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        answers[json.loads(line)["for"]].append(line)
    if missing := [case.id for case in chosen if case.id not in answers]:
        raise InputError(
            f"{recorded} has no answers to {missing[0]!r}: ask fewer questions, or record it anew with --record"
        )
    written = [header, *(line for case in chosen for line in answers[case.id])]
    path.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")


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
        parts = max(1, round(len(match[0]) / _LETTERS_PER_TOKEN))
        size = -(-len(match[0]) // parts)
        cut = [match[0][at : at + size] for at in range(0, len(match[0]), size)]
        pieces += [(part, _DOUBT if unsure else _CERTAIN) for part in cut]
    return {"prompt_tokens": _INSTRUCTIONS + passages * _PASSAGE, "pieces": pieces}


_CONTEXT, _BATCH = 4096, 512
_FIRST = 300
"""A token of every vocabulary. Which tokens are computed does not change the time."""

_NO_PAUSE = Speed(float("inf"), float("inf"))


def computing(shape: str | None, work_dir: Path) -> dict[str, Any]:
    """The keys of a worker's task that let it compute with a random model of a shape in `SHAPES`; none without one."""
    if shape is None:
        return {}
    return {"computes": str(made_model(work_dir, shape)), "model_threads": physical_cores()}


def pace(shape: str | None, prefill: float, decode: float) -> dict[str, Any]:
    """The conditions of a replay: its speeds, or the model that computes."""
    if shape is None:
        return {"prefill": prefill, "decode": decode, "pace": f"at {prefill:.0f} and {decode:.0f} tokens/s"}
    return {"computes": shape, "pace": f"while llama.cpp computes each token with the random model {shape}"}


def replayed(task: dict[str, Any], trace: str, budget: MemoryBudget) -> ReplayGenerator:
    """The generator that replays a trace: it waits as long as the task's speeds say, or computes with its `computes`, a
    GGUF file."""
    if task.get("computes"):
        return ComputedReplay(trace, task["computes"], budget, threads=task["model_threads"])
    return ReplayGenerator(trace, speed=Speed(task["prefill"] or math.inf, task["decode"] or math.inf))


class ComputedReplay(ReplayGenerator):
    """Gives recorded answers. A token comes when the model has computed it, and the first one when it has also read a
    prompt of the recorded length."""

    def __init__(self, path: str | Path, model: str | Path, budget: MemoryBudget, *, threads: int) -> None:
        super().__init__(path, speed=_NO_PAUSE)
        file = GGUFFile.open(model)
        with budget.charge("language model"):
            self._model = LlamaModel(llama_library(), file, load="read")
            self._context = LlamaContext(self._model, ContextShape(_CONTEXT, _BATCH, "f16", threads))
        weakref.finalize(self, _close, self._context, self._model)

    def _next_token(self, prompt_tokens: int, cancel: threading.Event) -> bool:
        if prompt_tokens:
            self._context.truncate(0)
            prompt = [_FIRST] * min(prompt_tokens, _CONTEXT // 2)
            self._context.append(prompt, cancelled=cancel.is_set, logits=True)
        if not cancel.is_set():
            self._context.append([_FIRST], logits=True)
        return cancel.is_set()


def _close(context: LlamaContext, model: LlamaModel) -> None:
    context.close()
    model.close()
