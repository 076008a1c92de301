"""Passages of several retrievals."""

from __future__ import annotations

from typing import Any

from edge.apps.assistant.passages import dealt, fused, merge_passages


def test_passages_of_a_later_round_follow_those_of_the_first(hit: Any) -> None:
    first, second, third = (hit(i, f"Text {i}.", score=score) for i, score in enumerate((0.5, 0.3, 0.9)))
    assert merge_passages(2, [first, second], [third, first]) == [first, third]
    assert merge_passages(5, [first, second], [third, first]) == [first, second, third]
    assert merge_passages(2) == []


def test_every_part_of_a_question_has_its_turn(hit: Any) -> None:
    one, two, three, four = (hit(i, f"Text {i}.") for i in range(4))
    assert dealt(3, [[one, two], [one, three], [four]]) == [one, four, two]
    assert dealt(9, [[], [one]]) == [one]


def test_what_several_queries_find_comes_first(hit: Any) -> None:
    one, two, three = (hit(i, f"Text {i}.") for i in range(3))
    assert fused([[one, two]]) == [one, two]
    assert fused([[one, two], [three, two]])[0] == two
