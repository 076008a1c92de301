from __future__ import annotations

from bench.beam import numbers, share, turns


def test_a_chat_is_read() -> None:
    user = {"role": "user", "id": 4, "time_anchor": "March-15-2024", "content": "I moved ->-> 1,2"}
    reply = {"role": "assistant", "id": 5, "content": "Good -> luck"}
    empty = {"role": "user", "id": 6, "content": " ->-> 1,3"}
    said = list(turns([{"time_anchor": None, "turns": [[user, reply], [empty]]}]))
    assert [(one["role"], one["content"], one["metadata"]) for one in said[0][0]] == [
        ("user", "I moved", {"turn": 4}), ("assistant", "Good -> luck", {"turn": 5}),
    ]  # fmt: skip
    assert said[1] == ([], "2024-03-15")


def test_the_turns_that_a_question_needs() -> None:
    assert numbers({"first": [4, 5], "second": [[7]]}) == {4, 5, 7}
    assert numbers(None) == set()
    assert share({4, 5}, [5, 9]) == 0.5
