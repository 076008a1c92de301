"""The requests of a lookahead to a residency, their order, and when it gives up."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from naive.residency import LeastRecent

from edge.blocks import BlockId, Extent
from edge.cache.cached_block import DecayedHotness, Policy, page_buffer
from edge.cache.lookahead import DemandShadow, Displacement, Lookahead, MissCurve, Predicted
from edge.cache.residency import Admitted
from edge.link import Lane


class Room:
    """A residency that refuses some groups and remembers the requests."""

    def __init__(self, refused: Iterable[int] = ()) -> None:
        self.refused = set(refused)
        self.resident: set[object] = set()
        self.asked: list[int] = []
        self.guarded: list[object] = []
        self.discarded: list[object] = []

    def guard(self, owner: object, keys: Iterable[object]) -> list[object]:
        assert not self.asked
        self.guarded = [key for key in keys if key in self.resident]
        return list(self.guarded)

    def absent(self, keys: Iterable[object]) -> list[object]:
        return [key for key in keys if key not in self.resident]

    def prefetch(self, owner: object, blocks: Any, limit: int) -> Admitted | None:
        ((_, number), _, fetch), *_ = blocks
        self.asked.append(number)
        if number in self.refused:
            return None
        fetch(page_buffer(1))
        return Admitted(1, [f"for {number}"])

    def withdraw(self, owner: object, keys: Iterable[object]) -> None: ...

    def unguard(self, owner: object, keys: Iterable[object]) -> None: ...

    def discard(self, keys: Iterable[object]) -> None:
        self.discarded += keys


class OneBlock:
    """A file that holds one byte."""

    def __init__(self, block: BlockId) -> None:
        self.extents = {block: Extent(0, 1, 0)}

    def announce(self, ranges: object) -> None: ...


def group_of(number: int) -> list[Predicted]:
    """A group of one block."""
    block = BlockId("codes", number)
    return [Predicted(("file", number), OneBlock(block), block, 1)]


def looked_ahead(
    room: Room, *orders: Iterable[list[Predicted]], needs: Iterable[Iterable[int]] = (), **options: Any
) -> Lookahead:
    """A lookahead of these predictions that has ended; `needs` are the blocks that each search after it needed."""
    with Lane() as lane:
        window = Lookahead(room, lane, [iter(order) for order in orders], nbytes=1000, **options)
        if "overrun" in options:
            window.finish()
        else:
            window.wait()
        for needed in needs:
            keys = [("file", number) for number in needed]
            window.search_needs(keys, keys)
        window.cancel()
    return window


def test_only_refusals_in_a_row_end_it() -> None:
    room = Room({0, 1, 2, 4, 5, 6, 8, 9, 10})
    looked_ahead(room, [group_of(i) for i in range(12)])
    assert room.asked == list(range(12))
    room = Room(set(range(20)))
    looked_ahead(room, [group_of(i) for i in range(12)])
    assert room.asked == [0, 1, 2, 3]


def test_after_the_window_it_goes_on_for_the_overrun() -> None:
    def slowly() -> Iterator[list[Predicted]]:
        for i in range(3):
            time.sleep(0.02)
            yield group_of(i)

    room = Room()
    looked_ahead(room, slowly(), seconds=0.0, overrun=30.0)
    assert room.asked == [0, 1, 2]


def test_blocks_that_are_spared_are_guarded_before_anything_is_fetched() -> None:
    room = Room()
    room.resident = {("file", 3)}
    displaced = Displacement()
    looked_ahead(room, [group_of(0), group_of(1)], spared=[("file", 0), ("file", 3)], displacement=displaced)
    assert room.guarded == [("file", 3)]
    assert displaced.keys == {"for 0", "for 1"}, "what made room is noted"


@pytest.mark.parametrize(("needs", "dropped"), [([[0, 5]], [1]), ([], [0, 1])])
def test_what_was_fetched_and_not_needed_is_forgotten(needs: list[list[int]], dropped: list[int]) -> None:
    room = Room()
    looked_ahead(room, [group_of(0), group_of(1)], needs=needs)
    assert room.discarded == [("file", number) for number in dropped]


def test_a_batch_is_compared_with_what_all_its_searches_needed() -> None:
    """Four queries, predicted together and searched one by one: a perfect prediction is learned as one."""
    curve = MissCurve()
    orders = [[group_of(number)] for number in range(4)]
    looked_ahead(Room(), *orders, misses=curve, needs=[[0], [1], [2], [3, 0]])
    assert curve.points()[-1] == (4.0, 0.0)
    untaught = MissCurve()
    looked_ahead(Room(), [group_of(0)], misses=untaught)
    assert untaught.points() == [], "no search came to it"
    for needed in (1.0, 2.0):
        untaught.observe([needed] * 4096)
    assert untaught.points()[1][0] == 2.0, "the oldest are forgotten"


def shadow_of(*held: int, policy: Policy | None = None) -> DemandShadow:
    """One that holds these blocks of ten bytes, the first of them used longest ago."""
    policy = policy or LeastRecent()
    for key in held:
        policy.insert(key)
    return DemandShadow(dict.fromkeys(held, 10), policy)


def search(shadow: DemandShadow, *keys: int, room: int = 40, absent: tuple[int, ...] = ()) -> set[object]:
    return shadow.search(dict.fromkeys(keys, 10), room, absent=absent, seconds=lambda nbytes: nbytes / 10)


def test_a_search_larger_than_the_room_keeps_what_came_first() -> None:
    shadow = shadow_of()
    assert search(shadow, 1, 2, 3, room=20) == {1, 2, 3}
    assert search(shadow, 1, 2, 3, room=20) == {3}
    assert search(shadow, 3, room=10) == {3}, "less room gives up the oldest"
    assert search(shadow, 2, 3, room=40) == {2}


def test_who_displaced_a_block_hears_of_it() -> None:
    shadow = shadow_of(1, 2, 3)
    first: list[float] = []
    second: list[float] = []
    shadow.displacement(first.append).keys.update({1, 2})
    later = shadow.displacement(second.append)
    later.keys.update({2})
    assert search(shadow, 1, 2, 3, absent=(1, 2)) == set()
    assert (first, second) == ([1.0], [1.0]), "of several the last one"
    assert search(shadow, 1, absent=(1,)) == set()
    assert first == [1.0], "it has been read since"
    later.keys.add(9)
    assert search(shadow, 9, absent=(9,)) == {9}
    assert second == [1.0], "it would have had to be read anyway"


@pytest.mark.parametrize("seed", range(5))
def test_it_is_a_cache_of_its_policy(seed: int) -> None:
    random = np.random.default_rng(seed)
    shadow, twin = shadow_of(), OrderedDict[int, None]()
    for _ in range(300):
        key = int(random.zipf(1.5)) % 20
        assert search(shadow, key, room=50) == (set() if key in twin else {key})
        twin[key] = None
        twin.move_to_end(key)
        if len(twin) > 5:
            twin.popitem(last=False)


def test_it_goes_on_where_the_two_worlds_part() -> None:
    policy = DecayedHotness()
    rig = shadow_of(1, 2, policy=policy)
    for _ in range(3):
        assert search(rig, 1) == set()
    assert search(rig, 3, room=20) == {3}
    assert search(rig, 1, room=20) == set(), "2 has gone, which was used less often"
    assert search(rig, 2, room=20) == {2}
