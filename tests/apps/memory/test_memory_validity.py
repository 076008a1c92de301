"""What holds, what took whose place, what a new statement ends, and twins."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.apps.memory import searching, writing
from edge.apps.memory.arguments import Scope
from edge.apps.memory.memory import Memory
from edge.apps.memory.records import read_records
from edge.apps.memory.searching import POOL
from edge.apps.memory.validity import ENDS, ORDERS, Judge, time_asked
from edge.apps.memory.writing import MOST_LINKS
from edge.errors import CorruptBlock, InputError
from edge.models.statements import FILE, StatementModel
from tests.apps.memory.conftest import Make, add


def texts(result: dict[str, Any]) -> set[str]:
    return {found["memory"] for found in result["results"]}


def homes(memory: Memory) -> list[str]:
    """Three homes, each with the one after it in its place: since January, May 2025 and January 2026."""
    ids = [
        add(memory, f"home is {city}", timestamp=when)
        for city, when in (("Oslo", "2025-01-01"), ("Bergen", "2025-05-01"), ("Bodo", "2026-01-01"))
    ]
    memory.supersede(ids[0], ids[1])
    memory.supersede(ids[1], ids[2])
    return ids


@pytest.mark.parametrize("rerank", [False, True])
def test_search_returns_what_holds_or_held(memory: Memory, rerank: bool) -> None:
    homes(memory)
    add(memory, "home is warm")
    held = {
        None: {"home is Bodo", "home is warm"}, "2024-12-31": set(), "2025-01-01": {"home is Oslo"},
        "2025-04-30": {"home is Oslo"}, "2025-05-01": {"home is Bergen"}, "2025-05-01T00:00": {"home is Bergen"},
        "2026-05-31": {"home is Bodo"}, "2026-06-01": {"home is Bodo", "home is warm"},
    }  # fmt: skip
    for moment, right in held.items():
        assert texts(memory.search("home", user_id="ann", as_of=moment, rerank=rerank)) == right, moment
    every = memory.search("home", user_id="ann", show_expired=True, rerank=rerank)
    assert len(every["results"]) == 4
    with pytest.raises(InputError, match="as_of"):
        memory.search("home", user_id="ann", as_of="then")


def test_superseding_is_undone(memory: Memory) -> None:
    ids = homes(memory)
    before = memory.get_all(user_id="ann")
    memory.supersede(ids[0], None)
    assert texts(memory.search("home", user_id="ann")) == {"home is Oslo", "home is Bodo"}
    memory.supersede(ids[0], None)
    assert [line["event"] for line in memory.history(ids[0])] == ["ADD", "SUPERSEDE", "REINSTATE"]
    memory.supersede(ids[0], ids[1])
    again = memory.get_all(user_id="ann")
    assert [m | {"updated_at": ""} for m in again["results"]] == [m | {"updated_at": ""} for m in before["results"]]


def test_who_may_take_whose_place(memory: Memory, make: Make) -> None:
    ids = homes(memory)
    other, run = add(memory, "home is mine", user_id="bob"), add(memory, "home is here", run_id="r")
    for old, new in ((ids[0], ids[0]), (ids[2], ids[0]), (ids[0], other), (ids[0], "none"), ("none", ids[0])):
        with pytest.raises(InputError):
            memory.supersede(old, new)
    memory.supersede(ids[2], run)
    bound = memory.within(memory.bound.of({"user_id": "bob"}))
    with pytest.raises(InputError, match="no memory"):
        bound.supersede(ids[0], other)
    assert bound.history(ids[0], whole_chain=True) == []


def test_an_older_statement_may_take_the_place_of_a_later_one(memory: Memory) -> None:
    old, new = add(memory, "tea", timestamp="2025-01-01"), add(memory, "coffee", timestamp="2025-02-01")
    memory.supersede(new, old)
    found = memory.get(new)
    assert found is not None
    assert found["valid_until"] == found["timestamp"]
    assert texts(memory.search("tea coffee", user_id="ann", as_of="2026-01-01")) == {"tea"}


def test_times_of_validity_are_given_and_taken_away(memory: Memory, clock: Any) -> None:
    work = add(memory, "works at Initech", valid_from="2019-03-01", valid_until="2026-07-01", timestamp="2026-05-01")
    add(memory, "works at Hooli", valid_from="2026-07-01", timestamp="2026-05-01")
    for moment, right in ((None, "Initech"), ("2020-01-01", "Initech"), ("2026-07-02", "Hooli")):
        assert texts(memory.search("works", user_id="ann", as_of=moment)) == {f"works at {right}"}
    clock.forward(days=31)
    assert texts(memory.search("works", user_id="ann")) == {"works at Hooli"}
    memory.update(work, valid_until=None)
    assert texts(memory.search("works", user_id="ann")) == {"works at Hooli", "works at Initech"}
    memory.update(work, valid_from=None)
    assert texts(memory.search("works", user_id="ann", as_of="2020-01-01")) == set()
    for change in ({"valid_from": "2026-01-02", "valid_until": "2026-01-01"}, {"valid_from": "soon"}):
        with pytest.raises(InputError):
            memory.update(work, **change)
        with pytest.raises(InputError):
            add(memory, "x", **change)


def test_the_ids_that_hold_are_read_once(memory: Memory, clock: Any) -> None:
    homes(memory)
    memory.search("home", user_id="ann", rerank=False)
    remembered = memory._searcher._remembered
    clock.forward(minutes=1)
    memory.search("home", user_id="ann", rerank=False)
    assert memory._searcher._remembered is remembered


def test_a_search_reads_the_rows_of_its_pool_alone(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are the dear part of a search. The ids that are allowed make no difference, given as a list or not."""
    memory.add([f"guest {number} at home" for number in range(150)], user_id="ann")
    homes(memory)
    add(memory, "home is far", user_id="bob")
    with memory.store.read() as db:
        most = len(searching.read_records(db, range(1, 200)))
    read: list[int] = []

    def counted(db: Any, ids: Any) -> Any:
        read.append(len(ids))
        return read_records(db, ids)

    monkeypatch.setattr(searching, "read_records", counted)
    found = memory.search("home", 150, user_id="ann", rerank=False)["results"]
    assert (most, len(found)) == (154, 150)
    del read[:]
    few = memory.search("Bodo is", 5, user_id="ann", rerank=False)["results"]
    assert few[0]["memory"] == "home is Bodo"
    assert len(read) == 1
    assert POOL <= read[0] <= POOL + 2  # and those that stand for the same memory
    monkeypatch.setattr(searching, "_LISTED", 0)
    assert memory.search("Bodo is", 5, user_id="ann", rerank=False)["results"] == few


