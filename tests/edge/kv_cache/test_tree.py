"""The knowledge tree: the answer never depends on the cache, and the states that deserve it are cached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive.knowledge import Rig, segment
from naive.kv import CELL, FakeContext, chained, composed
from naive.policies import LRU

from edge.kv_cache.backend import LearnedCosts, StateSegment
from edge.kv_cache.prefix_tree import Node
from edge.kv_cache.store import StoredState
from edge.kv_cache.tree import AGAIN, AGAIN_BEST

SYSTEM = segment("system", 10)
A, B, C, D = (segment(name, 20) for name in "abcd")


def test_a_request_finds_what_earlier_ones_left() -> None:
    rig = Rig()
    assert rig.ask([SYSTEM, A, B]) == ["nowhere"] * 3
    assert rig.ask([SYSTEM, A, B]) == ["context"] * 3
    assert rig.ask([SYSTEM, A, C]) == ["context", "context", "nowhere"]
    assert rig.ask([SYSTEM, B, A]) == ["context", "nowhere", "nowhere"], "another order is another state"
    assert rig.ask([SYSTEM, A, B]) == ["context", "host", "host"]
    assert rig.backend.prefilled == 10 + 5 * 20 + 5 * 2
    assert rig.count("context_hits") == 3 + 2 + 1 + 1
    assert rig.count("host_hits") == 2
    assert rig.count("misses") == 3 + 1 + 2
    assert rig.count("cached_tokens") == 50 + 30 + 10 + 50
    assert rig.count("computed_tokens") == 50 + 20 + 40
    rig = Rig()
    rig.ask([SYSTEM, A])
    assert rig.ask([SYSTEM, StateSegment("moved/a.txt", A.tokens)]) == ["context", "context"], "the tokens decide"
    assert rig.ask([SYSTEM, StateSegment(A.id, (*A.tokens[:-1], A.tokens[-1] + 1))]) == ["context", "nowhere"]
    assert rig.ask([SYSTEM, A]) == ["context", "host"], "the other version is still there"


def test_a_state_is_copied_once(tmp_path: Path) -> None:
    """First eviction copies to the slower tier; the next ones free."""
    rig = Rig(host=CELL * 50, disk=10**6, folder=tmp_path)
    for _ in range(4):
        rig.ask([SYSTEM, A, B])
        rig.ask([SYSTEM, C, D])
    assert rig.count("saved") == 4, "a, b, c and d have each been to the disk once"
    assert rig.count("host_evictions") > 8
    assert rig.count("misses") == 5


def test_stored_states_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of named documents, likeliest first, whatever the system prompt; and those of a path behind its first."""
    rig = Rig(disk=10**6, folder=tmp_path)
    for path in ([SYSTEM, A, B], [SYSTEM, B], [SYSTEM, B, C], [segment("other", 12), D, A], [SYSTEM, C, A]):
        rig.ask(path)
    rig.tree.close()
    rig = Rig(disk=10**6, folder=tmp_path)
    announced: list[Path] = []
    monkeypatch.setattr(rig.store, "announce", lambda stored: announced.append(stored.path))
    names = {stored.path: _path(node) for node, stored in _stored(rig)}

    def read_ahead(*ids: str) -> list[str]:
        announced.clear()
        rig.tree.read_ahead(ids)
        return [names[path] for path in announced]

    assert read_ahead() == []
    assert read_ahead("b") == ["system/b"]
    assert read_ahead("b", "a") == ["system/b", "system/a", "system/a/b"]
    assert read_ahead("a", "d", "x") == ["system/a", "other/d", "other/d/a"]
    rig.check()
    announced.clear()
    assert rig.ask([SYSTEM, A, B]) == ["disk"] * 3
    assert [names[path] for path in announced] == ["system/a", "system/a/b"]
    assert read_ahead("b", "a") == ["system/b"], "the others are in memory"
    assert rig.tree._states.disk.loss() < 1
    rig.check()
    rig.tree.close()
    rig.tree.read_ahead(["a"])
    again = Rig(disk=10**6, folder=tmp_path)
    for path in again.store.directory.iterdir():  # type: ignore[union-attr]
        path.unlink()
    again.tree.read_ahead(["a"])
    assert again.ask([SYSTEM, A]) == ["nowhere"] * 2, "what is gone is not read ahead"


