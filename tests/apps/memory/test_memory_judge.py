"""What a new statement ends without being told, and what it leaves as it is."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from edge.apps.memory.memory import Memory
from edge.apps.memory.validity import ENDS, ORDERS, Judge, time_asked
from edge.errors import CorruptBlock
from edge.models.statements import FILE, StatementModel

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)

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


def test_a_memory_is_found_by_what_it_superseded(memory: Memory) -> None:
    memory.add("I work as a welder at Initech", user_id="ann", timestamp="2025-01-01")
    memory.add("I have begun something else", user_id="ann", timestamp="2025-06-01")
    memory.add(["the weather is fine", "tea is ready"], user_id="ann")
    old, new = (m["id"] for m in memory.get_all(user_id="ann")["results"][3:1:-1])
    memory.supersede(old, new)
    for rerank in (False, True):
        first = memory.search("welder at Initech", 1, user_id="ann", rerank=rerank)["results"][0]
        assert first["id"] == new
        then = memory.search("begun something", 1, user_id="ann", as_of="2025-03-01", rerank=rerank)["results"][0]
        assert then["id"] == old


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
    ids = [
        memory.add(f"home is {city}", user_id="ann", timestamp=when)["results"][0]["id"]
        for city, when in (("Oslo", "2025-01-01"), ("Bergen", "2025-05-01"), ("Bodo", "2026-01-01"))
    ]
    memory.supersede(ids[0], ids[1])
    memory.supersede(ids[1], ids[2])
    memory.add("may the flood pass", user_id="ann")
    found = [hit["memory"] for hit in memory.search(question, user_id="ann", rerank=False)["results"]]
    assert sorted(found) == sorted([f"home is {home}", "may the flood pass"])


def test_many_ended_memories_hide_none_that_holds(memory: Memory, clock: Any) -> None:
    memory.add("the port is open", user_id="ann")
    for number in range(250):
        clock.forward(minutes=1)
        memory.add(f"the port of the server is now {number}", user_id="ann")
    found = memory.search("the port of the server", 50, user_id="ann", rerank=False)["results"]
    assert [hit["memory"] for hit in found] == ["the port of the server is now 249", "the port is open"]
