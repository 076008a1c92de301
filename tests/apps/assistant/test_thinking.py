"""The notes of a model to itself are not its reply."""

from __future__ import annotations

import pytest

from edge.apps.assistant.replies import Thinking
from edge.runtimes.generation.base import Piece


def shown(*pieces: str) -> str:
    thinking = Thinking()
    found = [piece for text in pieces for piece in thinking.feed(Piece(text))] + thinking.finish()
    return "".join(piece.text for piece in found)


@pytest.mark.parametrize(
    ("written", "reply"),
    [
        ("<think>It may be [2].</think>\n\nYes [1].", "Yes [1]."),
        ("\n<think>\n</think> Yes.", " Yes."),
        ("<think></think>", ""),
        ("<think>And so on", ""),
        ("<thin ice> is cold", "<thin ice> is cold"),
        ("<thi", "<thi"),
        ("Yes. <think>no</think>", "Yes. <think>no</think>"),
        ("<think>a</think><think>b</think>", "<think>b</think>"),
        (" Yes", " Yes"),
        ("", ""),
    ],
)
def test_a_thought_before_the_reply_is_left_out(written: str, reply: str) -> None:
    assert shown(written) == reply
    assert shown(*written) == reply, "character by character"


def test_whether_it_has_ended() -> None:
    thinking = Thinking()
    states = []
    for text in ("<th", "ink>", "hm", "</think>", "So"):
        thinking.feed(Piece(text))
        states.append(thinking.under_way)
    assert states == [False, True, True, False, False]


def test_tokens_keep_their_probability() -> None:
    thinking = Thinking()
    assert thinking.feed(Piece("<", 1, -0.5)) == []
    assert thinking.feed(Piece("b>", 2, -0.25)) == [Piece("<", 1, -0.5), Piece("b>", 2, -0.25)]
    assert thinking.feed(Piece(" c", 3, -1.0)) == [Piece(" c", 3, -1.0)]
