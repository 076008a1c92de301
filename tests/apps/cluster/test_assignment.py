"""Which copy of a shard searches: the one that holds the lists, unless others have less to do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from naive.spread import QUERIES, Small, invented

from edge.apps.cluster.calling import Assignment
from edge.apps.cluster.catalogue import Replica
from edge.ivf.base import CodecSpec, Quantizer

ONE, TWO = (Replica("s", number, "", str(number), 0) for number in (0, 1))


def about(*lists: int) -> bytes:
    """The vectors of queries of which each probes one of 16 lists."""
    return np.eye(16, dtype=np.float32)[list(lists)].tobytes()


def told(*lists: int) -> Future[tuple[bytes, bytes]]:
    """The answer of a copy that holds these lists."""
    answer: Future[tuple[bytes, bytes]] = Future()
    answer.set_result((b"{}", np.packbits(np.isin(np.arange(16), lists)).tobytes()))
    return answer


@pytest.fixture
def one() -> Assignment:
    return Assignment(Quantizer(1, CodecSpec("flat", 16, 64), np.eye(16, dtype=np.float32), ((1, 0.99), (16, 1.0))))


def test_a_request_goes_where_its_lists_are(one: Assignment) -> None:
    assert one.take([ONE, TWO], about(3, 5))[0] is ONE  # nothing is known, and the first has nothing to do
    assert one.take([ONE, TWO], about(7, 9))[0] is TWO  # it has nothing to do
    for lists in ([3], [5], [3, 5]):  # they come to the first copy
        chosen, ended = one.take([TWO, ONE], about(*lists))
        ended(told(3, 5, 6))
        assert chosen is ONE
    chosen, ended = one.take([TWO, ONE], about(6))
    assert chosen is ONE  # as it has told


def test_work_goes_to_the_copy_that_has_less(one: Assignment) -> None:
    _, ended = one.take([ONE], about(1))
    ended(told(*range(8)))
    chosen = [one.take([ONE, TWO], about(2))[0] for _ in range(4)]
    assert chosen.count(TWO) == 2  # one must read the list, and then has it
    assert chosen[0] is ONE


def test_a_copy_that_fails_holds_nothing(one: Assignment) -> None:
    _, ended = one.take([ONE], about(1))
    ended(told(1, 2))
    chosen, ended = one.take([TWO, ONE], about(2))
    assert chosen is ONE
    lost: Future[Any] = Future()
    lost.set_exception(RuntimeError("the actor died"))
    ended(lost)
    assert one.take([TWO, ONE], about(2))[0] is TWO


def test_words_alone_go_to_the_copy_with_less_work(one: Assignment) -> None:
    assert [one.take([ONE, TWO], b"")[0] for _ in range(4)] == [ONE, TWO, ONE, TWO]


def test_copies_with_lists_equal_one_collection(small: Callable[..., Small]) -> None:
    one = small(2, copies=2, lists=True)
    one.add(invented(3, 120))
    one.cluster.finish()
    assert one.share() > 1
    one.check(QUERIES)
    asked: list[tuple[str, bytes]] = []
    send = one.places.send

    def noted(replica: Replica, verb: str, head: bytes, raw: bytes) -> Any:
        if verb == "gather":
            asked.append((replica.name, raw))
        return send(replica, verb, head, raw)

    one.places.send = noted
    assignments = one.cluster._current().assignments
    assert list(assignments) == ["s0", "s1"]
    one.check(QUERIES)
    held = [present for each in assignments.values() for present in each._held.values()]
    assert len({name for name, _ in asked}) > 2  # the shards, and the second copy of one at least
    assert any(present.any() for present in held)  # as the shards told
    assert all(not work for each in assignments.values() for work in map(round, each._work.values()))
    assert one.cluster.budget.holders()["index tables"] > 0


@pytest.mark.parametrize("shape", [{"copies": 1, "lists": True}, {"copies": 2, "lists": False}])
def test_without_a_choice_nothing_is_assigned(small: Callable[..., Small], shape: dict[str, Any]) -> None:
    one = small(2, **shape)
    one.add(invented(3, 90))
    one.cluster.finish()
    one.share()
    assert one.cluster._current().assignments == {}
    one.check(QUERIES[:2])
