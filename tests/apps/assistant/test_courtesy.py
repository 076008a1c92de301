"""Greetings and thanks, which ask nothing."""

from __future__ import annotations

import pytest

from edge.apps.assistant.courtesy import courtesy


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("thanks", "You are welcome"), ("Thank you very much!", "You are welcome"), ("Vielen Dank", "You are welcome"),
        ("ok, thanks", "You are welcome"), ("hello", "Hello"), ("Guten Tag", "Ask"), ("Hi there!", "Hello"),
        ("help", "Ask"), ("OK.", "Ask"), ("yes please", "Ask"), ("bye", "Goodbye"),
    ],
)  # fmt: skip
def test_a_text_that_asks_nothing_gets_a_reply(text: str, begins: str) -> None:
    assert courtesy(text).startswith(begins)


@pytest.mark.parametrize(
    "text",
    ["", "?", "bridge", "who is Ada?", "thanks, and the deposit?", "hello world program", "why?", "help desk number",
     "and how much?", "is it good?", "what is it for", "until when?"],
)  # fmt: skip
def test_a_question_gets_none(text: str) -> None:
    assert courtesy(text) == ""
