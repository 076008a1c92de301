"""`ChatTemplate`: how a model was trained to see a conversation.

A GGUF file carries its template in Jinja. llama.cpp's own `llama_chat_apply_template` does not run it but recognizes
some fifty well-known ones, and knows nothing of the rest; so the template itself is run, in Jinja's sandbox, since it
comes from whoever made the file. What people and documents say does not pass through it: the template is asked where
each message's text goes, so that nothing in such a text can be taken for one of the model's control tokens.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from edge.errors import CapabilityError, ModelError

Part = str | int
"""Text of the template, or the number of the message whose text goes here."""

# Private-use characters: no template looks for them, trims or escapes them.
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACE = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class ChatTemplate:
    """Lays out conversations for one model."""

    def __init__(self, source: str | None, *, bos: str = "", eos: str = "", thinking: bool = False) -> None:
        """Compiles a template.

        Args:
            source: Jinja; None for a model that has none, which then reads the messages with empty lines between.
            bos, eos: text of the tokens that begin and end a sequence.
            thinking: lets a model that can reason before its answer do so (templates that know `enable_thinking`).

        Raises:
            ModelError: the template is not valid Jinja.
            CapabilityError: Jinja is not installed.
        """
        self._values: Mapping[str, Any] = {"bos_token": bos, "eos_token": eos, "enable_thinking": thinking}
        self._template: Any = None if source is None else _compile(source)

    def render(self, roles: Sequence[str]) -> list[Part]:
        """Where texts go in a conversation of these roles, up to where the assistant's answer begins.

        A system message that the template refuses or leaves out is put before the first message of the user.

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
        """The parts, or None and what is wrong."""
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **self._values)
        except Exception as error:  # a template can fail in any way a program can
            return None, f"fails ({error})"
        # Splitting by a pattern with one group gives text, number, text, number, ..., text.
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

    # The settings and functions that transformers gives templates, since those are written for it.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = time.strftime
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ModelError(f"the model's chat template is not valid Jinja: {error}") from error
