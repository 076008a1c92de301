"""Results where many passages read alike, and queries with parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from naive.program import config_of

from edge.apps.collection.collection import Collection, Together
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.searching import PassageSource, Within, candidates
from edge.apps.verbs.requests import SearchOptions
from edge.apps.verbs.work import look
from edge.errors import BudgetExceeded
from edge.ivf.index import VectorIndex
from edge.models.calibration import Calibration, Forecast
from edge.models.registry import KNOWN, KnownModel
from edge.runtimes.reranker import Reranker
from edge.text.tokens import expected_tokens, fit, most_tokens
from tests.apps.collection.conftest import Folder

LICENCE = "Permission is granted to use the river software, free of charge, to any person obtaining a copy of it.\n"


@pytest.fixture(scope="module")
def copies(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """150 copies of a licence, half of them under names of their own, and three other texts; not to be changed."""
    place = tmp_path_factory.mktemp("copies").resolve()
    folder = Folder(place / "files")
    for number in range(75):
        folder.write(f"{number}/LICENSE", LICENCE)
        folder.write(f"LICENSE-{number}.txt", LICENCE.replace(" ", "  "))
    folder.write("flood.txt", "The river floods in spring.\n")
    folder.write("ice.txt", "Ice on the river is blue.\n")
    folder.write("bread.txt", "Bread needs time and no river.\n")
    with Collection(place / "copies", config=config_of(model_folder, place / "scratch", threads=1)) as collection:
        collection.index(folder.path)
        yield collection


@pytest.mark.parametrize("rerank", [False, True])
def test_results_fit_the_tokens(copies: Collection, rerank: bool) -> None:
    whole = copies.search("river", 20, rerank=rerank)
    counts = [expected_tokens(hit.passage) for hit in whole]
    for most in (1, most_tokens(max(counts)), most_tokens(sum(counts)) - 1, most_tokens(sum(counts))):
        found = copies.search("river", 20, rerank=rerank, max_tokens=most)
        assert most_tokens(sum(expected_tokens(hit.passage) for hit in found)) <= most
        assert [hit.id for hit in found] == [
            hit.id for hit, fits in zip(whole, fit(counts, most), strict=True) if fits
        ]  # fmt: skip
    assert len(found) == len(whole)


def test_a_deeper_search_that_does_not_fit_is_refused(copies: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    search = VectorIndex.search

    def small(self: VectorIndex, db: Any, queries: Any, k: int, **options: Any) -> Any:
        asked.append(k)
        if k > 101:
            raise BudgetExceeded("too much", owner="test", asked=1, free=0, needed=1)
        return search(self, db, queries, k, **options)

    monkeypatch.setattr(VectorIndex, "search", small)
    with pytest.raises(BudgetExceeded, match="too much"):  # fewer results would depend on the memory that is free
        copies.search("permission to use the river software", 5, rerank=False)
    assert asked == [101, 401]


@pytest.mark.parametrize("rerank", [True, False])
def test_phrases_alone_find_only_passages_that_hold_one(collection: Collection, small: Any, rerank: bool) -> None:
    collection.index(small.path)

    def found(query: str) -> set[str]:
        return {Path(hit.path).name for hit in collection.search(query, rerank=rerank)}

    assert found('"zzqqy"') == set()
    assert found('"snow melts"') == {"rivers.md"}
    assert found('"melts snow"') == set()
    assert found('"snow melts" "old ice"') == {"rivers.md", "ice.txt"}
    assert len(found('snow "old ice"')) == 3


def test_the_time_is_for_all_collections_and_depths_together(
    copies: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    given: list[float] = []
    search = VectorIndex.search

    def slow(self: VectorIndex, *arguments: Any, seconds: float, **options: Any) -> Any:
        nonlocal now
        now += 1.0
        given.append(seconds)
        return search(self, *arguments, **options)

    monkeypatch.setattr(VectorIndex, "search", slow)
    monkeypatch.setattr("edge.apps.collection.searching.time", SimpleNamespace(perf_counter=lambda: now))
    words, vector = "permission to use the river software", copies.embed_queries(["river"])
    sources = {"one": copies.source, "two": copies.source}
    candidates(sources, [words], [[vector], [vector]], 5, where=Filters(), within=Within(seconds=10.0))
    assert given == [5.0, 4.5, 8.0, 7.0, 3.0, 5.0]  # each is asked again for what equals the last


def test_a_query_without_copies_is_asked_once(
    collection: Collection, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(110):
        folder.write(f"{number}.txt", f"Text {number} about a river.")
    collection.index(folder.path)
    asked: list[int] = []
    search = VectorIndex.search

    def count(self: VectorIndex, db: Any, queries: Any, k: int, **options: Any) -> Any:
        asked.append(k)
        return search(self, db, queries, k, **options)

    monkeypatch.setattr(VectorIndex, "search", count)
    assert len(collection.search("river", 5, rerank=False)) == 5
    assert asked == [101]  # one more says whether others equal the last


@pytest.mark.parametrize(("top_k", "pool", "asked"), [(5, 60, 60), (60, 60, 120), (20, 30, 60)])
def test_neighbours_that_become_one_leave_enough_to_rerank(
    collection: Collection, folder: Any, monkeypatch: pytest.MonkeyPatch, top_k: int, pool: int, asked: int
) -> None:
    sentences = [f"Sentence {number} of a book tells of a river." for number in range(40)]
    folder.write("book.txt", "\n\n".join(" ".join([sentence] * 20) for sentence in sentences))
    collection.index(folder.path)
    found: list[tuple[int, int]] = []

    def count(sources: Any, queries: Any, vectors: Any, k: int, **options: Any) -> list[list[Hit]]:
        (hits,) = candidates(sources, queries, vectors, k, **options)
        found.append((k, len(hits)))
        return [hits]

    monkeypatch.setattr("edge.apps.collection.collection.candidates", count)
    hits = collection.search("river", top_k, pool=pool)
    assert found == [(asked, min(asked, collection.status().chunks))]
    assert len(hits) <= top_k
    assert any(hit.ordinals[0] < hit.ordinals[1] for hit in hits)


def test_of_copies_the_first_by_path_stands_for_all_whenever_it_came(make: Any, folder: Any) -> None:
    """As it does in an index made at once; a passage that continues it is then merged in both alike."""
    collection = make()
    for name in ("z", "m", "a"):
        folder.write(f"{name}/LICENSE", LICENCE)
        collection.index(folder.path)
    for number in range(5):
        folder.write(f"{number}/LICENSE", LICENCE)
    collection.index(folder.path)
    folder.write("0/LICENSE", "Something else, about bread.\n")
    collection.index(folder.path)
    fresh = make("fresh")
    fresh.index(folder.path)
    for one in (collection, fresh):
        hit = one.search("permission to use the river software", 1, rerank=False)[0]
        assert hit.path == str(folder.path / "1" / "LICENSE")


@pytest.mark.parametrize("neighbours", [1, 2, 30])
def test_only_what_is_shown_is_asked_of_the_reranker_and_more_where_neighbours_become_one(
    collection: Collection, folder: Any, monkeypatch: pytest.MonkeyPatch, neighbours: int
) -> None:
    """With a calibrated margin so small that few candidates beside the wanted ones are judged to the end."""
    for number in range(30 if neighbours < 30 else 1):
        texts = [f"Sentence {number} of a book tells of a river. Part {part}." for part in range(neighbours)]
        folder.write(f"{number}.txt", "\n\n".join(" ".join([part] * 20) for part in texts))
    collection.index(folder.path)
    reranker = collection.reranker
    layers = reranker.model.spec.layers
    zeros = (0.0,) * (layers + 1)
    errors = (math.inf, *([1e-9] * (layers - 1)), 0.0)
    same = Forecast((0.0, *(1.0,) * layers), zeros, zeros, errors, {"ranked": ((1.0, 1.0),)})
    found = Calibration(reranker.model.fingerprint, 1.0, 8, 30, (), same, same, 0.01, ())
    monkeypatch.setattr(reranker, "calibration", found)
    asked: list[int] = []
    evaluations: list[float] = []
    explain = Reranker.explain

    def spy(self: Reranker, query: str, docs: Any, top_k: int | None = None, **options: Any) -> Any:
        ranking = explain(self, query, docs, top_k, **options)
        asked.append(top_k or 0)
        evaluations.append(ranking.stats.evaluations / ranking.stats.evaluations_full)
        return ranking

    monkeypatch.setattr(Reranker, "explain", spy)
    if neighbours == 30:
        monkeypatch.setattr("edge.apps.collection.hits.needed", lambda hits, wanted: wanted)
    hits = collection.search("river", 12)
    if neighbours < 30:
        assert len(asked) == 1
        assert asked[0] == 12 if neighbours == 1 else asked[0] > 12
        assert evaluations[0] < 1
        assert len(hits) == 12
        return
    # Too few were asked for: judging the dropped to the end is paid on top of the first pass, and finds the same.
    assert asked == [12]
    assert evaluations[0] > 1
    best = merge(collection.rerank("river", collection.candidates("river", k=60)), 12)
    assert [hit.id for hit in hits] == [hit.id for hit in best]
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in best])


def test_a_question_finds_passages_in_another_language_with_an_embedder_of_many(
    collection: Collection, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their cosines get back what languages cost, few shared words count little, and a reranker of one language leaves
    them and the questions that it cannot read to retrieval."""
    for name, text in {
        "en": "The river floods the town in spring.", "de": "Der Fluss ist im Winter mit Eis bedeckt, und ist blau.",
        "fr": "Le pain est avec du sel et de la farine.", "none": "Korvo 1912",
    }.items():  # fmt: skip
        folder.write(f"{name}.txt", text + "\n")
    collection.index(folder.path)
    embedder, reranker = collection.embedder.model.name, collection.reranker.model.name
    question, german = "what does Mr Zander say of the river", "was ist in dem Fluss"

    def known(gap: float, *languages: str) -> None:
        one = replace(KNOWN["multilingual-e5-small"], cosine_floor=0.0, language_gap=gap)
        monkeypatch.setitem(KNOWN, embedder, one)
        monkeypatch.setitem(KNOWN, reranker, KnownModel("reranker", "hub", languages=languages))

    def found(asked: str, **options: Any) -> dict[str, Hit]:
        return {Path(hit.path).stem: hit for hit in collection.search(asked, 9, **options)}

    known(0.0, "en")
    plain, judged = (found(question, rerank=rerank) for rerank in (False, True))
    known(1e-9, "en")
    full = found(question, rerank=False)
    known(0.1, "en")
    raised, read = (found(question, rerank=rerank) for rerank in (False, True))
    for name, hit in raised.items():
        bonus = 0.8 * 0.1 / 2 * (name in ("de", "fr"))
        assert hit.stages.fused_score == pytest.approx(min(1.0, (full[name].stages.fused_score or 0) + bonus), abs=1e-6)
        assert full[name].stages.vector_score == plain[name].stages.vector_score
    assert [hit.stages.fused_rank for hit in raised.values()] == [1, 2, 3, 4]
    assert 0 < full["en"].score < plain["en"].score - 0.1, "one word of the question is not the whole of it"
    asked: list[Any] = []
    explain = Reranker.explain

    def spy(self: Reranker, query: str, docs: Sequence[str], *args: Any, unread: Any = None, **options: Any) -> Any:
        asked.append(unread and {name for name, no in zip(docs, unread, strict=True) if no})
        return explain(self, query, docs, *args, unread=unread, **options)

    monkeypatch.setattr(Reranker, "explain", spy)
    everything = {hit.passage for hit in read.values()}
    found(question)
    found(german)
    known(0.1)
    found(german)
    known(0.0, "en")
    assert found(question) == judged
    assert asked == [{raised["de"].passage, raised["fr"].passage}, everything, None, None]


