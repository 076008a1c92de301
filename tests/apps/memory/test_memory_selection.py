"""Selection keeps order, stays within its budget, and takes the most relevant parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.words import WordReranker

from edge.apps.memory.memory import Memory
from edge.apps.memory.selection import LONGEST_SEGMENT, split
from edge.errors import EdgeError, InputError
from edge.text.tokens import expected_tokens, most_tokens


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
