"""However a reply is cut into pieces, a refusal is never shown and an answer is shown whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.prompts import REFUSAL
from edge.apps.assistant.replies import Refusal


def read(pieces: Sequence[str]) -> tuple[str, bool]:
    refusal = Refusal()
    shown = "".join([refusal.feed(piece) for piece in pieces])
    return ("", True) if refusal.said else (shown + refusal.finish(), False)


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


PLACES = st.lists(st.integers(0, 60), max_size=8)


@given(PLACES, st.sampled_from([REFUSAL, f'"{REFUSAL}."', f" {REFUSAL.lower()}\n", f"**{REFUSAL}** at all"]))
def test_a_refusal_is_never_shown(places: list[int], reply: str) -> None:
    assert read(cut(reply, places)) == ("", True)


@given(PLACES, st.text(max_size=60) | st.sampled_from(["Not in the middle.", "NOT", "Not in the doc"]))
def test_an_answer_is_shown_whole(places: list[int], reply: str) -> None:
    if REFUSAL not in " ".join(reply.split()).upper():
        assert read(cut(reply, places)) == (reply, False)


@pytest.mark.parametrize("reply", ["It is 4 m long.", "Notes say so."])
def test_an_answer_is_shown_as_soon_as_it_differs(reply: str) -> None:
    assert Refusal().feed(reply) == reply
