"""`HeldQuestions` against a set of all beginnings, which are the cells of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from naive.knowledge import segment

from edge.runtimes.generation.prompt import Prompt
from edge.runtimes.generation.seat import HeldQuestions, alike

PATHS = [(), (segment("a", 3),), (segment("a", 3), segment("b", 2)), (segment("b", 2),)]

text = st.lists(st.integers(0, 2), max_size=6).map(tuple)
prompt = st.builds(Prompt, st.sampled_from(PATHS), text)


@dataclass(eq=False)
class Seat:
    length: int

    def reusable(self, common: int, tokens: int) -> int:
        return min(common, tokens - 1)


@given(text, text)
def test_the_equal_beginning_of_two_texts(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert alike(one, other) == expected


@given(st.lists(prompt, max_size=6), st.lists(prompt, max_size=3))
def test_cells_are_those_that_sequences_take_one_after_the_other(held: list[Prompt], more: list[Prompt]) -> None:
    """The oracle lets each prompt take the states of the sequence that holds most of it, as the engine does."""
    questions, seats, cells, paths = HeldQuestions(), list[Any](), 0, set()
    for one in [*held, *more]:
        prefixes = {one.path[: i + 1] for i in range(len(one.path))}
        path = sum(len(part.tokens) for part in one.path)
        cells += sum(len(prefix[-1].tokens) for prefix in prefixes - paths)
        cells += len(one.question) - questions.best(one)[0]
        paths |= prefixes
        seats.append(Seat(path + len(one.question)))
        questions.hold(seats[-1], one.path, one.question)
    for seat in seats[len(held) :]:
        questions.drop(seat)
    lengths = [(seat, seat.length + 5) for seat in [*seats[: len(held)], Seat(2)]]
    found = questions.cells(lengths, more) - 5 * len(lengths) - 2
    assert cells <= found <= cells + len(held) + len(more)


def test_a_sequence_that_was_cut_holds_less() -> None:
    questions, seat, whole = HeldQuestions(), Seat(9), Prompt(PATHS[1], (1, 2, 3, 4, 5, 6))
    questions.hold(seat, whole.path, whole.question)
    assert questions.best(whole) == (5, seat)
    assert questions.best(Prompt(PATHS[2], whole.question))[0] == 0
    seat.length = 5
    assert questions.best(whole, [seat]) == (2, seat)
    assert questions.cells([(seat, 8)], []) == 8
    seat.length = 0
    assert questions.best(whole)[0] == 0
