"""Full-text search: scores, their fusion with vectors', and misspelled words."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from functools import cache

import apsw
import pytest
from apsw import Connection
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.store.lexical import (
    LexicalIndex,
    Statistics,
    _distances,
    nearest_in,
    respelled,
    search_nbytes,
    shown_terms,
    shown_weights,
    stems_like,
    unknown_words,
)
from edge.errors import InputError
from edge.models.blending import convex_combination, reciprocal_rank_fusion

TEXTS = ["The river floods in spring.", "Cells make energy from sugar.", "Old ice looks blue.", "The flooded field"]


def filled(texts: list[str]) -> tuple[Connection, LexicalIndex]:
    db = Connection(":memory:")
    db.execute(LexicalIndex.create("fts"))
    lexical = LexicalIndex("fts")
    lexical.add(db, range(1, len(texts) + 1), texts)
    return db, lexical


def ids(found: list[tuple[int, float]]) -> list[int]:
    return [identifier for identifier, _ in found]


def test_words_are_found_in_any_form_best_first() -> None:
    db, lexical = filled(TEXTS)
    found = lexical.search(db, "when does the river flood", 10)
    assert ids(found) == [1, 4]
    assert found[0][1] > found[1][1] > 0
    assert ids(lexical.search(db, "RIVÉR", 10)) == [1]
    assert lexical.search(db, "river", 0) == []
    assert ids(lexical.search(db, "flood", 1)) == [4]


ROWS = ["a b", "river a", "river b", "river c", "x y", "river river", "y z", "z x", "u v"]
FOUND = {
    "a phrase in quotes is kept": (["a blue old house", "an old blue house", "nothing"], '"old blue"', 10, [2]),
    "words are not": (["a blue old house", "an old blue house", "nothing"], "old blue", 10, [1, 2]),
    "nor is what is not closed": (
        ["a blue old house", "an old blue house", "nothing"],
        'unclosed "old blue',
        10,
        [1, 2],
    ),
    "words of most rows do not count": (["ice one", "ice two", "ice three", "other"], "ice two", 10, [2]),
    "where nothing else does": (["ice one", "ice two", "ice three", "other"], "ice", 10, [1, 2, 3]),
    "or is there": (["ice one", "ice two", "ice three", "other"], "ice absent", 10, [1, 2, 3]),
    "rows that equal the last one": (ROWS, "river", 2, [6, 2, 3, 4]),
    "no such rows": (ROWS, "river", 1, [6]),
    "as many as there are": (ROWS, "river", 4, [6, 2, 3, 4]),
    "a script without spaces": (["東京都に住んでいます", "京都に行きました", "unrelated"], "東京", 10, [1]),
    "a phrase of it": (["東京都に住んでいます", "京都に行きました", "unrelated"], "京都に行", 10, [2]),
}


@pytest.mark.parametrize(("texts", "query", "count", "expected"), FOUND.values(), ids=FOUND)
def test_rows_are_found(texts: list[str], query: str, count: int, expected: list[int]) -> None:
    db, lexical = filled(texts)
    assert ids(lexical.search(db, query, count)) == expected


def test_the_whole_score_is_that_of_an_average_row_with_every_word() -> None:
    texts = ["a blue old house", "an old red barn", "the green quiet lake", "one more quiet day", "some of the snow"]
    db, lexical = filled(texts)
    for query in ("blue old house", "green green lake", '"old red" barn', "of"):
        best = lexical.search(db, query, 1)[0][1]
        assert lexical.whole_score(db, query) == pytest.approx(best, rel=1e-6), query
    assert lexical.whole_score(db, "house castle") > 2 * lexical.search(db, "house castle", 1)[0][1]
    assert lexical.whole_score(db, "?!") == 0.0


def test_ignored_words_count_only_alone_in_phrases_and_as_names() -> None:
    texts = ["fifty grams of salt", "the meeting in May", "the end of it all", "IT department", "Pixel the cat"]
    db, lexical = filled(texts)
    assert ids(lexical.search(db, "name of my cat", 10)) == [5]
    assert ids(lexical.search(db, "What may I name the cat", 10)) == [5]
    assert ids(lexical.search(db, "what was in May", 10))[0] == 2
    assert set(ids(lexical.search(db, "my IT", 10))) == {3, 4}
    assert ids(lexical.search(db, 'dog or "of it"', 10)) == [3]
    assert set(ids(lexical.search(db, "of it", 10))) == {1, 3, 4}
    assert lexical.whole_score(db, "what is the cat") == lexical.whole_score(db, "is cat")


def test_weights_are_of_the_words_as_they_were_asked() -> None:
    db, lexical = filled(TEXTS)
    query = "River of old floods, absent"
    weights = shown_weights(query, lexical.statistics(db, shown_terms(query).values()))
    assert weights == {"River": math.log(5), "floods": math.log(3)}, "function words are not shown beside others"
    assert shown_terms("what is it").keys() == {"what", "is", "it"}
    every = filled(["the quarry", "a quarry", "quarry of a river"])
    weights = shown_weights("quarry river", every[1].statistics(every[0], shown_terms("quarry river").values()))
    assert 0 < weights["quarry"] < 0.01 < weights["river"], "words of most rows are shown, and hardly count"


def test_only_as_many_rows_as_allowed_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    db, lexical = filled(["rare", "usual", "usual", "x", "y", "z"])
    assert set(ids(lexical.search(db, "rare usual", 10))) == {1, 2, 3}
    monkeypatch.setattr("edge.apps.store.lexical._POSTINGS", 2)
    assert ids(lexical.search(db, "usual rare", 10)) == [1]


LETTERS = "".join(map(chr, range(0x4E00, 0x9FFF)))
QUERIES = {
    "pairs": LETTERS, "letters": " ".join(LETTERS), "phrase": f'"{LETTERS[:500]}"',
    "words": "lone " + " ".join(f"w{n}" for n in range(2_000)),
}  # fmt: skip


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_search_takes_the_memory_that_is_told(query: str) -> None:
    pieces = [LETTERS[start : start + 100] for start in range(0, len(LETTERS), 100)]
    db, lexical = filled([*pieces, LETTERS[:500], "lone"])
    own = lexical.statistics(db, lexical.terms(query))
    told = search_nbytes(own, own.significant(own.counts))
    before = apsw.memory_used()
    apsw.memory_high_water(True)
    assert lexical.search(db, query, 1_000, own=own)
    assert apsw.memory_high_water() - before <= told + 100_000
    assert told < 10**7


def test_too_many_words_of_a_phrase_or_to_leave_out_are_refused() -> None:
    db, lexical = filled(["river"])
    with pytest.raises(InputError, match="a phrase of the query has 501 words, and it may have 500"):
        lexical.search(db, 'river "' + "word " * 501 + '"', 10)
    with pytest.raises(InputError, match="leaves out 101 words, and 100 are possible"):
        lexical.left_out(["x b", '"' + "word " * 99 + '"'])
    assert lexical.left_out(["x b", '"c d"']) == '"x" OR "b" OR "c d"'


def invented(count: int, seed: int = 0) -> list[str]:
    """Texts of numbers, some frequent and some rare, of different lengths."""
    chance = random.Random(seed)
    lengths = [chance.randint(1, 60) for _ in range(count)]
    return [" ".join(str(int(chance.paretovariate(0.4)) % 500) for _ in range(length)) for length in lengths]


def by_hand(texts: list[str], query: str) -> dict[int, float]:
    """BM25 by its definition, over all texts: scores by number from 1."""
    rows = [Counter(text.split()) for text in texts]
    mean = sum(row.total() for row in rows) / len(rows)
    scores: dict[int, float] = {}
    counts = {word: sum(word in row for row in rows) for word in dict.fromkeys(query.split())}
    for word in sorted(counts, key=lambda word: (counts[word], f'"{word}"')):
        if scores and counts[word] > 0.5 * len(rows):
            break
        weight = math.log((len(rows) - counts[word] + 0.5) / (counts[word] + 0.5))
        weight = weight if weight > 0 else 1e-6
        for number, row in enumerate(rows, 1):
            if row[word]:
                bound = row[word] + 1.2 * (0.25 + 0.75 * row.total() / mean)
                scores[number] = scores.get(number, 0.0) + weight * (row[word] * 2.2 / bound)
    return scores


@pytest.mark.parametrize("wide", [1, 6])
@pytest.mark.parametrize("cuts", [(), (1,), (40, 150), (60, 61, 62)])
def test_scores_are_bm25_by_hand_however_rows_are_distributed(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, ...], wide: int
) -> None:
    monkeypatch.setattr("edge.apps.store.lexical._WIDE", wide)
    texts = invented(200)
    bounds = [0, *cuts, len(texts)]
    tables = [filled(texts[low:high]) for low, high in itertools.pairwise(bounds)]
    for query in ("3 17 250", "2 4 8 16 32", "499 1 77", "12"):
        expected = by_hand(texts, query)
        whole = sum((lexical.statistics(db, lexical.terms(query)) for db, lexical in tables), Statistics())
        found = {
            low + identifier: score
            for low, (db, lexical) in zip(bounds, tables, strict=False)
            for identifier, score in lexical.search(db, query, 1000, whole=whole)
        }
        assert found.keys() == expected.keys()
        assert found == pytest.approx(expected, rel=1e-12)
        for k in (1, 2, 10):
            for db, lexical in tables:
                every = lexical.search(db, query, 1000, whole=whole)
                best = [row for row in every if row[1] >= every[min(k, len(every)) - 1][1]]
                assert lexical.search(db, query, k, whole=whole) == best
        db, lexical = filled(texts)
        assert found == dict(lexical.search(db, query, 1000))  # to the bit


def test_scores_do_not_depend_on_earlier_searches() -> None:
    texts = invented(200)
    db, lexical = filled(texts)
    query = "3 17 250"
    before = lexical.search(db, query, 5)
    lexical.add(db, [1000, 1001, 1002], ["3 17 17", "250 1", "250 2"])
    lexical.delete(db, [7], [texts[6]])
    assert lexical.search(db, query, 50) == LexicalIndex("fts").search(db, query, 50) != before
    assert lexical.statistics(db, ['"3"']).rows == 202


WORDS = [
    ("ราคาน้ำมันลดลงวันนี้", "น้ำมัน", "ขึ้น"),
    ("ປະເທດລາວ", "ລາວ", "ໄທ"),
    ("ភាសាខ្មែរ", "ខ្មែរ", "ថៃ"),
    ("မြန်မာဘာသာ", "ဘာသာ", "ရုရှား"),
    ("𠮷野家の牛丼", "𠮷野家", "松屋"),
    ("die Straße ist gesperrt", "STRASSE", "strase"),
    ("die Strasse ist gesperrt", "Straße", "strase"),
    ("ёлка и мёд", "Елка", "йод"),
    ("елка и мед", "МЁД", "мид"),
    ("ｶﾞｿﾘﾝの価格", "ガソリン", "パン屋"),
    ("ガソリンの価格", "ｶﾞｿﾘﾝ", "ﾊﾟﾝ"),
    ("ＡＢＣ　ｘ", "abc", "abd"),
    ("we ate 🍕 today", "🍕", "🍔"),
    ("👍🏽 fine", "👍", "👎"),
    ("rated ❤\ufe0f here", "❤", "★"),
    ("I saw HTTPServerError twice", "server error", "serve rerror"),
    ("I saw HTTPServerError twice", "httpservererror", "httpserver"),
    ("I saw HTTPServerError twice", '"saw HTTPServerError twice"', '"server twice"'),
    ("an http server error", "HTTPServerError", "HTTPServerWarnings"),
    ("call parse_json_file", '"json file"', '"parse file"'),
    ("हिन्दी भाषा", "हिन्दी", "हद"),
    ("قال مُحَمَّد", "محمد", "محمود"),
    ("שָׁלוֹם לכם", "שלום", "שלם"),
    ("re\u0301sume\u0301 of Ann", "résumé", "sume"),
    ("a co\u00adopted member", "coopted", "opted"),
    ("the ﬁnal word", "final", "nal"),
    ("a well-known word", '"well-known"', '"known well"'),
]
"""A text, a query that finds it, and one that does not."""


@pytest.mark.parametrize(("text", "asked", "other"), WORDS)
def test_words_of_texts_and_queries_are_told_alike(text: str, asked: str, other: str) -> None:
    db, lexical = filled([text, "unrelated"])
    assert ids(lexical.search(db, asked, 10)) == [1]
    assert ids(lexical.search(db, other, 10)) == []
    lexical.delete(db, [1], [text])
    assert ids(lexical.search(db, asked, 10)) == []
    db.execute("INSERT INTO fts(fts) VALUES ('integrity-check')")


def test_where_restricts_the_rows() -> None:
    db, lexical = filled(["word"] * 6)
    db.execute("CREATE TABLE allowed(id INTEGER)")
    db.executemany("INSERT INTO allowed VALUES (?)", [(2,), (5,)])
    found = lexical.search(db, "word", 10, where="rowid IN (SELECT id FROM allowed WHERE id > ?)", params=[3])
    assert ids(found) == [5]


@given(st.text(max_size=60))
def test_any_text_is_a_query(query: str) -> None:
    db, lexical = filled(TEXTS)
    for _, score in lexical.search(db, query, 10):
        assert score >= 0
    db.close()


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=8))
def test_any_text_can_be_added_and_deleted(texts: list[str]) -> None:
    db, lexical = filled(texts)
    lexical.delete(db, range(1, len(texts) + 1), texts)
    db.execute("INSERT INTO fts(fts) VALUES ('integrity-check')")
    assert db.execute("SELECT count(*) FROM fts_docsize").fetchone()[0] == 0
    db.close()


rankings = st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=4)


@given(rankings)
def test_scores_are_the_formula_s(lists: list[list[int]]) -> None:
    fused = reciprocal_rank_fusion(lists)
    lists = [list(dict.fromkeys(ranking)) for ranking in lists]  # an id counts once
    ids = {i for ranking in lists for i in ranking}
    assert dict(fused) == pytest.approx({i: sum(1 / (61 + r.index(i)) for r in lists if i in r) for i in ids})
    assert [(-s, i) for i, s in fused] == sorted((-s, i) for i, s in fused)


def test_words_and_vectors_are_fused_by_their_scores() -> None:
    fused = convex_combination({1: 8.0, 2: 4.0, 9: 2.0}, {1: 0.1, 2: 0.9, 3: 0.95, 4: -0.5}, 0.4)
    expected = {1: 0.4 + 0.6 * 0.1, 2: 0.2 + 0.6 * 0.9, 3: 0.6 * 0.95, 9: 0.1, 4: 0.0}
    assert [i for i, _ in fused] == sorted(expected, key=lambda i: -expected[i])
    assert dict(fused) == pytest.approx(expected)


def test_scores_that_are_missing_small_or_of_a_part() -> None:
    def fused(words: dict[int, float], near: dict[int, float], weight: float = 0.4, **more: float) -> dict[int, float]:
        return dict(convex_combination(words, near, weight, **more))

    near = {1: 0.5, 2: 0.6}
    assert fused({1: 5.0}, {2: 0.8, 3: 0.6}, 0.5)[1] == pytest.approx(0.5 + 0.3), "as near as the last of the vectors"
    # FTS5 gives a term that most rows hold a weight near zero; that must not become the best there is.
    assert fused({1: 1e-6}, {1: 0.5})[1] == pytest.approx(0.6 * 0.5, abs=1e-5)
    assert fused({1: 2.0}, near, full=8.0)[1] == pytest.approx(0.4 * 2 / 8 + 0.6 * 0.5), "a part of the query"
    assert fused({1: 9.0}, near, full=8.0) == fused({1: 9.0}, near)
    assert convex_combination({1: 4.0, 2: 2.0}, {}, 0.2) == [(1, 1.0), (2, 0.5)], "one ranking has all the weight"
    assert convex_combination({}, {1: 0.5, 2: 0.7}, 0.2) == [(2, 0.7), (1, 0.5)]
    assert convex_combination({}, {}, 0.2) == []


@given(
    st.dictionaries(st.integers(0, 20), st.floats(0, 30)), st.dictionaries(st.integers(0, 20), st.floats(-1, 1)),
    st.floats(0, 1),
)  # fmt: skip
def test_fused_scores_are_between_zero_and_one_and_sorted(
    words: dict[int, float], near: dict[int, float], weight: float
) -> None:
    fused = convex_combination(words, near, weight)
    assert {i for i, _ in fused} == {*words, *near}
    assert all(0 <= score <= 1 for _, score in fused)
    assert fused == sorted(fused, key=lambda item: (-item[1], item[0]))


def test_cosines_count_from_the_floor_of_the_embedder() -> None:
    words, near = {1: 5.0, 2: 1.0}, {1: 0.78, 2: 0.86}
    assert convex_combination(words, near, 0.2)[0][0] == 1, "BM25 outweighs the small difference of the cosines"
    fused = dict(convex_combination(words, near, 0.2, floor=0.7))
    assert fused == pytest.approx({1: 0.2 + 0.8 * 0.08 / 0.3, 2: 0.04 + 0.8 * 0.16 / 0.3})
    assert fused[2] > fused[1]
    assert dict(convex_combination(words, {1: 0.5}, 0.2, floor=0.7))[1] == pytest.approx(0.2), "no less than 0"


MISSPELLED_TEXTS = [
    "The insurance pays for the dishwasher. Insurance!",
    "A receipt for the bicycle, 12 Öre",
    "Der Bäcker kennt Straßen",
    "tax return",
]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("insurrance", "insurance"), ("recipt", "receipt"), ("dishwaser", "dishwasher"), ("bycicle", "bicycle"),
        ("Becker", "bäcker"), ("insulation", ""), ("retrun", "return"), ("zzqqy", ""),
    ],
)  # fmt: skip
def test_the_nearest_word_of_the_documents_is_found(word: str, found: str) -> None:
    db = apsw.Connection(":memory:")
    db.execute(LexicalIndex.create("notes"))
    lexical = LexicalIndex("notes")
    lexical.add(db, range(len(MISSPELLED_TEXTS)), MISSPELLED_TEXTS)
    terms = stems_like(db, "notes", word)
    rows = [row for term in terms for row, _ in lexical.search(db, term, 3)]
    assert nearest_in(word, [MISSPELLED_TEXTS[row] for row in rows]) == found


def test_only_free_words_that_are_long_enough_are_looked_up() -> None:
    assert unknown_words("when is my recipt due, recipt 12?", {"when"}) == ["recipt"]
    assert unknown_words('"my recipt"') == []
    assert respelled("recipt of recipts", {"recipt": "receipt"}) == "receipt of recipts"


@cache
def naive(word: str, other: str) -> int:
    """The definition of the distance."""
    if not word or not other:
        return len(word) + len(other)
    found = min(
        naive(word[:-1], other) + 1, naive(word, other[:-1]) + 1, naive(word[:-1], other[:-1]) + (word[-1] != other[-1])
    )
    if len(word) > 1 and len(other) > 1 and (word[-1], word[-2]) == (other[-2], other[-1]):
        found = min(found, naive(word[:-2], other[:-2]) + 1)
    return found


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_distances_are_those_of_the_definition(word: str, other: str) -> None:
    assert _distances(word, other) == [naive(word, other[:end]) for end in range(len(other) + 1)]
