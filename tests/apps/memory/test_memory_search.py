"""Searches of memories, and the meaning of a memory's relevance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.answers import FOLDER
from naive.words import WordReranker

from edge.apps.memory.memory import Memory
from edge.apps.memory.searching import NAME, SIGNALS, first_person, relevance, signals
from edge.apps.memory.store import CONTEXT, in_context
from edge.apps.store.fusion import FULL_MATCH
from edge.errors import InputError
from edge.models.evidence import Evidence, Logistic, log_odds
from tests.apps.memory.conftest import Make, texts


def test_the_threshold_compares_the_score(memory: Memory) -> None:
    memory.add(["red green blue", "red green", "red", "yellow"], user_id="ann")
    plain = memory.search("red green blue", user_id="ann", rerank=False)["results"]
    assert [hit["memory"] for hit in plain][:3] == ["red green blue", "red green", "red"]
    assert all(0 <= hit["score"] <= 1 and "relevance" not in hit for hit in plain)
    assert texts(memory.search("red green blue", user_id="ann", rerank=False, threshold=0.7)) == [
        "red green blue", "red green",
    ]  # fmt: skip
    reranked = memory.search("red green blue", user_id="ann", threshold=0.6)["results"]
    assert [(hit["memory"], round(hit["score"], 2)) for hit in reranked] == [
        ("red green blue", 1.0), ("red green", 0.67),
    ]  # fmt: skip
    itself = memory.search("red green blue", user_id="ann", threshold=1.0)
    assert texts(itself) == ["red green blue"], "the threshold itself is enough"


def test_the_reranker_reads_the_date_and_decides_the_order(make: Make) -> None:
    reranker = WordReranker()
    memory = make(reranker=reranker)
    memory.add("we met", user_id="ann", timestamp="2023-05-08")
    memory.add("we met we met", user_id="ann", timestamp="2022-03-09")
    found = memory.search("we met May 2023", 1, user_id="ann")["results"]
    assert found[0]["timestamp"].startswith("2023-05-08")
    assert sorted(reranker.asked[-1][1]) == ["8 May 2023: we met", "9 March 2022: we met we met"]


def test_the_reranker_reads_a_turn_after_what_it_answers(make: Make) -> None:
    reranker = WordReranker()
    memory = make(reranker=reranker)
    said = [{"role": "user", "content": "where is your violin"}, {"role": "assistant", "content": "upstairs"}]
    memory.add(said, user_id="ann", timestamp="2023-05-08")
    memory.add("a fact", user_id="ann")
    assert memory.search("violin", 2, user_id="ann", threshold=0.5)["results"][1]["memory"] == "upstairs"
    assert sorted(reranker.asked[-1][1]) == [
        "8 May 2023: where is your violin", "a fact", "where is your violin\n8 May 2023: upstairs",
    ]  # fmt: skip


def test_explain_tells_what_each_stage_thought(memory: Memory) -> None:
    memory.add(["red", "green", "blue wine"], user_id="ann")
    (hit,) = memory.search("blue", 1, user_id="ann", explain=True, recency=0.2)["results"]
    assert set(hit["score_details"]) == {
        "semantic", "bm25", "fused", "fused_rank", "reranker", "recency", "importance", "order",
    }  # fmt: skip
    assert "score_details" not in memory.search("blue", 1, user_id="ann")["results"][0]


def test_recency_and_importance_weigh_only_when_asked(memory: Memory, clock: Any) -> None:
    old = memory.add("tea", user_id="ann", timestamp="2026-03-03")["results"][0]["id"]
    new = memory.add("tea ", user_id="ann", timestamp="2026-05-31")["results"][0]["id"]
    dear = memory.add("tea  ", user_id="ann", timestamp="2026-03-03", importance=1.0)["results"][0]["id"]

    def order(**weights: float) -> list[str]:
        return [hit["id"] for hit in memory.search("tea", user_id="ann", **weights)["results"]]

    assert order() == [old, new, dear]
    assert order(recency=0.5)[0] == new
    assert order(importance=0.5)[0] == dear
    (first, *_) = memory.search("tea", user_id="ann", recency=0.5, half_life=1.5, explain=True)["results"]
    assert first["score_details"]["recency"] == pytest.approx(0.5)
    assert first["score_details"]["order"] == pytest.approx(0.5 * 1.0 + 0.5 * 0.5)
    hits = memory.search("tea", user_id="ann", importance=0.4, explain=True)["results"]
    details = next(hit["score_details"] for hit in hits if hit["id"] == old)
    assert (details["importance"], details["order"]) == (0.5, pytest.approx(0.6 * 1.0 + 0.4 * 0.5)), (
        "a half if not told"
    )
    memory.pin(old)
    assert order(recency=0.5)[0] == old, "what is pinned does not age"
    assert order(importance=0.5)[:2] == [old, dear]


def test_the_same_results_in_the_order_of_time(memory: Memory) -> None:
    for day, text in ((3, "the roof leaks"), (1, "the roof is painted red"), (2, "we sold the boat")):
        memory.add(text, user_id="ann", timestamp=f"2026-05-0{day}")
    best, timely = (memory.search("the roof leaks", 2, user_id="ann", order=order)["results"]
                    for order in ("relevance", "time"))  # fmt: skip
    assert [one["memory"] for one in best] == ["the roof leaks", "the roof is painted red"]
    assert timely == best[::-1]
    (first,) = memory.search("the roof leaks", user_id="ann", order="time", max_tokens=20)["results"]
    assert first == best[0]
    with pytest.raises(InputError, match="order is relevance or time, not 'date'"):
        memory.search("roof", user_id="ann", order="date")


def test_neighbours_are_the_turns_around_a_turn(memory: Memory) -> None:
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"turn {n}"} for n in range(6)]
    memory.add(turns[:3], user_id="ann", run_id="r")
    memory.add("another session", user_id="ann", run_id="s")
    added = memory.add(turns[3:], user_id="ann", run_id="r")["results"]
    memory.forget(added[1]["id"])
    hits = memory.search("turn 3", 9, user_id="ann", neighbours=2)["results"]
    hit = next(hit for hit in hits if hit["memory"] == "turn 3")
    assert [(turn["offset"], turn["memory"]) for turn in hit["neighbours"]] == [
        (-2, "turn 1"), (-1, "turn 2"), (1, "turn 5"),
    ]  # fmt: skip
    assert "neighbours" not in memory.search("turn 3", 1, user_id="ann")["results"][0]


def test_a_turn_is_found_by_what_it_answers(memory: Memory) -> None:
    memory.add(["nothing of that", "or of this"], user_id="ann")
    memory.add(
        [{"role": "user", "content": "where is your violin"}, {"role": "assistant", "content": "upstairs"}],
        user_id="ann",
    )
    assert "upstairs" in texts(memory.search("where is the violin", 2, user_id="ann", rerank=False))
    memory.add(["where was your cello", "downstairs"], user_id="bob")
    memory.add(["nothing of that", "or of this"], user_id="bob")
    found = memory.search("where is the cello", 9, user_id="bob", rerank=False)["results"]
    assert next(hit for hit in found if hit["memory"] == "downstairs")["score"] == 0, "facts have no context"


def test_a_run_goes_on_from_call_to_call(memory: Memory) -> None:
    for run in ("r", None):
        for role, said in (("user", "where is your violin"), ("assistant", "upstairs")):
            memory.add({"role": role, "content": said}, user_id="ann", run_id=run, timestamp="2026-01-01")
    memory.add({"role": "user", "content": "tomorrow"}, user_id="ann", run_id="r", timestamp="2026-01-02")
    hits = memory.search("violin", 9, user_id="ann", rerank=False)["results"]
    scores = {(hit["memory"], hit.get("run_id")): hit["score"] for hit in hits}
    assert scores["upstairs", "r"] > 0.1
    assert scores["upstairs", None] == 0, "without a run nobody knows what came before"
    assert scores["tomorrow", "r"] == 0, "another day is another session"


def test_the_context_of_a_turn_is_part_of_its_vector() -> None:
    vectors = np.eye(3, dtype=np.float32)
    mixed = in_context(vectors, [None, 0])
    assert mixed[0].tolist() == [1, 0, 0]
    assert mixed[1] == pytest.approx(np.array([CONTEXT, 1, 0]) / np.hypot(CONTEXT, 1))
    assert vectors.tolist() == np.eye(3).tolist()


def test_an_updated_turn_keeps_its_context(memory: Memory) -> None:
    said = [{"role": "user", "content": "where is your violin"}, {"role": "assistant", "content": "upstairs"}]
    second = memory.add(said, user_id="ann")["results"][1]["id"]
    memory.update(second, "downstairs")
    hits = memory.search("violin", 9, user_id="ann", rerank=False)["results"]
    assert next(hit for hit in hits if hit["id"] == second)["score"] > 0.1


def test_what_another_process_wrote_is_seen_at_once(make: Make) -> None:
    one, other = make(), make()
    one.add("tea", user_id="ann")
    assert texts(other.search("tea", user_id="ann")) == ["tea"]
    identifier = one.add("green tea", user_id="ann")["results"][0]["id"]
    assert len(texts(other.search("tea", user_id="ann"))) == 2
    one.forget(identifier)
    assert texts(other.search("tea", user_id="ann")) == ["tea"]
    one.delete_all(user_id="ann")
    assert texts(other.search("tea", user_id="ann")) == []


def test_search_agrees_with_a_plain_loop_over_many_memories(make: Make) -> None:
    """More memories than one list of the index holds as pending rows; scopes of very different sizes."""
    generator = np.random.default_rng(0)
    vocabulary = [f"word{n}" for n in range(300)]
    memory = make()
    stored: list[tuple[str, str]] = []
    for user, count in (("many", 5_000), ("few", 7)):
        said = [" ".join(generator.choice(vocabulary, 6)) for _ in range(count)]
        memory.add(said, user_id=user, supersede=False)
        stored += [(user, text) for text in said]
    memory.maintain()
    for user in ("many", "few"):
        query = stored[0][1] if user == "many" else stored[-1][1]
        embedder = memory.store.models
        own = [text for whose, text in stored if whose == user]
        cosines = embedder.embed(own) @ embedder.embed([query], query=True)[0]
        found = memory.search(query, 5, user_id=user, rerank=False, explain=True)["results"]
        assert found[0]["memory"] == own[int(np.argmax(cosines))] == query
        for hit in found:
            assert hit["score"] == pytest.approx(max(0.0, float(cosines[own.index(hit["memory"])])), abs=1e-3)


def test_nothing_is_read_beside_the_directory(make: Make, tmp_path: Path) -> None:
    make("only").add("text", user_id="ann")
    assert {path.name for path in tmp_path.iterdir()} == {"only"}
    names = {path.name.removeprefix("memory.db") for path in (tmp_path / "only").iterdir()}
    assert names <= {"", "-wal", "-shm", "-mark", "-schema", "segments"}


def test_as_many_as_are_asked_for(memory: Memory) -> None:
    memory.add([f"tea number{n}" for n in range(120)], user_id="ann")
    assert len(texts(memory.search("tea", 110, user_id="ann", rerank=False))) == 110
    assert len(texts(memory.search("tea", 60, user_id="ann", rerank=False))) == 60


def test_words_and_vectors_weigh_the_same(memory: Memory) -> None:
    memory.add(["red green", "blue wine"], user_id="ann")
    (hit, *_) = memory.search("red green", user_id="ann", rerank=False, explain=True)["results"]
    details = hit["score_details"]
    assert details["fused"] == pytest.approx(
        0.5 * details["bm25"] / max(1.0, details["bm25"]) + 0.5 * details["semantic"]
    )
    assert details["bm25"] != details["semantic"]


def test_a_memory_with_one_word_of_many_does_not_get_all_the_weight_of_words(memory: Memory) -> None:
    """In a small store a preposition is as rare as any other word."""
    memory.add(["eine Prise von dem Salz", *(f"fact {number}" for number in range(9))], user_id="ann")
    query = "Name von meinem alten Haustier"
    found = memory.search(query, user_id="ann", rerank=False, explain=True)["results"]
    details = next(hit["score_details"] for hit in found if "Salz" in hit["memory"])
    with memory.store.read() as db:
        whole = memory.store.lexical.whole_score(db, query)
    assert 1.0 < details["bm25"] < 0.3 * whole
    assert details["fused"] == pytest.approx(
        0.5 * details["bm25"] / (FULL_MATCH * whole) + 0.5 * details["semantic"], abs=1e-6
    )


def test_english_function_words_are_not_looked_for(memory: Memory) -> None:
    memory.add(["fifty grams of salt", "the cat is called Pixel"], user_id="ann")
    found = memory.search("what is the name of my cat", user_id="ann", rerank=False, explain=True)["results"]
    assert {hit["memory"]: "bm25" in hit["score_details"] for hit in found} == {
        "the cat is called Pixel": True, "fifty grams of salt": False,
    }  # fmt: skip


def test_the_score_never_rises_down_the_results(memory: Memory) -> None:
    """The order also counts words, so a memory may have a greater probability of its own than one above it."""
    memory.add(["red green blue", "red green", "red", "yellow green", "blue yellow"], user_id="ann")
    for count in (2, 5):
        found = memory.search("green yellow red", count, user_id="ann", explain=True)["results"]
        scores = [hit["score"] for hit in found]
        assert scores == sorted(scores, reverse=True)
        assert all(hit["score"] <= hit["score_details"]["reranker"] for hit in found)


@pytest.mark.parametrize(
    ("question", "names", "asked"),
    [
        ("what can Ada eat?", ["ada"], "what can I eat?"),
        ("does Ada have allergies?", ["ada"], "do I have allergies?"),
        ("where does Ada's sister live?", ["ada", None, None], "where does my sister live?"),
        ("is ADA sporty?", ["ada"], "am I sporty?"),
        ("has the user a dog?", ["u-17"], "have I a dog?"),
        ("what does Adam eat?", ["ada"], "what does Adam eat?"),
        ("who is Mr. (B)?", ["Mr. (B)"], "who am I?"),
        ("what do I eat?", [None, None, None], "what do I eat?"),
        ("which 7 dwarfs?", ["7"], "which 7 dwarfs?"),
    ],
)
def test_questions_are_asked_as_the_person_would(question: str, names: list[str | None], asked: str) -> None:
    assert first_person(question, names) == asked


def test_relevance_is_the_rerankers_where_nothing_was_fitted() -> None:
    assert relevance(None, 0.3, 0.9, 0.9) == 0.3
    fitted = Evidence(SIGNALS, Logistic((0.0, 0.0, 5.0, 0.0), (0.0,) * 3, (1.0,) * 3), 0.1, "tiny", 1)
    assert relevance(fitted, 0.3, 0.1, 0.9) == pytest.approx(fitted.probability(signals(0.3, 0.1, 0.9)))
    assert relevance(fitted, 0.3, 0.1, 0.9) > relevance(fitted, 0.3, 0.1, 0.2)
    assert signals(0.5, 0.4, 0.1) == [log_odds(0.5), 0.4, 0.4], "a question in the third person may fit better"


def test_a_search_uses_what_was_fitted(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.add("red", user_id="ann")
    fitted = Evidence(SIGNALS, Logistic((0.0, 0.0, 0.0, 2.0), (0.0,) * 3, (1.0,) * 3), 0.1, "tiny", 1)
    (before,) = memory.search("what does ann like? red", user_id="ann", explain=True)["results"]
    asked: list[str] = []
    models = memory.store.models

    def fit_for(name: str, named: tuple[str, ...]) -> Evidence:
        assert (name, named) == (NAME, SIGNALS)
        return fitted

    embed = memory.store.embed

    def noted(texts: list[str], **options: Any) -> Any:
        asked.extend(texts)
        return embed(texts, **options)

    monkeypatch.setattr(models, "evidence", fit_for)
    monkeypatch.setattr(memory.store, "embed", noted)
    (hit,) = memory.search("what does ann like? red", user_id="ann", explain=True)["results"]
    assert hit["score"] == pytest.approx(1 / (1 + 2.718281828**-2), abs=1e-6)
    assert hit["score_details"]["reranker"] == before["score"]
    assert "what do I like? red" in asked
    assert memory.search("what does ann like? red", user_id="ann", threshold=0.95)["results"] == []


def test_the_set_of_memories_is_in_two_halves() -> None:
    rows = [json.loads(line) for line in Path(FOLDER / "memories.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) >= 40
    assert {row["half"] for row in rows} == {"choose", "judge"}
    assert all(len(row["questions"]) >= 2 for row in rows)
