"""Queries with parts."""

from __future__ import annotations

from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.collection.query import Query
from edge.errors import InputError


def test_a_plain_question_is_looked_up_by_words_and_by_meaning() -> None:
    for text in ("when does it flood", "what is a vec: in C", "see http://lex:80/ please"):
        assert Query.parse(text) == Query(text, (text,), (), text)


def test_parts_go_where_they_belong() -> None:
    query = Query.parse('lex: "spring flood" river vec: when does it rise\nHYDE: It rises in May. vec: how high')
    assert query.words == '"spring flood" river'
    assert query.questions == ("when does it rise", "how high")
    assert query.passages == ("It rises in May.",)
    assert query.asked == "when does it rise\nhow high"
    assert Query.parse("hyde: It rises.").asked == "It rises."
    assert Query.parse("lex: river").questions == ()


@pytest.mark.parametrize("text", ["", " ", "lex:", "lex: river vec: ", "vec: hyde: x"])
def test_nothing_to_look_up_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"empty|nothing follows"):
        Query.parse(text)


def test_each_part_asks_its_own_ranking(collection: Collection, small: Any) -> None:
    collection.index([small.path])
    by_words = collection.search("lex: bread", 10, rerank=False)
    assert [hit.stages.vector_rank for hit in by_words] == [None]
    by_meaning = collection.search("vec: bread", 10, rerank=False)
    assert len(by_meaning) == 3
    assert {hit.stages.lexical_rank for hit in by_meaning} == {None}
    both = collection.search("lex: bread vec: ice hyde: Old ice looks blue.", 10, rerank=False)
    nearest = {hit.path: hit.stages.vector_score for hit in both}
    alone = [
        {hit.path: hit.stages.vector_score for hit in collection.search(query, 10, rerank=False)}
        for query in ("vec: ice", "hyde: Old ice looks blue.")
    ]
    for path, score in nearest.items():  # of several vectors the nearest counts
        assert score == pytest.approx(max(found[path] or 0 for found in alone))
    assert collection.search("lex: bread vec: what needs time", 1)[0].relevance > 0
