"""Shards that are late or gone: another copy answers, or the result is marked, or it is an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from naive.spread import QUERIES, Small, invented, told

from edge.apps.cluster import calling
from edge.apps.cluster.calling import Figures, ShardLost, answered, asked
from edge.apps.cluster.catalogue import Replica
from edge.apps.cluster.command import index
from edge.apps.cluster.places import LocalPlaces
from edge.apps.collection.filters import NoSuchType
from edge.apps.store.lexical import Statistics
from edge.errors import BudgetExceeded, EdgeError, InputError, StorageError, Unreachable


class Faulty:
    """Copies of shards that are gone, or that never answer."""

    def __init__(self, places: LocalPlaces) -> None:
        self.places = places
        self.gone: set[str] = set()
        self.silent: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.headless = False

    def send(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
        self.asked.append((replica.name, verb))
        if replica.name in self.silent:
            return Future()
        if replica.name in self.gone:
            lost: Future[tuple[bytes, bytes]] = Future()
            lost.set_exception(RuntimeError("the actor died\nwith a long trace"))
            return lost
        return self.places.send(replica, verb, head, raw)

    def trouble(self) -> str:
        return "the head is gone" if self.headless else ""

    def close(self) -> None:
        self.places.close()


@pytest.fixture
def faulty(small: Callable[..., Small]) -> Callable[..., tuple[Small, Faulty]]:
    def make(copies: int) -> tuple[Small, Faulty]:
        one = small(3, copies=copies)
        one.add(invented(5, 90))
        one.cluster.publish()
        faults = Faulty(one.places)
        one.cluster.places = faults
        return one, faults

    return make


def test_a_lost_shard_is_an_error_or_a_marked_result(faulty: Callable[..., tuple[Small, Faulty]]) -> None:
    one, faults = faulty(1)
    one.check(QUERIES[:2])
    faults.gone = {"s1"}
    with pytest.raises(ShardLost, match=r"shard s1 does not answer: the actor died$"):
        one.cluster.search("old ice")
    view = one.cluster.view("", partial=True)
    found = view.search("old ice", 20)
    assert view.missing == ("s1",)
    kept = [name for name in one.documents(invented(5, 90)) if name.path in {hit.path for hit in found}]
    assert kept
    shard = one.places._shards[one.replica("s1").folder]
    with shard.collection.database.read() as db:
        lost = {path for (path,) in db.execute("SELECT path FROM files")}
    one.whole.delete(sorted(lost))
    assert [told(hit) for hit in found] == [told(hit) for hit in one.whole.search("old ice", 20)]
    faults.gone = {"s0", "s1", "s2"}
    with pytest.raises(ShardLost):
        one.cluster.view("", partial=True).search("old ice")
    with pytest.raises(ShardLost):
        one.cluster.put(one.documents({"new": "old ice"}))


def test_a_late_shard_is_lost_after_the_patience(faulty: Callable[..., tuple[Small, Faulty]]) -> None:
    one, faults = faulty(1)
    faults.silent = {"s2"}
    one.cluster._patience = 0.2
    with pytest.raises(ShardLost, match=r"no answer after 0\.2 s"):
        one.cluster.search("old ice")
    view = one.cluster.view("", partial=True)
    view._patience = 5.0  # enough for the others on a busy machine
    assert view.search("old ice")
    assert view.missing == ("s2",)


def test_waits_without_a_bound_end_when_nothing_can_be_started(
    faulty: Callable[..., tuple[Small, Faulty]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "_LOOK_S", 0.05)
    one, faults = faulty(1)
    documents = one.documents({"new": "old ice"})
    lost: Future[tuple[bytes, bytes]] = Future()
    lost.set_exception(RuntimeError("the actor died"))
    root = str(one.folder / "files")
    Path(root).mkdir()
    (Path(root) / "a.txt").write_text("old ice")

    def indexed(reader: Future[tuple[bytes, bytes]]) -> object:
        return index(one.cluster, [lambda verb, head, raw: reader], [root], progress=lambda _: None)

    with pytest.raises(Unreachable, match=r"^a reader of files does not answer: the actor died$"):
        indexed(lost)
    faults.headless = True
    for reader in (lost, Future[tuple[bytes, bytes]]()):
        with pytest.raises(Unreachable, match=r"the head is gone$"):
            indexed(reader)
    for fault in ("silent", "gone"):
        setattr(faults, fault, {"s0", "s1", "s2", "s3"})
        for verb in (
            partial(one.cluster.put, documents), partial(one.cluster.remove, ["text-1"]), one.cluster.publish,
            one.cluster.finish, one.cluster.train, one.cluster.states, partial(one.cluster.known, ["text-1"]),
            partial(one.cluster.grow, [one.replica("s3")]), lambda: list(one.cluster.below(root)),
            partial(indexed, lost),
        ):  # fmt: skip
            with pytest.raises(Unreachable, match=r"the head is gone$"):
                verb()


@pytest.mark.parametrize("fault", ["gone", "silent"])
def test_another_copy_answers(faulty: Callable[..., tuple[Small, Faulty]], fault: str) -> None:
    one, faults = faulty(2)
    for lost in ({"s0", "s1/1"}, {"s0/1", "s1", "s2/1"}):
        setattr(faults, fault, lost)
        one.check(QUERIES)


def test_known_statistics_save_a_trip(faulty: Callable[..., tuple[Small, Faulty]]) -> None:
    one, faults = faulty(1)
    for trips in (2, 1):
        faults.asked.clear()
        one.cluster.search("old ice", 5)
        assert len(faults.asked) == 3 * trips
    one.cluster.publish()
    faults.asked.clear()
    one.cluster.search("old ice", 5)
    assert len(faults.asked) == 3 * 2


def test_figures_are_of_all_terms_or_none() -> None:
    figures = Figures()
    assert figures.of([]) is None
    figures.add(Statistics(3, 9, {"a": 1}))
    assert figures.of(["a"]) == Statistics(3, 9, {"a": 1})
    assert figures.of(["a", "b"]) is None
    threads = [threading.Thread(target=figures.add, args=(Statistics(3, 9, {str(n): n}),)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert figures.of(["a", *map(str, range(50))]) is not None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InputError("wrong"), InputError),
        (NoSuchType("no type"), NoSuchType),
        (BudgetExceeded("too small", owner="x", asked=1, free=0, needed=2), StorageError),
    ],
)
def test_errors_keep_their_kind_and_words(error: EdgeError, kind: type[EdgeError]) -> None:
    def refuse(raw: bytes) -> tuple[None, bytes]:
        raise error

    with pytest.raises(kind, match=str(error)) as told:
        asked(lambda verb, head, raw: answered(refuse, head, raw), "any")
    assert type(told.value) is kind