def test_popularity_survives_a_restart(tmp_path: Path) -> None:
    """Every run answers one question, as a command does; the states that most of them asked for stay."""
    room = 3 * (CELL * 20 + 600)
    for number in range(12):
        rig = Rig(disk=room, folder=tmp_path)
        rig.ask([A] if number % 2 else [segment(f"once{number}", 20)])
        rig.check()
        rig.tree.close()
    rig = Rig(disk=room, folder=tmp_path)
    assert rig.tree.match([A]).disk == 20
    assert max(node.usage.frequency for node in rig.nodes()) == 6


def test_restoring_is_not_counted_as_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state is ranked by the time to compute it, even if another state of its path came from a slow disk."""
    rig = Rig(host=CELL * 200)
    rig.ask([SYSTEM, A])
    rig.ask([B])  # leaves the context
    restore = rig.backend.restore

    def slowly(*args: Any) -> None:
        rig.backend.clock += 1000.0
        restore(*args)

    monkeypatch.setattr(rig.backend, "restore", slowly)
    before = rig.backend.clock
    with rig.tree.prepare([SYSTEM, A, C]) as prepared:
        assert (prepared.restored_tokens, prepared.cached_tokens, prepared.computed_tokens) == (30, 30, 20)
        assert prepared.restore_s == pytest.approx(2000.0)
        assert prepared.compute_s == pytest.approx(rig.backend.clock - before - 2000.0)
    cost = next(node.usage.cost for node in rig.nodes() if node.id == "c")
    assert cost == pytest.approx(prepared.compute_s / 20)
    with rig.tree.prepare([SYSTEM, A, C]) as prepared:
        assert (prepared.restored_tokens, prepared.cached_tokens) == (0, 50), "it is in context"


def test_costs_learn_from_every_prefill_that_was_not_interrupted() -> None:
    costs = LearnedCosts("fake")
    rig = Rig(host=CELL * 200, costs=costs)
    rig.ask([SYSTEM, A])
    rig.ask([SYSTEM, B])
    rig.ask([C, A, B])
    context = FakeContext()
    context.prefill(range(200))
    before = context.clock
    context.prefill(range(100))
    assert costs.estimate(200, 100) == pytest.approx(context.clock - before, rel=0.02)
    assert next(node for node in rig.nodes() if node.id == "c").usage.cost == pytest.approx(1.0, rel=0.5)


def test_memory_is_given_back_when_others_need_it(tmp_path: Path) -> None:
    rig = Rig(limit=20_000, host=2_000, disk=10**6, folder=tmp_path)
    rig.ask([SYSTEM, A, B, C])
    held = rig.host_nbytes
    assert held == CELL * 70
    lease = rig.budget.reserve("other", rig.budget.free + CELL * 25)
    rig.check()
    assert rig.host_nbytes <= held - CELL * 25
    assert rig.count("dropped") == 2
    rig.ask([SYSTEM, A, B, C])
    lease.release()
    rig.ask([SYSTEM, A, B, C])
    rig.check()


def test_the_most_valuable_is_saved_first(tmp_path: Path) -> None:
    rig = Rig(disk=CELL * 20 + 500, folder=tmp_path)
    for document in (B, A, A, A, C):
        rig.ask([document])
    rig.tree.close()
    assert rig.count("saved") == 1, "what would be evicted at once is not written"
    assert Rig(disk=10**6, folder=tmp_path).held()[1] == {"a"}


@pytest.mark.parametrize("between", [(), (A, B, A, B, A, B)], ids=["the least valuable is saved first", "recency"])
def test_ranks_survive_a_restart(tmp_path: Path, between: tuple[StateSegment, ...]) -> None:
    room = 2 * (CELL * 20 + 300)
    for documents in filter(None, ((A, B), between, (C,))):
        rig = Rig(disk=room, folder=tmp_path, policy=LRU)
        for document in documents:
            rig.ask([document])
        rig.tree.close()
    assert Rig(disk=room, folder=tmp_path, policy=LRU).held()[1] == {"b", "c"}


def test_what_is_remembered_of_the_past_gives_way_last(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(limit=30_000, host=CELL * 40)
    for number in range(8):
        rig.ask([segment(f"once{number}", 20)])
    past = rig.tree._states._tree._past
    assert len(past) == 6
    with rig.budget.reserve("other", rig.budget.free + CELL * 20):
        assert len(past) == 7, "a state went, and is remembered"
    with rig.budget.reserve("other", rig.budget.free + 1_000):
        assert rig.host_nbytes == 0
        assert len(past) < 7
        rig.check()
    monkeypatch.setattr("edge.kv_cache.prefix_tree._REMEMBERED", 3)
    bounded = Rig(host=0)
    for number in range(9):
        bounded.ask([segment(f"once{number}", 20)])
        bounded.check()
    assert len(bounded.tree._states._tree._past) == 3


@pytest.mark.parametrize(("limit", "options", "documents"), [(6_000, {}, 4), (5_000, {"host": 0}, 30)])
def test_the_tree_asks_nobody_to_give_way_for_states_or_its_index(
    limit: int, options: dict[str, int], documents: int
) -> None:
    rig = Rig(limit=limit, **options)
    asked: list[int] = []
    rig.budget.add_shrinker("window", asked.append, loss=0.0)
    for number in range(documents):
        rig.ask([SYSTEM, segment(f"once{number}", 20)])
        rig.check()
    assert not asked


def test_a_state_there_is_no_memory_to_read_into_is_computed(tmp_path: Path) -> None:
    rig = Rig(limit=10_000, host=0, disk=10**6, folder=tmp_path)
    rig.ask([A])
    rig.ask([B])
    assert rig.tree.match([A]).disk == 20
    with rig.budget.reserve("other", rig.budget.free - CELL * 20 + 1):
        assert rig.ask([A]) == ["nowhere"]
    assert rig.count("unread") == 1
    assert rig.count("corrupt") == 0
    assert rig.ask([B]) == ["disk"]


def _stored(rig: Rig) -> list[tuple[Node, StoredState]]:
    tier = rig.tree._states.disk.tier
    return [(node, tier[node]) for node in tier]


def _path(node: Node) -> str:
    return "/".join(above.id for above in node.path())


def document(name: str, number: int) -> StateSegment:
    """A document that begins with its number, in tokens of which there are more for a number of two digits."""
    body = segment(name, 20 + len(name) * 7).tokens
    return StateSegment(name, (*map(ord, str(number)), *body), (ord("1"), *body))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_documents_states_are_moved_to_any_place(data: st.DataObject) -> None:
    """The context holds what the plain rules say, whether states come from other places or from the same prompt, and
    every state that is kept is that of its path."""
    names = ["a", "b", "cc", "dddddddddd"]
    begin = data.draw(st.sampled_from([[SYSTEM], [], [SYSTEM, A]]))
    whole = data.draw(st.booleans())
    rig = Rig(anywhere=True, host=data.draw(st.sampled_from([10**6, CELL * 60, CELL * 90])))
    expected: dict[bytes, bytes] = {}
    for _ in range(data.draw(st.integers(1, 5))):
        order = data.draw(st.permutations(names))[: data.draw(st.integers(1, 4))]
        first = data.draw(st.sampled_from([1, 9]))
        path = [*begin, *(document(name, number) for number, name in enumerate(order, first))]
        if whole:  # number 1 comes last and is computed whole at first, as in prompts
            last = reversed(path[len(begin) :])
            path[len(begin) :] = [replace(one, whole=one.tokens == one.home) for one in last]
        total = sum(len(part.tokens) for part in path)
        found = rig.tree.match(path)
        assert found.cached + found.missing == total
        assert min(found.context, found.host, found.disk, found.missing) >= 0
        with rig.tree.prepare(path) as prepared:
            moved = [replace(one, whole=one.whole and place not in prepared.homes) for place, one in enumerate(path)]
            assert prepared.complete
            assert prepared.cached_tokens + prepared.computed_tokens == total == rig.backend.length
            if rig.tree._states.host.limit == 10**6:
                # What was moved to a context may leave it, and is moved there again.
                assert prepared.computed_tokens <= found.missing + (AGAIN_BEST + 1) * len(order)
                assert rig.backend.cells == composed(moved, AGAIN, AGAIN_BEST)
                assert all(node.usage.frequency for node in rig.tree._states.host), "what is used has a rank"
        cells, tokens = composed(moved, AGAIN, AGAIN_BEST), b""
        for part in path:
            tokens += np.asarray(part.tokens, np.int32).tobytes()
            start, end = len(tokens) // 4 - len(part.tokens), len(tokens) // 4
            expected[tokens] = b"".join(cells[start:end])
        for node in rig.tree._states.host:
            tokens = b"".join(part.tokens for part in node.path())
            exact = b"".join(chained(np.frombuffer(tokens, np.int32).tolist())[node.start :])
            if not node.composed:
                assert rig.tree._states.host[node] == exact
            elif rig.tree._states.host.limit == 10**6:  # a document that found no room behind the beginning is computed
                assert rig.tree._states.host[node] == expected[tokens]
        rig.check()


def test_a_document_no_longer_than_what_is_computed_again_is_computed_once() -> None:
    rig = Rig(anywhere=True)
    tokens = segment("short", AGAIN_BEST).tokens
    with rig.tree.prepare([SYSTEM, document("a", 2), StateSegment("short", tokens, tokens)]):
        pass
    held = [(node.id, node.composed) for node in rig.tree._states.host]
    assert held.count(("short", True)) == 1
    assert ("short", False) not in held


def test_a_prompt_that_comes_again_is_restored_whole_and_not_from_disk(tmp_path: Path) -> None:
    rig = Rig(anywhere=True, disk=10**6, folder=tmp_path)
    last = segment("last", 30)
    prompt = [SYSTEM, document("a", 2), document("b", 3), last]
    for path, place in ((prompt, "nowhere"), ([SYSTEM, C], "nowhere"), (prompt, "host")):
        with rig.tree.prepare(path) as prepared:
            assert {*prepared.places[1:]} == {place}
    rig.tree.close()
    rig = Rig(anywhere=True, disk=10**6, folder=tmp_path)
    with rig.tree.prepare(prompt) as prepared:
        assert prepared.places == ["disk", "moved", "moved", "nowhere"]


@pytest.mark.parametrize(("disk", "behind"), [(0, False), (10**6, False), (10**6, True)])
def test_states_of_a_prompt_take_only_room_that_documents_leave(disk: int, behind: bool, tmp_path: Path) -> None:
    """Those of documents evict them, and never the other way round."""
    rig = Rig(anywhere=True, host=CELL * 100, disk=disk, folder=tmp_path if disk else None, behind=behind)
    with rig.tree.prepare([SYSTEM, document("a", 2), document("b", 3)]):
        pass
    rig.check()
    assert sum(node.composed for node in rig.tree._states.host) == 1, "two documents of 28 leave room for one"
    kept = {node for node in rig.tree._states.host if not node.composed}
    with rig.tree.prepare([SYSTEM, document("c", 2)]):
        pass
    rig.check()
    assert kept < set(rig.tree._states.host)
    assert not any(node.composed for node in [*rig.tree._states.host, *rig.tree._states.disk.tier])
