"""A further shard takes its share of the documents. Searches see one version meanwhile, and a kill loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from naive.spread import QUERIES, Small, invented, told

from edge.apps.cluster.calling import LocalPlaces
from edge.apps.cluster.catalogue import Replica, home
from edge.errors import InputError


class Killed(BaseException):
    pass


class Watched:
    """Calls a function before each request, which may raise."""

    def __init__(self, places: Any, before: Callable[[Replica, str], None]) -> None:
        self.places, self.before = places, before

    def send(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
        self.before(replica, verb)
        return self.places.send(replica, verb, head, raw)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.places.close()


def held(one: Small) -> dict[str, set[str]]:
    """The documents of each copy of a shard."""
    found: dict[str, set[str]] = {}
    for replica in one.cluster.catalogue.replicas():
        one.places.send(replica, "state", b"{}", b"").result()
        shard = one.places._shards[replica.folder]
        with shard.collection.database.read() as db:
            found[replica.name] = {path for (path,) in db.execute("SELECT path FROM files")}
    return found


def test_a_third_shard_takes_a_third_and_nothing_else_moves(small: Callable[..., Small]) -> None:
    one = small(2, copies=2)
    texts = invented(3, 300)
    one.add(texts)
    one.cluster.finish()
    before = held(one)
    assert before["s0"] == before["s0/1"]
    moved = one.cluster.grow([one.replica("s2"), one.replica("s2", 1)])
    after = held(one)
    assert abs(moved / len(texts) - 1 / 3) < 0.08  # of 300; six standard deviations are 0.16
    assert after["s2"] == after["s2/1"] == set(texts) - after["s0"] - after["s1"]
    assert len(after["s2"]) == moved
    assert after["s0"] < before["s0"]
    assert after["s1"] < before["s1"]
    one.check(rerank=False)
    with pytest.raises(InputError, match="already"):
        one.cluster.grow([one.replica("s2")])


def test_of_many_documents_a_third_moves() -> None:
    paths = [f"/folder/{number}.txt" for number in range(20_000)]
    moved = [path for path in paths if home(path, ["a", "b"]) != home(path, ["a", "b", "c"])]
    assert abs(len(moved) / len(paths) - 1 / 3) < 0.02
    assert {home(path, ["a", "b", "c"]) for path in moved} == {"c"}


@pytest.mark.parametrize("at", [1, 4, 6, 8, 10, 12])
def test_searches_see_one_version_and_a_kill_loses_nothing(small: Callable[..., Small], at: int) -> None:
    """The growth is ended before its request `at`, and every request before is followed by searches."""
    one = small(2)
    one.add(invented(3, 120))
    one.cluster.finish()
    expected = {query: [told(hit) for hit in one.whole.search(query, 20, rerank=False)] for query in QUERIES}
    reader = one.opened()
    requests, counting, seen = 0, threading.Lock(), list[bool]()

    def before(replica: Replica, verb: str) -> None:
        nonlocal requests
        if verb in ("put", "leaving", "remove", "publish", "maintain", "configure", "install"):
            with counting:  # shards are asked in parallel
                requests += 1
                number = requests
            if number >= at:
                raise Killed
            query = QUERIES[number % len(QUERIES)]
            seen.append([told(hit) for hit in reader.search(query, 20, rerank=False).hits] == expected[query])

    one.cluster.places = Watched(one.places, before)
    with pytest.raises(Killed):
        one.cluster.grow([one.replica("s2")])
    assert all(seen)
    one.cluster.close()
    one.cluster = one.opened()
    one.check(rerank=False)
    with one.cluster.writing():
        pass
    if one.cluster.catalogue.shards().get("s2") is None:
        one.cluster.grow([one.replica("s2")])
    one.check(rerank=False)
    documents = held(one)
    assert sum(map(len, documents.values())) == 120
    assert len(documents["s2"]) > 20
    reader.close()


def test_writes_are_seen_in_the_next_version(small: Callable[..., Small]) -> None:
    one = small(2)
    texts = invented(1, 60)
    names = list(texts)
    one.add({name: texts[name] for name in names[:40]})
    first = one.cluster.publish()
    expected = [told(hit) for hit in one.whole.search("old ice", 20)]
    one.add({name: texts[name] for name in names[40:]})
    one.remove(names[:3])
    found = one.cluster.search("old ice", 20)
    assert (found.version, [told(hit) for hit in found.hits]) == (first, expected)
    assert one.cluster.known(names) == {
        name: [0, 0, None, None, 0, one.documents({name: texts[name]})[0].hash.hex()] for name in names[3:]
    }
    second = one.cluster.publish()
    one.check()
    assert one.cluster.search("old ice").version == second > first
    with pytest.raises(InputError, match="named once"):
        one.cluster.create([one.replica("s9")])


def test_a_shard_that_was_restarted_goes_on_with_its_version(small: Callable[..., Small]) -> None:
    one = small(2)
    one.add(invented(1, 60))
    one.cluster.publish()
    one.places.close()
    one.cluster.places = one.places = LocalPlaces(config=one.config)
    one.check()
