"""`Prompt`: a conversation and its documents as tokens, in segments with states that can be cached.

`ChatTemplate` is the form of a conversation that a model was trained on. A GGUF file contains its template in Jinja.
llama.cpp's own `llama_chat_apply_template` does not run Jinja. It recognizes about fifty well-known templates and
supports no others. So the template is run here, in Jinja's sandbox, because its author is not trusted. The texts of
messages and documents are not passed through the template. It is run with placeholders that show the place of each
text, so that no text can be mistaken for the model's control tokens.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge.errors import CapabilityError, InputError, ModelError
from edge.kv_cache.backend import StateSegment
from edge.runtimes.generation.base import Document, Message, answer_room, check_messages, numbered
from edge.runtimes.generation.llama_model import LlamaModel

Part = str | int
"""Text of the template, or the number of a message that is placed here."""

# Private-use characters. No template searches for them, trims them or escapes them.
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACE = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens that a model reads before it answers.

    Attributes:
        path: the conversation up to the documents (the system prompt), then each document, all tokenized separately.
        question: the rest, up to the beginning of the answer.
        dropped: number of documents that did not fit. The last ones are left out.
    """

    path: tuple[StateSegment, ...]
    question: tuple[int, ...]
    dropped: int = 0

    @property
    def tokens(self) -> int:
        """Total number of tokens."""
        return sum(len(segment.tokens) for segment in self.path) + len(self.question)


class PromptBuilder:
    """Builds prompts for one model and context."""

    def __init__(self, model: LlamaModel, context: int, *, thinking: bool = False) -> None:
        """Compiles the model's chat template.

        Raises:
            ModelError: the template is not valid.
        """
        self._model = model
        self._context = context
        # We add the first token ourselves. A template that writes it as well would double it.
        bos = "" if model.first_token is not None else model.bos
        self._template = ChatTemplate(model.file.chat_template, bos=bos, eos=model.eos, thinking=thinking)

    def build(self, messages: Sequence[Message], documents: Sequence[Document], max_tokens: int) -> Prompt:
        """Builds a prompt. Documents stand after the system message, or before the first question if there is none.

        The first documents are taken, as many as fit beside the conversation and the answer (`answer_room`). The others
        are left out.

        Raises:
            InputError: the messages are not a valid conversation, a text is not valid Unicode, or the conversation
                leaves no room for an answer.
        """
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
        kept = 0
        for number, document in enumerate(documents, 1):
            tokens = tuple(self._model.tokenize(numbered(document, number), continues=bool(path)))
            room -= len(tokens)
            if room < 0:
                break
            path.append(StateSegment(document.id, tokens))
            kept = number
        return Prompt(tuple(path), tuple(question), len(documents) - kept)

    def _parts(
        self, messages: Sequence[Message], with_documents: bool
    ) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
        """Texts before and after the documents. The flag is True for text of the template."""
        begun = messages[-1].content if messages[-1].role == "assistant" else ""
        turns = messages[:-1] if messages[-1].role == "assistant" else messages
        parts: list[Part] = self._template.render([message.role for message in turns])
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


class ChatTemplate:
    """Formats conversations for one model."""

    def __init__(self, source: str | None, *, bos: str = "", eos: str = "", thinking: bool = False) -> None:
        """Compiles a template.

        Args:
            source: the template in Jinja; None for a model without one. Such a model reads the messages with empty
                lines between them.
            bos, eos: text of the tokens that begin and end a sequence.
            thinking: allows a model to reason before its answer, if its template has `enable_thinking`.

        Raises:
            ModelError: the template is not valid Jinja.
            CapabilityError: Jinja is not installed.
        """
        self._values: Mapping[str, Any] = {"bos_token": bos, "eos_token": eos, "enable_thinking": thinking}
        self._template: Any = None if source is None else _compile(source)

    def render(self, roles: Sequence[str]) -> list[Part]:
        """The parts of a conversation with these roles, up to the beginning of the assistant's answer.

        If the template refuses or leaves out a system message, it is put before the first message of the user.

        Raises:
            ModelError: the template fails, or loses or repeats a message.
        """
        if self._template is None:
            return [part for number in range(len(roles)) for part in (number, "\n\n")]
        messages = [{"role": role, "content": f"{_OPEN}{number}{_CLOSE}"} for number, role in enumerate(roles)]
        parts, problem = self._try(messages)
        if parts is None and roles[0] == "system" and "user" in roles:
            user = roles.index("user")
            messages[user]["content"] = f"{messages[0]['content']}\n\n{messages[user]['content']}"
            parts, _ = self._try(messages[1:], expected=len(roles))
        if parts is None:
            raise ModelError(
                f"the model's chat template {problem} in a conversation of {len(roles)} messages "
                f"({', '.join(dict.fromkeys(roles))})"
            )
        return parts

    def _try(self, messages: Sequence[Mapping[str, str]], expected: int | None = None) -> tuple[list[Part] | None, str]:
        """The parts, or None and a description of the error."""
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **self._values)
        except Exception as error:  # a template is a program and can raise any error
            return None, f"fails ({error})"
        # A split by a pattern with one group gives text, number, text, number, ..., text.
        split = _PLACE.split(text)
        parts: list[Part] = [int(part) if at % 2 else part for at, part in enumerate(split) if part or at % 2]
        numbers = [part for part in parts if isinstance(part, int)]
        if numbers != list(range(expected or len(messages))):
            return None, "does not give every message once"
        return parts, ""


def _compile(source: str) -> Any:
    try:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise CapabilityError('chat templates need jinja2: pip install "edge-rag[llm]"') from error

    def refuse(message: str) -> None:
        raise TemplateError(message)

    # These are the settings and functions of transformers, for which the templates are written.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = time.strftime
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ModelError(f"the model's chat template is not valid Jinja: {error}") from error
