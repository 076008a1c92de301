"""`ChatTemplate`: the form of a conversation that a model was trained on.

A GGUF file contains its template in Jinja. llama.cpp's own `llama_chat_apply_template` does not run Jinja. It
recognizes about fifty well-known templates and supports no others. So the template is run here, in Jinja's sandbox,
because its author is not trusted. The texts of messages and documents are not passed through the template. It is run
with placeholders that show the place of each text, so that no text can be mistaken for the model's control tokens.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from edge.errors import CapabilityError, ModelError

Part = str | int
"""Text of the template, or the number of a message that is placed here."""

# Private-use characters. No template searches for them, trims them or escapes them.
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACE = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


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
