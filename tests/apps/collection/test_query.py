"""The parts of queries, what they leave out, and results that are one a file."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import hit_from_json
from edge.apps.collection.query import Query
from edge.errors import InputError


def test_parts_go_where_they_belong() -> None:
    query = Query.parse('lex: "spring flood" river vec: when does it rise\nHYDE: It rises in May. vec: how high')
    assert query.words == '"spring flood" river'
    assert query.questions == ("when does it rise", "how high")
    assert query.passages == ("It rises in May.",)
    assert query.asked == "when does it rise\nhow high"
    assert Query.parse("hyde: It rises.").asked == "It rises."
    assert Query.parse("lex: river").questions == ()
    for text in ('"spring flood"', ' "spring flood" "ice" '):
        assert Query.parse(text) == Query(text, (), (), text)
    for text in ('the "spring flood"', '"?"', '""', '"spring', '"a" b "c"'):
        assert Query.parse(text).questions == (text,)


@pytest.mark.parametrize(
    ("text", "rest", "without"),
    [
        ("river flood -dam", "river flood", ('"dam"',)),
        ("river -dam -weir flood", "river flood", ('"dam"', '"weir"')),
        ("when does the river flood -dam", "when does the river flood", ('"dam"',)),
        ('river -"old mill" -gann*', "river", ('"old mill"', "gann*")),
        ("java -C++ -state-of-the-art", "java", ('"C++"', '"state-of-the-art"')),
        ("river NOT dam", "river", ('"dam"',)),
        ('cats AND NOT "big dogs"', "cats", ('"big dogs"',)),
        ("lex: river -dam vec: when -not here", "river", ('"dam"',)),
    ],
)
def test_words_are_left_out(text: str, rest: str, without: tuple[str, ...]) -> None:
    query = Query.parse(text)
    assert (query.words, query.without) == (rest, without)
    assert "dam" not in query.shown + query.asked


PROSE = [
    "state-of-the-art methods", "- item one - item two", "what does find . -name do in the shell", "ls -l", "tar --all",
    "well - known rivers", "temperatures of -5 degrees", "Differentiated E2f-1, -2, -3 TKO cells do not die.",
    "What do these teachers NOT do?", "why is it NOT working", "the sign DO NOT ENTER", "CREATE TABLE IF NOT EXISTS",
    "words that end in -ing or -ology are nouns", "docker run -it ubuntu", "-dam", "river \u2013dam", "a*b", "3 * 4",
    'the command "find . -name foo"',
    "Harvard - Yale Regatta predates the game by how many years?", "a re-entry of 1990-2000",
    "when does it flood", "what is a vec: in C", "see http://lex:80/ please",
]  # fmt: skip


@pytest.mark.parametrize("text", PROSE)
def test_prose_is_looked_up_by_words_and_by_meaning_and_its_dashes_leave_nothing_out(text: str) -> None:
    assert Query.parse(text) == Query(text, (text,), (), text)


WORDS = {
    "cpp": "templates of C++ explained",
    "sharp": "generics of C# explained",
    "net": "hosting ASP.NET on .NET 8 explained",
    "c": "vitamin C, a net of ropes explained",
    "old": "in 1200 the castle burnt",
    "price": "the pump costs 1,200.50 euros",
    "people": "the town has 1,200 people",
    "bird": "a gannet dives",
    "birds": "gannets breed in colonies",
}


def test_what_a_query_looks_up_and_leaves_out(collection: Collection) -> None:
    collection.add(list(WORDS.values()), ids=list(WORDS))
    for query, names in (
        ("lex: C++", {"cpp"}),
        ("lex: c#", {"sharp"}),
        ("lex: .NET", {"net"}),
        ("lex: 1200", {"old", "price", "people"}),
        ("lex: 1,200", {"old", "price", "people"}),
        ('"the town has 1,200 people"', {"people"}),
        ("gann*", {"bird", "birds"}),
        ("lex: gann* -breed", {"bird"}),
        ("explained -C++ -.NET", {"c", "sharp"}),
        ("explained -without", {"c", "sharp", "cpp", "net"}),
        ('the town -"1,200 people"', WORDS.keys() - {"people"}),
        ("lex: 1200 NOT castle", {"price", "people"}),
    ):
        hits = collection.search(query, 50, rerank=False)
        found = {hit.path for hit in hits}
        if "lex:" in query or query[0] in '"g':
            assert found == names, query
        else:  # by meaning everything is found, but for what is left out
            assert found >= names, query
            assert not found & left_out_of(query), query
        assert {hit.path for hit in collection.candidates(query)} == found, query
        assert all(hit.marks or "lex:" not in query for hit in hits), query


def left_out_of(query: str) -> set[str]:
    """The texts that hold what a query leaves out."""
    words = [word.strip('"').lower() for word in Query.parse(query).without]
    return {name for name, text in WORDS.items() if any(word in text.lower() for word in words)}


def test_what_is_left_out_is_a_filter_too(collection: Collection) -> None:
    collection.add(list(WORDS.values()), ids=list(WORDS))
    found = collection.search("explained", 50, rerank=False, where="without:C++")
    assert {hit.path for hit in found} == WORDS.keys() - {"cpp"}
    with pytest.raises(InputError, match=r"without:C\+\+ is a condition on passages"):
        collection.files("without:C++")


def test_one_result_a_file_is_the_best_of_its_passages(collection: Collection) -> None:
    """Whatever is pruned: the same files in the order of their best passages at full depth."""
    parts = [f"# Part {i}\n\nThe river floods, part {i}. " + f"Word{i} stands here alone. " * 60 for i in range(4)]
    long = "\n\n".join(parts)
    collection.add([long, "The river floods.", "Bread needs time."], ids=["long", "short", "bread"])
    every = collection.search("river floods", 50)
    files = collection.search("river floods", 50, files=True)
    assert len(every) > 3
    assert [hit.path for hit in files] == list(dict.fromkeys(hit.path for hit in every))
    for hit in files:
        assert replace(hit, more=()) in every
        places = [(one.id, one.score) for one in every if one.path == hit.path]
        assert [(hit.id, hit.score), *((place.id, place.score) for place in hit.more)] == places
    assert hit_from_json(json.loads(json.dumps(asdict(files[0])))) == files[0]
    assert files[0].to_json().get("more", []) == [asdict(place) for place in files[0].more]
    assert {hit.path for hit in collection.search("river", 2, files=True, rerank=False)} == {"long", "short"}


@pytest.mark.parametrize("text", ["", " ", "lex:", "lex: river vec: ", "vec: hyde: x"])
def test_nothing_to_look_up_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"empty|nothing follows"):
        Query.parse(text)


@pytest.mark.parametrize("part", ["lex: a ", "vec: a ", "hyde: a ", "lex: a vec: b hyde: c "])
def test_a_query_has_a_bounded_number_of_parts(part: str) -> None:
    Query.parse(part * (32 // part.count(":")))
    for count in (33, 12_000):
        with pytest.raises(
            InputError, match=rf"the query has too many parts: {part.count(':') * count:,}, and it may have 32"
        ):
            Query.parse(part * count)
