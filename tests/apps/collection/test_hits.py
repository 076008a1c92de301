"""Results: merged, one a file, and the snippets of their passages."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.apps.collection import hits as hits_module
from edge.apps.collection.hits import Hit, Stages, by_file, merge, reranked
from edge.apps.collection.query import SNIPPET_CHARS, folded, snippet, stem
from edge.apps.documents.base import Mail
from edge.runtimes.reranker import Ranked


def hit(identifier: int, file: int = 1, ordinal: int = 0, page: int | None = None, text: str = "") -> Hit:
    return Hit(
        id=identifier, path=f"/f{file}", line_start=10 * ordinal + 1, line_end=10 * ordinal + 9, page=page,
        score=1 / (identifier + 1), snippet="", text=text or f"text {identifier}", title="", kind="text", context="",
        file=file, ordinals=(ordinal, ordinal),
    )  # fmt: skip


def test_a_text_that_occurs_twice_appears_once() -> None:
    found = merge([hit(0, text="the same\ntext"), hit(1, file=2, text="the  same text"), hit(2, file=3)], 10)
    assert [one.id for one in found] == [0, 2]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ([(1, 0.9), (2, 0.5), (1, 0.3), (1, 0.2)], [(0, [2, 3]), (1, [])]),
        ([(1, 0.9), (2, 0.02), (3, 0.0199), (1, 0.001)], [(0, []), (1, [])]),
        ([(1, 0.0199), (2, 0.001), (1, 0.0001)], [(0, [2]), (1, [])]),
        ([(1, None), (2, None), (1, None)], [(0, [2]), (1, [])]),
    ],
)
def test_one_result_a_file_names_the_others_and_leaves_out_the_improbable(
    given: list[tuple[int, float | None]], shown: list[tuple[int, list[int]]]
) -> None:
    hits = [
        replace(hit(number, file, 10 * number), score=score or 0.0, stages=Stages(reranker=score))
        for number, (file, score) in enumerate(given)
    ]
    assert [(one.id, [place.id for place in one.more]) for one in by_file(hits)] == shown


def test_each_mail_of_a_mailbox_is_a_result() -> None:
    mail = Mail("ann", "bo", "cheese", "", "1", "1")
    hits = [replace(hit(number, page=page), mail=mail) for number, page in enumerate((1, 2, 1))]
    assert [one.id for one in by_file(hits)] == [0, 1]


def test_as_many_hits_are_ranked_as_cover_the_wanted_files() -> None:
    asked: list[int] = []

    class Models:
        def rank(self, query: str, passages: list[str], top_k: int, *more: object) -> list[Ranked]:
            asked.append(top_k)
            return []

        def confidence(self, scores: list[float]) -> list[float]:
            return scores

    hits = [hit(number, number // 4, 10 * number) for number in range(60)]
    hits = [replace(one, stages=Stages(fused_score=one.score)) for one in hits]
    for files, top_k in ((False, 5), (True, 5), (True, 1), (True, 50)):
        reranked(cast(Any, Models()), "q", hits, top_k, files=files)
    assert asked == [5, 10, 1, 60]


def naive_merge(hits: list[Hit], limit: int) -> list[Hit]:
    """Every hit compared with every other."""
    merged: list[Hit] = []
    for found in hits:
        for i, one in enumerate(merged):
            (first, last), (start, end) = one.ordinals, found.ordinals
            near = end + 1 == first or last + 1 == start
            if (one.file, one.page) == (found.file, found.page) and near and max(last, end) - min(first, start) < 3:
                parts = (one, found) if one.ordinals < found.ordinals else (found, one)
                merged[i] = replace(
                    one, text="\n".join(part.text for part in parts), line_start=parts[0].line_start,
                    line_end=parts[1].line_end, ordinals=(parts[0].ordinals[0], parts[1].ordinals[1]),
                )  # fmt: skip
                break
        else:
            merged += [found] * (len(merged) < limit)
    return merged


def test_merging_many_hits_looks_at_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    continues = hits_module._continues

    def count(one: Hit, other: Hit) -> bool:
        nonlocal looked
        looked += 1
        return continues(one, other)

    monkeypatch.setattr(hits_module, "_continues", count)
    assert len(merge([hit(i, file=i % 3, ordinal=2 * i) for i in range(3_000)], 3_000)) == 3_000
    assert len(merge([hit(i, ordinal=i) for i in range(3_000)], 3_000)) == 1_000
    assert looked < 10_000


hits = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), max_size=20, unique=True).map(
    lambda places: [hit(i, file, ordinal, ordinal // 6) for i, (file, ordinal) in enumerate(places)]
)


@given(hits, st.integers(1, 10))
def test_merging_keeps_order_limit_and_every_better_text(given_hits: list[Hit], limit: int) -> None:
    found = merge(given_hits, limit)
    assert len(found) <= limit
    assert [one.id for one in found] == sorted(one.id for one in found)
    parts = [text for one in found for text in one.text.split("\n")]
    assert len(parts) == len(set(parts))
    assert set(parts) <= {one.text for one in given_hits}
    assert all(one.ordinals[1] - one.ordinals[0] < 3 for one in found)
    assert found == naive_merge(given_hits, limit)
    if len(found) < limit:
        assert set(parts) == {one.text for one in given_hits}


words = st.sampled_from(["river", "flood", "flooding", "spring", "Bread", "ice.", "the", "a", "x" * 50])
passages = st.lists(words, max_size=120).map(" ".join)


@pytest.mark.parametrize(
    ("one", "other"),
    [("floods", "flooding"), ("River", "rivers"), ("running", "run"), ("study", "studies"), ("café", "cafes")],
)
def test_forms_of_a_word_are_the_same(one: str, other: str) -> None:
    assert stem(one) == stem(other)


def test_a_long_word_is_not_kept() -> None:
    """A thousand words of megabytes would be held outside every lease."""
    word = "ab" * 10**6 + "ing"
    before = sys.getrefcount(word)
    assert stem(word) == "ab" * 10**6
    assert sys.getrefcount(word) == before


def test_short_words_stay() -> None:
    assert stem("is") == "is"
    assert stem("gas") != stem("g")


def marked(text: str, marks: tuple[tuple[int, int], ...]) -> list[str]:
    return [text[start:end] for start, end in marks]


def test_the_stretch_with_most_of_the_query_is_shown() -> None:
    passage = "Nothing of note. " * 30 + "When spring comes\n\tthe river   floods. " + "Other things happen. " * 30
    found = snippet(passage, {"river": 2.0, "flood": 2.0, "spring": 1.0})
    assert "When spring comes the river floods." in found.text
    assert found.text.startswith("… When spring")
    assert found.text.endswith("…")
    assert marked(found.text, found.marks) == ["spring", "river", "floods"]


def test_without_a_word_of_the_query_the_beginning_is_shown() -> None:
    found = snippet("first words " * 50, {"absent": 1.0})
    assert found.text.startswith("first words")
    assert found.marks == ()


def test_a_short_passage_is_shown_whole() -> None:
    found = snippet("  The river\nfloods. ", {"river": 1.0})
    assert found.text == "The river floods."
    assert marked(found.text, found.marks) == ["river"]


@example("river", {"*": 1.0})
@example("The river", {"ri*": 1.0})
@given(passages | st.text(max_size=600), st.dictionaries(words | st.text(max_size=5), st.floats(0.1, 9), max_size=4))
def test_snippets_are_short_lines_of_the_passage_marked_where_the_query_is(
    passage: str, weights: dict[str, float]
) -> None:
    found = snippet(passage, weights)
    assert len(found.text) <= SNIPPET_CHARS
    assert found.text.removeprefix("… ").removesuffix(" …") in " ".join(passage.split())
    stems = {stem(word) for word in weights}
    begun = tuple(folded(word)[:-1] for word in weights if word[1:].endswith("*"))
    for text in marked(found.text, found.marks):
        assert stem(text) in stems or folded(text).startswith(begun)
