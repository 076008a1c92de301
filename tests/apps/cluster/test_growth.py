"""The assignment of folders to shards, their indexing and their growth."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.program import output_of
from naive.spread import QUERIES, Small, invented, told

from edge.apps.cluster.calling import Assignment, ShardDocument
from edge.apps.cluster.catalogue import Replica, home
from edge.apps.cluster.command import index
from edge.apps.cluster.places import LocalPlaces
from edge.apps.cluster.shard import put, stored
from edge.apps.collection.catalog import Catalog
from edge.errors import InputError
from edge.ivf.base import CodecSpec, Quantizer


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
            seen.append([told(hit) for hit in reader.search(query, 20, rerank=False)] == expected[query])

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
    assert [told(hit) for hit in one.cluster.search("old ice", 20)] == expected
    assert one.cluster.known(names) == {
        name: [0, 0, None, None, 0, one.documents({name: texts[name]})[0].hash.hex()] for name in names[3:]
    }
    assert one.cluster.publish() > first
    one.check()
    with pytest.raises(InputError, match="named once"):
        one.cluster.create([one.replica("s9")])


def test_a_shard_that_was_restarted_goes_on_with_its_version(small: Callable[..., Small]) -> None:
    one = small(2)
    one.add(invented(1, 60))
    one.cluster.publish()
    one.places.close()
    one.cluster.places = one.places = LocalPlaces(config=one.config)
    one.check()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    for number, (name, text) in enumerate(invented(7, 90).items()):
        path = folder / f"{number % 4}" / f"{name}.{'md' if number % 3 else 'txt'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n\n{text}\n")
        os.utime(path, (10**9, 10**9))
    (folder / "empty.txt").touch()
    (folder / "broken.docx").write_bytes(b"PK\x03\x04 no archive")
    return folder


def quiet(_: Any) -> None:
    pass


def test_shards_are_filled_as_one_collection_would_be(small: Callable[..., Small], files: Path) -> None:
    one = small(3)
    readers = one.places.readers(0)
    report = one.whole.index(files)
    done = index(one.cluster, readers, [str(files)], progress=quiet)
    assert done.counts["indexed"] == report.indexed == 90
    assert done.passages == report.chunks
    assert [Path(path).name for path, _ in done.failed] == ["broken.docx"]
    one.check(rerank=False)
    one.check(QUERIES[:1])
    one.check(QUERIES[:2], where="type:markdown", rerank=False)

    again = index(one.cluster, readers, [str(files)], progress=quiet)
    assert (again.counts["unchanged"], again.counts["indexed"], again.passages) == (90, 0, 0)
    changed, gone, *_ = sorted((files / "1").iterdir())
    changed.write_text("# changed\n\nold ice in spring, blue ice\n")
    gone.unlink()
    done = index(one.cluster, readers, [str(files)], progress=quiet)
    assert (done.counts["indexed"], done.counts["removed"], done.counts["unchanged"]) == (1, 1, 88)
    one.whole.index(files)
    one.check(rerank=False)
    with pytest.raises(InputError, match="does not exist"):
        index(one.cluster, readers, [str(files / "nowhere")], progress=quiet)


def test_files_below_a_folder_that_is_not_read_stay(small: Callable[..., Small], files: Path) -> None:
    one = small(2)
    readers = one.places.readers(0)
    index(one.cluster, readers, [str(files)], progress=quiet)
    (files / "2" / ".gitignore").write_text("*.md\n" * 14_000)
    done = index(one.cluster, readers, [str(files)], progress=quiet)
    assert (done.counts["removed"], done.counts["indexed"]) == (0, 0)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_killed_run_goes_on(small: Callable[..., Small], files: Path, groups: int) -> None:
    one = small(2)

    def killed(done: Any) -> None:
        if done.counts["indexed"] >= 32 * groups:
            raise Killed

    with pytest.raises(Killed):
        index(one.cluster, one.places.readers(0), [str(files)], progress=killed)
    asked: list[str] = []

    def counted(reader: Any) -> Any:
        def send(verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
            asked.append(verb)
            return reader(verb, head, raw)  # type: ignore[no-any-return]

        return send

    done = index(one.cluster, [counted(reader) for reader in one.places.readers(0)], [str(files)], progress=quiet)
    assert done.counts["unchanged"] >= 32 * groups
    assert done.counts["unchanged"] + done.counts["indexed"] == 90
    assert len(asked) <= 3 - groups + 1
    one.whole.index(files)
    assert [told(hit) for hit in one.cluster.search("old ice", 20)] == [
        told(hit) for hit in one.whole.search("old ice", 20)
    ]


def test_the_command_fills_shards(home: Path, files: Path) -> None:
    from edge.apps.cli import edge

    there = ("-c", str(home / "all"), "--cluster", "here")
    output_of(edge, "cluster", "create", *there, "--shard", f"a={home / 'a'}", "--shard", f"b={home / 'b'}")
    assert output_of(edge, "index", *there, str(files)).startswith("1 failed, 90 indexed")
    assert "90 unchanged" in output_of(edge, "index", *there, str(files))
    for words in (["--watch", "--cluster", "here", str(files)], ["--readers", "2", str(files)], there):
        with pytest.raises(InputError, match="--cluster"):
            output_of(edge, "index", *words)


@pytest.mark.parametrize(("shards", "lists"), [(1, "lists"), (2, "flat"), (4, "lists"), (8, "flat")])
def test_shards_are_searched_as_one_collection_would_be(small: Callable[..., Small], shards: int, lists: str) -> None:
    one = small(shards, lists=lists == "lists")
    texts = invented(shards, 220)
    names = list(texts)
    one.add({name: texts[name] for name in names[:150]})
    one.cluster.finish()
    assert (one.share() > 1) == (lists == "lists")
    one.add({name: texts[name] for name in names[150:]})
    one.remove(names[3:120:13])
    one.cluster.publish()
    one.check(rerank=False)
    one.check(rerank=True)
    if lists == "flat":
        one.check(where="type:text", rerank=False)


def kept(one: Small) -> dict[str, str | None]:
    """The words of all documents, each of which is in one shard. The collection beside the shards gets them, too."""
    documents: list[ShardDocument] = []
    for replica in one.cluster.catalogue.replicas():
        one.places.send(replica, "state", b"{}", b"").result()
        shard = one.places._shards[replica.folder].collection
        with shard.database.read() as db:
            paths = [path for (path,) in db.execute("SELECT path FROM files")]
            documents += stored(db, Catalog(), shard.vectors, paths)
    with one.whole.database.write() as db:
        assert one.whole.vectors is not None
        put(db, Catalog(), one.whole.vectors, documents)
    found = {each.path: " ".join(" ".join(chunk.text for chunk in each.chunks).split()) for each in documents}
    assert len(found) == len(documents)
    one.whole.delete([file.path for file in one.whole.files() if file.path not in found])
    one.share()
    return found


def test_an_end_before_any_request_leaves_each_document_once_and_whole(small: Callable[..., Small]) -> None:
    """What was acknowledged is there, what was under way is there or not, and one collection of it finds the same."""
    one = small(2, lists=True)
    one.add(invented(3, 80))
    one.cluster.finish()
    now, counting, finished = kept(one), threading.Lock(), False
    names = sorted(now)
    for requests in itertools.count():
        left = iter(range(requests))

        def before(replica: Replica, verb: str, left: Iterator[int] = left) -> None:
            with counting:  # shards are asked in parallel
                if next(left, None) is None:
                    raise Killed

        allowed = {name: {now.get(name)} for name in names}
        changed, gone = dict(zip(names, invented(9 + requests, 20).values(), strict=False)), names[18:23]
        one.cluster.places = Watched(one.places, before)
        with contextlib.suppress(Killed):
            for work, given, then in (
                (one.cluster.put, one.documents(changed), {name: " ".join(changed[name].split()) for name in changed}),
                (one.cluster.remove, gone, dict.fromkeys(gone)),
            ):
                for name, words in then.items():
                    allowed[name].add(words)
                work(given)
                allowed |= {name: {words} for name, words in then.items()}
            one.cluster.finish()
            finished = True
        one.cluster.close()
        one.places.close()
        one.places = LocalPlaces(config=one.config)
        one.cluster = one.opened()
        assert one.cluster.search("old ice", rerank=False)  # the first search publishes what was left
        with one.cluster.writing():
            one.cluster.finish()
        now = kept(one)
        assert {name: versions for name, versions in allowed.items() if now.get(name) not in versions} == {}
        one.check(QUERIES[requests % 5 :][:1], rerank=False)
        if finished:
            break
    assert requests > 10, requests


ONE, TWO = (Replica("s", number, "", str(number), 0) for number in (0, 1))


def about(*lists: int) -> bytes:
    """The vectors of queries of which each probes one of 16 lists."""
    return np.eye(16, dtype=np.float32)[list(lists)].tobytes()


def assigned(*lists: int) -> Future[tuple[bytes, bytes]]:
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
        ended(assigned(3, 5, 6))
        assert chosen is ONE
    chosen, ended = one.take([TWO, ONE], about(6))
    assert chosen is ONE  # as it has told


def test_work_goes_to_the_copy_that_has_less(one: Assignment) -> None:
    _, ended = one.take([ONE], about(1))
    ended(assigned(*range(8)))
    chosen = [one.take([ONE, TWO], about(2))[0] for _ in range(4)]
    assert chosen.count(TWO) == 2  # one must read the list, and then has it
    assert chosen[0] is ONE


def test_a_copy_that_fails_holds_nothing(one: Assignment) -> None:
    _, ended = one.take([ONE], about(1))
    ended(assigned(1, 2))
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