def test_the_command(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from edge.apps.memory.command import memory as command

    monkeypatch.setenv("EDGE_MEMORY", "100GB")
    memory = make()
    old, new = (add(memory, text, user_id="default") for text in ("tea is good", "tea is bad"))
    memory.close()

    def run(*words: str) -> Any:
        return CliRunner().invoke(command, [*words, "--path", str(tmp_path / "memory")], catch_exceptions=False)

    assert "(until 2026-06-01T12:00Z)" in run("supersede", old, new).output
    assert "(until" in run("list").output
    assert "SUPERSEDE" in run("history", new, "--chain").output
    assert "(until" not in run("supersede", old, "--undo").output
    for wrong in ((old,), (old, new, "--undo")):
        with pytest.raises(InputError, match="take"):
            run("supersede", *wrong)


NOW = datetime(2026, 6, 1, tzinfo=UTC)

ENDED = (
    ("I live in Oslo", "I moved to Trondheim"),
    ("Ich arbeite bei Siemens", "Ich arbeite jetzt bei Bosch"),
    ("Je fume", "Je ne fume plus"),
    ("Mi jefe se llama Pablo", "Mi nuevo jefe se llama Marcos"),
    ("La riunione è lunedì", "La riunione è stata spostata a martedì"),
    ("My dog is called Max", "Sorry, my dog is called Milo, not Max"),
    ("I drive a Toyota", "I sold the Toyota and drive a Skoda now"),
    ("Ann: I live in Oslo", "Ann: Hi Bob! I moved to Trondheim. It rains."),
    ("I drink coffee every morning", "I stopped drinking coffee"),
    ("Moro em Lisboa", "Mudei-me para o Porto"),
    ("Ik rook", "Ik ben gestopt met roken"),
    ("Mieszkam w Krakowie", "Przeprowadziłem się do Gdańska"),
)
KEPT = (
    ("Thanks!", "Thanks, Gina! Seeing my goals written down on paper really helps keep me motivated."),
    ("Bye Nate!", "Aww, bummer! But the important thing is to stay positive."),
    ("I live in Oslo", "My sister moved to Trondheim"),
    ("I like tea", "I also like coffee"),
    ("I live in Oslo", "I would like to move to Trondheim"),
    ("I live in Oslo", "I used to live in Bergen"),
    ("I live in Oslo", "Did you move to Trondheim? I moved the sofa."),
    ("I live in Oslo", "I live in Oslo with two cats"),
    ("I live in Oslo and work at Initech", "I moved to Trondheim"),
    ("Ann: I live in Oslo", "Bob: I moved to Trondheim"),
    ("The meeting is on Monday", "The meeting is important"),
    ("I quit smoking", "I won't quit smoking"),
    ("She lives in Oslo", "She moved to Trondheim"),
    ("I take 5 mg of aspirin", "I now take 10 mg of iron"),
    ("I am reading Dune", "I am now reading Emma"),
    ("", "?"), ("I", "I"), ("x" * 10_000, "I moved to Bergen"),
)  # fmt: skip


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge()


@pytest.mark.parametrize(("old", "new"), ENDED + KEPT)
def test_what_has_another_value_now_ends_and_what_may_still_hold_is_kept(judge: Judge, old: str, new: str) -> None:
    assert (judge.compare([(old, new, 1.0)])[0] >= ENDS) == ((old, new) in ENDED)


def test_a_pair_is_judged_alike_beside_others(judge: Judge) -> None:
    pairs = [(old, new, 1.0) for old, new in (*ENDED, *KEPT)]
    assert judge.compare(pairs) == pytest.approx([judge.compare([pair])[0] for pair in pairs], abs=1e-4)
    assert judge.compare([]) == []
    assert judge.compare([(*ENDED[0], 0.1)]) == [0.0]


def test_a_damaged_model_is_told(tmp_path: Path) -> None:
    place = tmp_path / "statements.npz"
    for damaged in (b"", FILE.read_bytes()[:5_000], b"PK" + FILE.read_bytes()[2:9_000], b"x" * 99):
        place.write_bytes(damaged)
        with pytest.raises(CorruptBlock, match="is damaged"):
            StatementModel.open(place)


def test_the_newer_of_two_that_are_kept_is_found_first(memory: Memory, judge: Judge, clock: Any) -> None:
    old, new, other = "I live in Oslo", "I moved to Bergen", "my bicycle is green"
    memory.add([other, old], user_id="ann")
    clock.forward(days=1)
    memory.add(new, user_id="ann", supersede=False)
    assert judge.compare([(old, new, 1.0)])[0] >= ORDERS > judge.compare([(other, new, 1.0)])[0]
    for rerank in (False, True):
        for top_k in (1, 10):
            found = memory.search("I live in Oslo", top_k, user_id="ann", rerank=rerank)["results"]
            assert found[0]["memory"] == new
            (older,) = found[0]["newer_than"]
            assert memory.get(older)["memory"] == old
            assert found[0]["score"] == max(one["score"] for one in found)
    assert memory.search("live in Oslo before", 1, user_id="ann")["results"][0]["memory"] == old
    assert all("newer_than" not in one for one in memory.search("I live in Oslo", user_id="ann")["results"][1:])


def shown(memory: Memory, **options: Any) -> set[str]:
    found = memory.search("live moved home", 50, **{"user_id": "ann"} | options)
    return {hit["memory"] for hit in found["results"]}


def test_a_chain_of_homes_ends_where_it_began(memory: Memory, clock: Any) -> None:
    for text in ("I live in Oslo", "I moved to Bergen", "I live in Oslo again"):
        clock.forward(days=30)
        (added,) = memory.add(text, user_id="ann", explain=True)["results"]
        assert added["event"] == "ADD"
        assert shown(memory) == {text}
    assert [(one["memory"], one["ends"]) for one in added["judged"]] == [("I moved to Bergen", True)]
    assert added["judged"][0]["probability"] >= ENDS
    assert [one["memory"] for one in added["supersedes"]] == ["I moved to Bergen"]
    assert len(memory.history(added["id"], whole_chain=True)) == 5
    assert shown(memory, as_of="2026-07-15") == {"I live in Oslo"}
    assert len(memory.get_all(user_id="ann")["results"]) == 3


def test_what_was_said_before_is_ended_by_what_is_known(memory: Memory) -> None:
    memory.add("I moved to Bergen", user_id="ann", timestamp="2026-03-01")
    (late,) = memory.add("I live in Oslo", user_id="ann", timestamp="2025-03-01")["results"]
    assert late["valid_until"].startswith("2026-03-01")
    assert shown(memory) == {"I moved to Bergen"}
    assert shown(memory, as_of="2025-06-01") == {"I live in Oslo"}


def test_statements_of_one_call_end_each_other_in_their_order(memory: Memory) -> None:
    results = memory.add(["I live in Oslo", "I moved to Bergen", "I moved to Bodo"], user_id="ann")["results"]
    assert [one.get("supersedes", [{}])[0].get("memory") for one in results] == [
        None, "I live in Oslo", "I moved to Bergen",
    ]  # fmt: skip
    assert shown(memory) == {"I moved to Bodo"}


def test_nothing_else_is_ended(memory: Memory) -> None:
    memory.add("I live in Oslo", user_id="ann")
    memory.add("I moved to Bergen", user_id="bob")
    memory.add("I moved to Bergen", user_id="ann", run_id="r")
    memory.add({"role": "assistant", "content": "I moved to Bergen"}, user_id="ann")
    memory.add("I moved to Bodo", user_id="ann", supersede=False)
    assert "I live in Oslo" in shown(memory)


@pytest.mark.parametrize(
    ("question", "before"),
    [
        ("where did she use to live?", True), ("the car Ada used to drive", True), ("where I used to live", True),
        ("what do I use to deploy?", False), ("which tool is used to deploy?", False),
        ("what can be used to cut?", False),
    ],
)  # fmt: skip
def test_what_is_used_is_not_what_was_before(question: str, before: bool) -> None:
    assert time_asked(question, NOW).before is before


def test_an_article_is_no_preposition() -> None:
    assert not time_asked("was there a march for peace", NOW).start
    assert time_asked("cosa ho comprato a marzo", NOW).start == "2026-03-01T00:00:00.000000+00:00"


@pytest.mark.parametrize(
    ("question", "home"),
    [
        ("where is home", "Bodo"), ("where was home before", "Bergen"), ("where was home before the flood", "Bodo"),
        ("wo war home früher", "Bergen"), ("où était home avant ?", "Bergen"), ("home in May 2025", "Bergen"),
        ("home in 2024", "Bodo"), ("home in March 2025", "Oslo"), ("home last year", "Bergen"),
        ("home im Februar 2025", "Oslo"), ("home in May", "Bodo"), ("home in December", "Bergen"),
        ("home in 2030", "Bodo"),
    ],
)  # fmt: skip
def test_the_words_of_a_question_choose_the_time(memory: Memory, question: str, home: str) -> None:
    homes(memory)
    add(memory, "may the flood pass")
    found = texts(memory.search(question, user_id="ann", rerank=False))
    assert found == {f"home is {home}", "may the flood pass"}


def test_many_ended_memories_hide_none_that_holds(memory: Memory, clock: Any) -> None:
    memory.add("the port is open", user_id="ann")
    for number in range(250):
        clock.forward(minutes=1)
        memory.add(f"the port of the server is now {number}", user_id="ann")
    found = memory.search("the port of the server", 50, user_id="ann", rerank=False)["results"]
    assert [hit["memory"] for hit in found] == ["the port of the server is now 249", "the port is open"]


def add_all(memory: Memory, text: Any, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = memory.add(text, **{"user_id": "ann"} | options)["results"][0]
    return result


@pytest.mark.parametrize(
    "difference",
    [
        {"metadata": {"a": 1}}, {"timestamp": "2026-01-01"}, {"expiration_date": "2030-01-01"}, {"importance": 0.5},
        {"text": {"role": "assistant", "content": "I like tea"}},
        {"text": {"role": "user", "name": "bo", "content": "I like tea"}},
    ],
)  # fmt: skip
def test_the_same_text_said_otherwise_is_another_memory_and_linked(memory: Memory, difference: dict[str, Any]) -> None:
    first = add_all(memory, "I like tea")
    second = add_all(memory, **{"text": "I like tea"} | difference)
    assert second["event"] == "ADD"
    assert [(one["id"], one["similarity"]) for one in second["similar"]] == [(first["id"], 1.0)]
    assert [link["id"] for link in (memory.get(first["id"]) or {})["links"]] == [second["id"]]


def test_a_conversation_may_repeat_itself(memory: Memory) -> None:
    turns = [{"role": "user", "content": "yes"}] * 3
    for event, count in (("ADD", 3), ("NONE", 1)):
        results = memory.add(turns, user_id="ann")["results"]
        assert [one["event"] for one in results] == [event] * 3
        assert len({one["id"] for one in results}) == count
    assert len(memory.get_all(user_id="ann")["results"]) == 3


def test_an_update_links_the_new_text(memory: Memory) -> None:
    words = " ".join(f"word{n}" for n in range(30))
    first, second = add_all(memory, words), add_all(memory, "something else")
    memory.update(second["id"], f"{words} indeed")
    assert [link["id"] for link in (memory.get(second["id"]) or {})["links"]] == [first["id"]]
    memory.update(first["id"], "not at all")
    assert "links" not in (memory.get(second["id"]) or {})


def test_links_are_found_in_large_scopes_among_larger_others(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_FEW", 3)
    words = " ".join(f"word{n}" for n in range(30))
    for user in ("ann", "bob"):
        memory.add([f"{user} {n}" for n in range(5)], user_id=user)
    first = add_all(memory, words)
    memory.add([f"{words} really"] * 4, user_id="bob")
    assert [one["id"] for one in add_all(memory, f"{words} really")["similar"]] == [first["id"]]


def linked(memory: Memory) -> dict[int, int]:
    """How many earlier memories each is linked to."""
    with memory.store.read() as db:
        return dict(db.execute("SELECT memory, count(*) FROM links GROUP BY memory").fetchall())


def test_a_text_said_again_and_again_is_linked_to_the_last_few(memory: Memory) -> None:
    said = [add_all(memory, "ok", timestamp=datetime(2026, 1, 1) + timedelta(hours=n)) for n in range(12)]
    assert {one["event"] for one in said} == {"ADD"}
    assert [one["id"] for one in said[-1]["similar"]] == [one["id"] for one in said[-2:-5:-1]]
    assert max(linked(memory).values()) == MOST_LINKS
    again = add_all(memory, "ok", timestamp=datetime(2026, 1, 1))
    assert (again["event"], again["id"]) == ("NONE", said[0]["id"]), "also what is not among the last few is known"


def test_texts_with_the_same_hash_are_told_apart(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "text_hash", lambda text: "the same")
    add_all(memory, "I like tea")
    other = add_all(memory, "bread needs time")
    assert (other["event"], "similar" in other) == ("ADD", False)


def test_near_ones_of_one_call_are_those_of_a_plain_comparison(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_BLOCK", 7)
    monkeypatch.setattr(writing, "_COLUMNS", 5)
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(4, 64))[generator.integers(4, size=50)] + generator.normal(size=(50, 64)) / 5
    vectors = np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)
    memory.add("x", user_id="ann")
    index = memory.store.index
    assert index is not None
    with memory.store.read() as db:
        found = writing.find_similar(db, index, vectors, Scope("bob"), memory.budget)
    for row, similar in enumerate(found):
        cosines = vectors[:row] @ vectors[row]
        nearest = [place for place in np.argsort(-cosines) if cosines[place] >= writing.NEAR][:MOST_LINKS]
        assert [-1 - one.id for one in similar] == nearest
    assert sum(map(len, found)) > 60


def test_what_is_compared_with_itself_stays_small_and_is_leased(memory: Memory) -> None:
    memory.add("x", user_id="ann")
    index = memory.store.index
    assert index is not None
    vectors = np.zeros((3_000, 64), np.float32)
    vectors[:, 0] = 1
    held: dict[str, int] = {}
    reserve = memory.budget.reserve

    def noted(owner: str, nbytes: int) -> Any:
        held[owner] = nbytes
        return reserve(owner, nbytes)

    memory.budget.reserve = noted  # type: ignore[method-assign]
    tracemalloc.start()
    with memory.store.read() as db:
        found = writing.find_similar(db, index, vectors, Scope("bob"), memory.budget)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(similar) for similar in found[:5]] == [0, 1, 2, 3, 3]
    assert held["memory duplicates"] == 4 * 256 * 2_048
    assert peak < held["memory duplicates"] + 3_000 * MOST_LINKS * 200