def test_what_each_part_finds_is_leased(copies: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}
    reserve = copies.budget.reserve

    def noted(owner: str, nbytes: int, **options: Any) -> Any:
        asked[owner] = nbytes
        return reserve(owner, nbytes, **options)

    monkeypatch.setattr(copies.budget, "reserve", noted)
    copies.search("vec: river " * 32, 5, rerank=False)
    several = asked["found passages"]
    copies.search("vec: river", 5, rerank=False)
    assert several == 32 * asked["found passages"] >= 32 * 300 * 153  # every passage is found by every part


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


def test_a_misspelled_word_is_searched_for_as_the_passages_spell_it(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.add(["The insurance premium is 128 euros.", "Bread needs flour and time."])
    together = Together({"": collection})
    query = "insurrance of blorfle"
    assert together.spelled(query) == {"insurrance": "insurance"}
    assert together.spelled("insurance of bread") == {}, "the passages hold these"
    assert together.spelled('"insurrance"') == {}, "a phrase is searched as it is"
    marked = {hit.text[:13]: bool(hit.marks) for hit in collection.search(query, rerank=False)}
    assert marked == {"The insurance": True, "Bread needs f": False}
    asked: list[str] = []
    resembling = PassageSource.resembling
    monkeypatch.setattr(PassageSource, "resembling", lambda self, word: asked.append(word) or resembling(self, word))
    assert look(together, query, SearchOptions(rerank=False)).hits
    assert sorted(asked) == ["blorfle", "insurrance"], "each is looked up once"
    with collection.database.write() as db:
        db.execute("UPDATE files SET due = 1")
    assert together.spelled(query) == {}, "a file that is not read yet may hold the word"


def test_several_collections_spell_as_one_that_holds_all_texts(make: Any) -> None:
    """Two words are equally near. The one that more passages of all collections hold is taken."""
    texts = ["The cable is loose.", "A camel drinks.", "The camel sleeps."]
    first, second, one = (make(name) for name in ("first", "second", "one"))
    first.add(texts[:1])
    second.add(texts[1:])
    one.add(texts)
    assert Together({"": one}).spelled("cabel") == {"cabel": "camel"}
    assert Together({"a": first, "b": second}).spelled("cabel") == {"cabel": "camel"}


def test_a_query_of_which_no_word_is_known_is_nonsense(collection: Collection) -> None:
    together = Together({"": collection})
    assert not together.is_nonsense("zzqqy blorfle"), "nothing is indexed yet"
    collection.add(["The insurance premium is 128 euros.", "Bread needs flour and time."])
    assert together.is_nonsense("zzqqy blorfle")
    assert not together.is_nonsense("zzqqy bread"), "a passage holds a word"
    assert not together.is_nonsense("zzqqy 128"), "a number is a word"
    assert not together.is_nonsense("a"), "the embedder knows the word"
    assert look(together, "zzqqy blorfle", SearchOptions()).hits == []
    assert look(together, "zzqqy bread", SearchOptions()).hits
