"""FLARE: retrieve whenever the next sentence is uncertain (Jiang et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing

from edge.apps.assistant import prompts, replies
from edge.apps.assistant.base import NotInDocuments
from edge.apps.assistant.judged_question import judged_question
from edge.apps.assistant.passages import merge_passages
from edge.apps.assistant.prefetching import Query
from edge.apps.assistant.steps import Steps
from edge.apps.collection.hits import Hit
from edge.errors import CapabilityError
from edge.runtimes.generation.base import Piece
from edge.sentences import sentences

UNSURE = 0.8
"""A sentence with a token less probable than this is looked up and written anew (theta)."""

_MASKED = 0.4
"""Tokens less probable than this are left out of the query, because they may be wrong (beta)."""

_SENTENCE_TOKENS = 64
_MARKS = ("[", "]")


def flare(question: str, steps: Steps) -> Iterator[str]:
    """Writes an answer sentence by sentence. If the generator was unsure of a token, the sentence's other tokens are
    the query of a retrieval, and the sentence is written again. While a sentence is written, clusters near the question
    and the previous sentence are fetched.

    The answer ends when the generator stops by itself or repeats a sentence. Some servers do not continue an
    assistant's message but begin anew; they would repeat a sentence until `max_tokens`.

    Raises:
        CapabilityError: the generator does not report the probabilities of its tokens.
    """
    passages = steps.retrieve(question)
    if not passages:
        yield from steps.answer(prompts.answer(question), passages)
    said = ""
    last = ""
    retrievals = 1
    left = steps.options.max_tokens
    while passages and left > 0:
        draft = _sentence(question, said, passages, steps, left, ahead=[question, last] if last else [question])
        if not _text(draft).strip():
            steps.check_replied()
            return
        if retrievals <= steps.options.rounds and (query := _doubt(draft)) is not None:
            retrievals += 1
            rank_by = f"{judged_question(question)} {query}".strip()
            found = steps.retrieve(question, [Query.of(query or question)], rank_by=rank_by)
            passages = merge_passages(steps.most, found, passages)
            draft = _sentence(question, said, passages, steps, left)
        left -= len(draft)
        ended = steps.finished
        before, last = last, steps.shown(_text(draft), steps.given)
        if replies.refused(last):
            raise NotInDocuments
        # A reply that holds only marks of passages that do not exist would repeat for ever, too.
        if last.strip() in ("", before.strip()):
            return
        shown = f" {last.lstrip()}" if said and not said[-1].isspace() and not last[:1].isspace() else last
        said += shown
        yield shown
        if ended:
            return


def _sentence(
    question: str, said: str, passages: Sequence[Hit], steps: Steps, left: int, ahead: Sequence[str] = ()
) -> list[Piece]:
    """The tokens of the next sentence, at most `left`; empty when the answer has ended."""
    begun = steps.showing.citations.prompted(said, passages)
    prompt = prompts.answer(question, name="sentence", begun=begun, max_tokens=min(_SENTENCE_TOKENS, left))
    pieces: list[Piece] = []
    sampling = steps.sampling(prompt)
    with closing(steps.stream(prompt, passages, ahead=ahead, becoming=_so_far, sampling=sampling)) as stream:
        for piece in stream:
            if piece.logprob is None:
                raise CapabilityError(
                    f"flare asks how probable each token was, and {steps.generator.name} does not tell: "
                    f"use another pipeline, or a GGUF model"
                )
            pieces.append(piece)
            if len(pieces) > 1 and len(sentences(_text(pieces))) > 1:
                pieces.pop()  # the token that begins the following sentence
                break
    return pieces


def _so_far(written: str) -> list[Query]:
    return [Query.of(written.strip())] if written.strip() else []


def _doubt(sentence: Sequence[Piece]) -> str | None:
    """The query of an uncertain sentence: its tokens without the improbable ones. None if all tokens are certain."""
    spoken = [piece for piece in sentence if piece.text.strip() and not piece.text.strip().startswith(_MARKS)]
    if all(_sure(piece, UNSURE) for piece in spoken):
        return None
    return _text([piece for piece in sentence if _sure(piece, _MASKED)]).strip()


def _sure(piece: Piece, least: float) -> bool:
    return (piece.logprob or 0.0) >= math.log(least)


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
