"""What a lookahead asks a residency for, in which order, and when it gives up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from edge.blocks import BlockId, Extent
from edge.lanes import Lane
from edge.lookahead import Lookahead, MissCurve, Predicted, bytes_to_fetch


class Room:
    """A residency that refuses some groups and remembers what it was asked."""

    nbytes, room = 0, 10**6

    def __init__(self, refused: Iterable[int] = ()) -> None:
        self.refused = set(refused)
        self.resident: set[object] = set()
        self.asked: list[int] = []
        self.displaced: list[bool] = []
        self.guarded: list[bool] = []

    def ages(self) -> dict[object, int]:
        return {}

    def absent(self, keys: Iterable[object]) -> list[object]:
        return [key for key in keys if key not in self.resident]

    def prefetch(
        self, owner: object, blocks: Any, limit: int, displaces: Callable[[int], bool], guard: object
    ) -> int | None:
        number = blocks[0][0][1]
        self.guarded.append(bool(guard))
        self.asked.append(number)
        self.displaced.append(displaces(3))
        return None if number in self.refused else 1

    def withdraw(self, keys: Iterable[object]) -> None: ...

    def unguard(self, owner: object, keys: Iterable[object]) -> None: ...

    def discard(self, keys: Iterable[object]) -> None: ...


class OneBlock:
    """A file that holds one byte."""

    def __init__(self, block: BlockId) -> None:
        self.extents = {block: Extent(0, 1, 0)}

    def announce(self, ranges: object) -> None: ...


def group_of(number: int) -> list[Predicted]:
    """What is predicted together: one block."""
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
            window.search_needs([("file", number) for number in needed])
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


class EvenWorth:
    """Every place is worth as much as what was last used three searches ago."""

    def __init__(self) -> None:
        self.places: dict[object, int] = {}
        self.observed: list[set[object]] = []

    def of_place(self, place: int) -> float:
        return 0.5

    def of_age(self, age: int) -> float:
        return 0.5 if age == 3 else 0.1

    def before(self, age: int, oldest: int) -> float:
        return self.of_age(age)

    def observe(self, places: Mapping[object, int], ages: object, needed: Iterable[object]) -> None:
        self.places = dict(places)
        self.observed.append(set(needed))


def test_what_is_as_likely_to_be_needed_is_not_displaced() -> None:
    room = Room()
    looked_ahead(room, [group_of(0)], worth=EvenWorth())
    assert room.displaced == [False]


class FixedWorth(EvenWorth):
    """Places are needed with one probability, what is in memory at once with another."""

    def __init__(self, place: float, age: float) -> None:
        super().__init__()
        self.place, self.age = place, age

    def of_place(self, place: int) -> float:
        return self.place

    def of_age(self, age: int) -> float:
        return self.age


@pytest.mark.parametrize(("place", "age", "displaces"), [(0.4, 0.1, False), (0.6, 0.1, True), (0.6, 0.7, False)])
def test_what_was_used_gives_way_to_what_is_needed_more_likely_than_not(
    place: float, age: float, displaces: bool
) -> None:
    room = Room()
    looked_ahead(room, [group_of(0)], worth=FixedWorth(place, age))
    assert room.displaced == [displaces]


@pytest.mark.parametrize(
    ("place", "age", "held", "asked"),
    [(0.05, 0.0, 0, [0]), (0.05, 0.0, 10**6 - 1500, []), (0.2, 0.0, 10**6 - 1500, [0]), (0.2, 0.3, 10**6 - 1500, [])],
)
def test_where_room_is_short_a_prediction_must_be_worth_it(
    place: float, age: float, held: int, asked: list[int]
) -> None:
    """The window may fetch 1,000 bytes, and its search needs as many."""
    room = Room()
    room.nbytes = held
    looked_ahead(room, [group_of(0)], worth=FixedWorth(place, age))
    assert room.asked == asked


@pytest.mark.parametrize("resident", [False, True])
def test_a_place_that_is_seldom_needed_is_not_kept_from_what_the_search_reads(resident: bool) -> None:
    """Neither fetched blocks nor those that are there: else a wrong prediction would guard the whole cache."""
    room = Room()
    room.resident = {("file", 0)} if resident else set()
    looked_ahead(room, [group_of(0)], worth=FixedWorth(0.1, 0.2))
    looked_ahead(room, [group_of(0)], worth=FixedWorth(0.3, 0.2))
    assert room.guarded == [False, True]


def test_a_block_of_two_predictions_has_its_best_place() -> None:
    worth = EvenWorth()
    predictions = [group_of(7), group_of(1)], [group_of(2), group_of(7), group_of(3)]
    looked_ahead(Room(), *predictions, worth=worth, needs=[[]])
    assert worth.places == {("file", 7): 0, ("file", 2): 0, ("file", 1): 1, ("file", 3): 2}


def test_only_absent_blocks_tell_what_fetching_is_good_for() -> None:
    """The nearest list is in memory and needed; the next one was neither."""
    worth = EvenWorth()
    room = Room()
    room.resident = {("file", 0)}
    looked_ahead(room, [group_of(0), group_of(1)], worth=worth, needs=[[0]])
    assert worth.places == {("file", 1): 1}


def test_a_batch_is_compared_with_what_all_its_searches_needed() -> None:
    """Four queries, predicted together and searched one by one: a perfect prediction is learned as one."""
    worth, curve = EvenWorth(), MissCurve()
    orders = [[group_of(number)] for number in range(4)]
    looked_ahead(Room(), *orders, worth=worth, misses=curve, needs=[[0], [1], [2], [3, 0]])
    assert worth.observed == [{("file", number) for number in range(4)}]
    assert curve.points()[-1] == (4.0, 0.0)


def test_a_prediction_that_no_search_came_to_teaches_nothing() -> None:
    worth, curve = EvenWorth(), MissCurve()
    looked_ahead(Room(), [group_of(0)], worth=worth, misses=curve)
    assert worth.observed == []
    assert curve.points() == []


def test_the_curve_forgets_the_oldest() -> None:
    curve = MissCurve()
    curve.observe([1.0] * 4096)
    curve.observe([2.0] * 4096)
    assert curve.points()[1][0] == 2.0


def test_a_step_at_the_windows_very_end_is_reached() -> None:
    assert bytes_to_fetch(100, 1.0, [(0, 1.0), (100, 0.0), (150, 0.0)], 5.0) == 100
