"""The world without lookahead: the lists that it would have to read, and those that it would still have."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from naive.residency import LeastRecent

from edge.cache.cached_block import DecayedHotness, Policy
from edge.cache.lookahead import DemandShadow


def shadow_of(*held: int, policy: Policy | None = None) -> DemandShadow:
    """One that holds these blocks of ten bytes, the first of them used longest ago."""
    policy = policy or LeastRecent()
    for key in held:
        policy.insert(key)
    return DemandShadow(dict.fromkeys(held, 10), policy)


def search(shadow: DemandShadow, *keys: int, room: int = 40, absent: tuple[int, ...] = ()) -> set[object]:
    return shadow.search(dict.fromkeys(keys, 10), room, absent=absent, seconds=lambda nbytes: nbytes / 10)


def test_it_holds_what_was_used_last() -> None:
    shadow = shadow_of(1, 2)
    assert search(shadow, 2, 3) == {3}
    assert search(shadow, 4) == {4}
    assert search(shadow, 5) == {5}, "and 1 has gone"
    assert search(shadow, 2, 3, 4, 5) == set()
    assert search(shadow, 1) == {1}
    assert search(shadow, 2) == {2}, "it was the oldest of the four"


def test_a_search_larger_than_the_room_keeps_what_came_first() -> None:
    shadow = shadow_of()
    assert search(shadow, 1, 2, 3, room=20) == {1, 2, 3}
    assert search(shadow, 1, 2, 3, room=20) == {3}


def test_less_room_gives_up_the_oldest() -> None:
    shadow = shadow_of()
    search(shadow, 1, 2, 3)
    assert search(shadow, 3, room=10) == set()
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
