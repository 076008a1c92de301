"""Searches of memories and of conversations, the meaning of a relevance, and the selection of parts."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from apsw import Connection
from hypothesis import given
from hypothesis import strategies as st
from naive.words import WordReranker

from edge.apps.memory import searching
from edge.apps.memory.memory import Memory
from edge.apps.memory.records import Record, read_records
from edge.apps.memory.searching import (
    NAME,
    REPLIED,
    REPLY,
    SHARE,
    SIGNALS,
    beside_their_conversations,
    central_sentences,
    conversation_scores,
    first_person,
    relevance,
    said_before_replies,
)
from edge.apps.memory.selection import LONGEST_SEGMENT, split
from edge.apps.memory.store import CONTEXT, in_context
from edge.errors import EdgeError, InputError
from edge.models.blending import FULL_MATCH
from edge.models.evidence import Evidence, Logistic, log_odds
from edge.text.tokens import expected_tokens, most_tokens
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
        ("which test does test like?", ["test"], "which test do I like?"),
        ("does the user know the test?", ["user", "test"], "do I know the test?"),
        ("what did Ada's Volvo cost?", ["ada"], "what did my Volvo cost?"),
        ("is Mark Woods older than Mark?", ["mark"], "is Mark Woods older than I?"),
        ("when will the meeting begin?", ["will"], "when will the meeting begin?"),
        ("how high is the electricity bill of bill?", ["bill"], "how high is the electricity bill of I?"),
        ("Where is my old bill, and what did Bill buy?", ["bill"], "Where is my old bill, and what did I buy?"),
        ("Where does ada-17 live?", ["ada-17"], "Where do I live?"),
        ("Where does ada live, and what made ada move?", ["ada"], "Where do I live, and what made ada move?"),
        ("Who inspired ada's painting?", ["ada"], "Who inspired my painting?"),
    ],
)
def test_questions_are_asked_as_the_person_would(question: str, names: list[str | None], asked: str) -> None:
    assert first_person(question, names) == asked


def test_what_the_first_person_adds_to_a_question_is_not_searched(memory: Memory) -> None:
    asked = first_person("is Ada taller than Ada's brother, has Ada met him, or does Ada avoid him?", ["ada"])
    assert memory.store.lexical.terms(asked) == memory.store.lexical.terms("taller brother met avoid")


def test_relevance_is_the_rerankers_where_nothing_was_fitted() -> None:
    assert relevance(None, 0.3, 0.9) == 0.3
    fitted = Evidence(SIGNALS, Logistic((1.0, 5.0, 0.0), (0.0,) * 2, (1.0,) * 2), 0.1, "tiny", 1)
    assert relevance(fitted, 0.3, 0.9) == pytest.approx(fitted.probability([log_odds(0.3), 0.9]))
    assert relevance(fitted, 0.3, 0.9) > relevance(fitted, 0.3, 0.2)


def test_a_search_uses_what_was_fitted(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.add("red", user_id="ann")
    fitted = Evidence(SIGNALS, Logistic((0.0, 0.0, 2.0), (0.0,) * 2, (1.0,) * 2), 0.1, "tiny", 1)
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
    assert asked == ["what do I like? red"]
    assert memory.search("what does ann like? red", user_id="ann", threshold=0.95)["results"] == []


def words(text: str) -> int:
    return len(text.split())


PARAGRAPHS = [
    "The river floods every spring when the snow melts in the mountains, and the fields stand under water for weeks.",
    "Bread needs time to rise, and the oven has to be hot before the loaf goes in, or else it stays flat and pale.",
    "Old ice looks blue because light travels a long way through it, and every colour but blue is lost on the way.",
]


@pytest.mark.parametrize("rerank", [True, False])
def test_the_most_relevant_is_kept_in_its_order(memory: Memory, rerank: bool) -> None:
    text = "\n\n".join(PARAGRAPHS)
    kept = memory.select(text, "when does the river flood the fields", 25, rerank=rerank, count=words)
    assert kept.text == PARAGRAPHS[0]
    assert kept.tokens == words(PARAGRAPHS[0])
    assert kept.left_out == 2
    both = memory.select(text, "why is old ice blue, and when does the river flood", 50, rerank=rerank, count=words)
    assert both.text == f"{PARAGRAPHS[0]}\n\n{PARAGRAPHS[2]}"
    everything = memory.select(text, "bread", 1_000, rerank=rerank, count=words)
    assert everything.text == text
    assert everything.left_out == 0
    assert memory.select(text, "bread", 1, rerank=rerank, count=words).segments == ()


def test_messages_stay_whole_and_system_ones_stay(memory: Memory) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "the river floods in spring", "name": "bo"},
        {"role": "user", "content": "bread needs time"},
        {"role": "assistant", "content": "old ice looks blue"},
    ]
    kept = memory.select(messages, "what colour is ice", 9, count=words)
    assert kept.messages == (messages[0], messages[3])
    assert kept.tokens <= 9
    with pytest.raises(InputError, match="system messages alone are 3 tokens; the budget is 2"):
        memory.select(messages, "ice", 2, count=words)


def test_of_very_many_pieces_the_nearest_are_judged(memory: Memory) -> None:
    filler = [
        f"line number {n} speaks of nothing in particular and goes on for a while so that it stands alone"
        for n in range(400)
    ]
    text = "\n\n".join([*filler[:300], PARAGRAPHS[0], *filler[300:]])
    assert PARAGRAPHS[0] in memory.select(text, "river floods in spring when snow melts", 30, count=words).text


def test_the_end_of_a_long_message_that_no_reranker_reads_takes_no_memory(make: Callable[..., Memory]) -> None:
    reranker = WordReranker()
    said = [{"role": "user", "content": text} for text in ("stone " * 1000 + "river", "bread", "salt")]
    make(reranker=reranker).select(said, "river", 25, count=words)
    assert reranker.retrieved == [False]


def test_the_reranker_learns_which_pieces_have_the_words_of_the_query(make: Callable[..., Memory]) -> None:
    reranker = WordReranker()
    text = "\n\n".join(PARAGRAPHS)
    memory = make(reranker=reranker)
    memory.select(text, "does the river flood in the mountains", 25, count=words)
    for query in ("does it", "gearbox oil"):
        memory.select(text, query, 25, count=words)
    rare, *others = cast(list[float], reranker.retrieved[0])
    assert rare > 0
    assert others == [0, 0]  # the common words do not count
    assert reranker.retrieved[1:] == [False, False]


def test_without_a_way_to_count_it_says_so(memory: Memory) -> None:
    with pytest.raises(InputError, match="count="):
        memory.select("text", "query", 5)


@given(
    st.lists(st.text(alphabet="ab .!\n\tü。", max_size=300)).map("\n\n".join) | st.text(alphabet="a. ", min_size=900)
)
def test_pieces_cover_the_text_in_order_but_for_white_space(text: str) -> None:
    spans = list(split(text))
    end = 0
    for start, stop in spans:
        assert end <= start < stop <= len(text)
        assert not text[end:start].strip()
        assert text[start:stop].strip()
        assert stop - start <= LONGEST_SEGMENT + 200, "a heading and the paragraph it stands above"
        end = stop
    assert not text[end:].strip()


def test_results_fit_the_tokens_and_no_turn_comes_twice(memory: Memory) -> None:
    turns = [{"role": "user", "content": f"tea number {n} " + "and so on " * (40 if n == 1 else 1)} for n in range(6)]
    memory.add(turns, user_id="ann", run_id="r", timestamp="2026-05-08")
    whole = memory.search("tea number", user_id="ann", neighbours=1)["results"]
    for most in (1, 30, 60, 200, 10_000):
        found = memory.search("tea number", user_id="ann", neighbours=1, max_tokens=most)
        said = [(r["id"], r["memory"]) for result in found["results"] for r in (result, *result["neighbours"])]
        counted = sum(expected_tokens(f"8 May 2026: {text}") for _, text in said)
        assert most_tokens(counted) == found["tokens"] <= most
        assert len(said) == len(set(said))
        assert {r["id"] for r in found["results"]} | set(found["left_out"]) == {r["id"] for r in whole}
    assert found["left_out"] == []
    assert memory.search("none", user_id="bob", conversations=1, max_tokens=9) == {
        "results": [], "tokens": 0, "left_out": [], "conversations": [],
    }  # fmt: skip
    for wrong in (0, True, 1.5):
        with pytest.raises(EdgeError):
            memory.search("tea", user_id="ann", max_tokens=wrong)


ROOF = (
    "The roof leaks again. The builder came at noon.",
    "What did the builder say about the roof?",
    "New tiles for the roof, before winter. The builder wants them in red.",
    "Good, then red tiles. Did you eat?",
)
TRIP = ("We go to Bergen by train.", "Is the train in the morning?", "The morning train, yes.")


def talk(memory: Memory, texts: tuple[str, ...], when: str, **ids: str) -> list[str]:
    said = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    return [one["id"] for one in memory.add(said, timestamp=when, **ids)["results"]]


def turns(memory: Memory, one: str, **ids: Any) -> list[str]:
    return [hit["memory"] for hit in memory.get_all(filters={"conversation_of": one}, **ids)["results"]][::-1]


def test_a_search_finds_conversations_beside_memories(memory: Memory) -> None:
    ids = talk(memory, ROOF, "2026-05-01", run_id="r", user_id="ann")
    talk(memory, TRIP, "2026-05-03", run_id="r", user_id="ann")
    memory.add("The roof is old", user_id="ann")
    found = memory.search("what did we decide about the roof?", 2, user_id="ann", conversations=3)
    assert [len(found["results"]), len(found["conversations"])] == [2, 2]  # a fact alone is no conversation
    first = found["conversations"][0]
    assert (first["id"], first["run_id"], first["user_id"], first["turns"]) == (ids[0], "r", "ann", 4)
    assert first["began"] == first["ended"] == "2026-05-01T00:00:00.000000+00:00"
    assert "New tiles for the roof, before winter." in first["about"]
    assert "conversations" not in memory.search("roof", user_id="ann")
    alone = memory.search("train", 0, user_id="ann", conversations=1)
    assert (alone["results"], alone["conversations"][0]["turns"]) == ([], 3)


def test_a_conversation_is_found_by_any_of_its_turns_and_by_nobody_else(memory: Memory) -> None:
    ids = talk(memory, ROOF, "2026-05-01", run_id="r", user_id="ann")
    assert turns(memory, ids[2], user_id="ann") == list(ROOF)
    assert turns(memory, ids[2], user_id="bob") == []
    assert turns(memory, "nobody", user_id="ann") == []
    memory.delete(ids[0])  # the first turn
    memory.delete(ids[2])
    assert turns(memory, ids[3], user_id="ann") == [ROOF[1], ROOF[3]]
    fact = memory.add("The roof is old", user_id="ann")["results"][0]["id"]
    assert turns(memory, fact, user_id="ann") == ["The roof is old"]
    goes_on = talk(memory, ("And the door?",), "2026-05-01T02:00", run_id="r", user_id="ann")
    assert turns(memory, goes_on[0], user_id="ann") == [ROOF[1], ROOF[3], "And the door?"]
    with pytest.raises(InputError, match="conversation_of"):
        memory.get_all(user_id="ann", filters={"conversation_of": 1})


def test_what_a_person_said_stands_before_an_assistants_reply(memory: Memory) -> None:
    scores = said_before_replies([(1, 0.2), (2, 0.9), (3, 0.5), (4, 0.05), (6, 0.7)], {2: 1, 4: 3, 6: 2})
    assert scores == pytest.approx({1: REPLIED * 0.9, 2: 0.9 - REPLY, 3: 0.5, 4: 0.0, 6: 0.7 - REPLY})


def test_what_a_person_said_is_found_by_the_reply(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "DEPTH", 2)  # the person's own turn is in neither ranking
    talk(memory, ("It drips on my desk", "The roof leaks: call the builder of the roof"), "2026-05-01", run_id="r")
    memory.add([f"The roof number {n} is red" for n in range(6)], run_id="r", timestamp="2026-05-09")
    wanted: dict[str, Any] = {"run_id": "r", "rerank": False}
    assert memory.search("roof builder", 1, **wanted)["results"][0]["memory"] == "It drips on my desk"
    replies = memory.search("roof builder", 1, filters={"role": "assistant"}, **wanted)["results"]
    assert [hit["memory"] for hit in replies] == ["The roof leaks: call the builder of the roof"]


@pytest.mark.parametrize(
    ("reply", "question", "order"),
    [
        (1.0, "roof", "pprr"),
        (1.0, "a summary of the roof", "rrpp"),
        (1.0, "eine Zusammenfassung: the roof", "rrpp"),
        (1.0, "resume the roof", "pprr"),
        (1.0, "recapture the roof", "pprr"),
        (0.0, "in what order did I tell you about the roof", "pprr"),
        (0.0, "how did my talk of the roof go on, in order", "pprr"),
        (0.0, "In welcher Reihenfolge habe ich roof erwähnt?", "pprr"),
        (0.0, "may I use the roof in order to mend the roof", "rrpp"),
        (0.0, "in what order should I mend the roof", "rrpp"),
        (0.0, "in what order did you tell me to mend the roof", "rrpp"),
        (0.0, "name the parts of a roof in order", "rrpp"),
    ],
)
def test_the_question_tells_how_much_replies_count(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, reply: float, question: str, order: str
) -> None:
    for name, value in (("REPLY", reply), ("BM25_WEIGHT", 1.0), ("BESIDE_REPLIES", 1.0)):
        monkeypatch.setattr(searching, name, value)
    said = ("The roof drips", "The roof: a roof that drips needs a builder", "My roof is old", "An old roof is a roof")
    talk(memory, said, "2026-05-01", run_id="r")
    found = memory.search(question, 4, run_id="r", rerank=False)["results"]
    assert "".join("r" if hit["role"] == "assistant" else "p" for hit in found) == order
    only = memory.search(question, 4, run_id="r", rerank=False, filters={"role": "assistant"})["results"]
    assert len(only) == 2


def test_conversations_outlive_an_export(make: Make) -> None:
    memory = make()
    for number in range(3):
        talk(memory, ROOF, f"2026-05-{number + 1:02}", run_id="r", user_id="ann")
    ids = talk(memory, TRIP, "2026-05-09", run_id="r", user_id="ann")
    lines = io.StringIO()
    memory.export_jsonl(lines)
    memory.close()
    copy = make("copy")
    copy.import_jsonl(io.StringIO(lines.getvalue()))
    assert turns(copy, ids[1], user_id="ann") == list(TRIP)


def test_a_memory_counts_its_conversation() -> None:
    """Against the sums written out."""
    scores = [(1, 0.9), (4, 0.8), (2, 0.4), (5, 0.2), (3, 0.1)]
    first = {1: 1, 2: 2, 3: 2, 4: 2, 5: 5}
    whole = {1: 0.9, 2: 0.8 + 0.4 / 2 + 0.1 / 4, 5: 0.2}
    assert conversation_scores(scores, first) == pytest.approx(whole)
    mixed = {turn: (1 - SHARE) * score + SHARE * whole[first[turn]] for turn, score in scores}
    found = beside_their_conversations(scores, first)
    assert dict(found) == pytest.approx(mixed)
    assert [turn for turn, _ in found] == sorted(mixed, key=lambda turn: -mixed[turn])
    assert dict(found)[5] == pytest.approx(0.2)
    many = [(turn, 0.5) for turn in range(9)]
    assert conversation_scores(many, dict.fromkeys(range(9), 0)) == pytest.approx({0: 0.5 * (2 - 1 / 16)})


def test_central_sentences_say_different_things_and_are_few_and_in_order() -> None:
    texts = [
        "Hello there. The cat sleeps on the warm roof.",
        "The cat on the roof? Yes.",
        "The train is late. Which train?",
    ]
    found = central_sentences(texts, lambda text: [w for w in text.lower().strip(".?").split() if len(w) > 3])
    assert len(found) == 3
    assert {"The cat sleeps on the warm roof.", "The train is late."} <= set(found)
    assert found == sorted(found, key=" ".join(texts).index)
    assert central_sentences([], str.split) == []


def test_of_a_long_conversation_few_turns_are_read(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[set[int]] = []

    def reading(db: Connection, ids: set[int]) -> dict[int, Record]:
        read.append(set(ids))
        return read_records(db, ids)

    monkeypatch.setattr(searching, "read_records", reading)
    talk(memory, [f"The roof leaks in room {n}." for n in range(400)], "2026-05-01", run_id="r", user_id="ann")
    found = memory.search("roof", 0, user_id="ann", conversations=1)["conversations"]
    assert [(talk["turns"], len(talk["about"])) for talk in found] == [(400, 3)]
    assert len(read[-1]) <= 301
    assert {1, 400} <= read[-1]


def test_what_conversations_were_about_counts_among_the_tokens(memory: Memory) -> None:
    talk(memory, ROOF, "2026-05-01", run_id="r", user_id="ann")
    wide = memory.search("roof", user_id="ann", conversations=1, max_tokens=2_000)
    assert wide["conversations"]
    least = next(
        most
        for most in range(1, 2_000)
        if memory.search("roof", user_id="ann", conversations=1, max_tokens=most)["tokens"]
    )
    for most in (least, 60, 100):
        found = memory.search("roof", user_id="ann", conversations=1, max_tokens=most)
        assert found["tokens"] <= most
    plain = memory.search("roof", user_id="ann", max_tokens=2_000)
    assert plain["tokens"] < wide["tokens"]
