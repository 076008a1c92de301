"""`Prompt`: a conversation and its documents as tokens, in segments with states that can be cached."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, InputError
from edge.kv_cache.backend import StateSegment
from edge.runtimes.generation.base import Document, Message, answer_room, check_messages, numbered
from edge.runtimes.generation.chat_template import ChatTemplate
from edge.runtimes.generation.llama_model import LlamaModel


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens that a model reads: the system prompt and each document, tokenized separately, and the rest. The last
    `dropped` documents did not fit."""

    path: tuple[StateSegment, ...]
    question: tuple[int, ...]
    dropped: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(segment.tokens) for segment in self.path) + len(self.question)


class PromptBuilder:
    def __init__(self, model: LlamaModel, context: int, budget: MemoryBudget) -> None:
        """Runs the chat template once, so that one that cannot be used is refused before there is a question."""
        self._model = model
        self._context = context
        # We add the first token ourselves. A template that writes it as well would double it.
        bos = "" if model.first_token is not None else model.bos
        self._template = ChatTemplate(model.file.chat_template, budget, bos=bos, eos=model.eos)
        with suppress(BudgetExceeded):
            self._template.render(("system", "user"))

    def build(
        self, messages: Sequence[Message], documents: Sequence[Document], max_tokens: int, *, moved: bool = False
    ) -> Prompt:
        """Documents stand after the system message, or before the first question: the first ones that fit
        (`answer_room`), the first one last, next to the question. `moved`: the others' states may be moved."""
        check_messages(messages)
        head, tail = self._parts(messages, with_documents=bool(documents))
        start = self._tokens(head, first=True)
        if self._model.first_token is not None:
            start.insert(0, self._model.first_token)
        question = self._tokens(tail, first=not head)
        if not question:
            raise InputError("there is nothing to answer: the last message is empty")
        fixed = len(start) + len(question)
        if fixed >= self._context:
            raise InputError(
                f"the conversation has {fixed:,} tokens but the context holds {self._context:,}, of which the answer "
                f"needs some; shorten it, or take a larger context (--context, EDGE_CONTEXT)"
            )
        path = [StateSegment("system", tuple(start))] if start else []
        room = self._context - fixed - answer_room(self._context, max_tokens)
        read: list[StateSegment] = []
        for number, document in enumerate(documents, 1):
            tokens = self._document(document, number, continues=bool(path or read))
            room -= len(tokens)
            if room < 0:
                break
            home = self._document(document, 1, continues=bool(start)) if moved else ()
            read.append(StateSegment(document.id, tokens, home, whole=moved and number == 1))
        return Prompt((*path, *reversed(read)), tuple(question), len(documents) - len(read))

    def _document(self, document: Document, number: int, *, continues: bool) -> tuple[int, ...]:
        return tuple(self._model.tokenize(numbered(document, number), continues=continues))

    def _parts(
        self, messages: Sequence[Message], with_documents: bool
    ) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
        """Texts before and after the documents. The flag is True for text of the template."""
        begun = messages[-1].content if messages[-1].role == "assistant" else ""
        turns = messages[:-1] if messages[-1].role == "assistant" else messages
        parts = self._template.render(tuple(message.role for message in turns))
        system = turns[0].role == "system"
        first = 0 if system else next(i for i, message in enumerate(turns) if message.role == "user")
        place = parts.index(first) + (1 if system else 0)
        texts = [(turns[part].content, False) if isinstance(part, int) else (part, True) for part in parts]
        head, tail = texts[:place], texts[place:]
        if system and with_documents:
            head.append(("\n\n", False))
        return head, [*tail, (begun, False)]

    def _tokens(self, texts: Sequence[tuple[str, bool]], *, first: bool) -> list[int]:
        tokens: list[int] = []
        for position, (text, control) in enumerate(texts):
            if text:
                tokens += self._model.tokenize(text, control=control, continues=position > 0 or not first)
        return tokens
