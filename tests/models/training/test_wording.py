"""Queries and pairs made from the form of texts."""

from __future__ import annotations

import random

from edge.models.training.documents import Document
from edge.models.training.pairs import cloze, docstrings, permissive, plain, sections, sentences
from edge.models.training.wording import Passage, corpus, passages, requests

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905


def text(seed: int, count: int = 30) -> str:
    rng = random.Random(seed)
    return " ".join(" ".join(rng.choices(WORDS, k=rng.randint(5, 12))).capitalize() + "." for _ in range(count))


def document(number: int, entry: bool = False) -> Document:
    if entry:
        return Document("words", f"term {number}", (("", text(number, 4)),), entry=True)
    sections = tuple((f"part {n}", text(10 * number + n)) for n in range(3))
    return Document("set", f"the title {number}", sections)


PASSAGES = passages([document(n) for n in range(12)])


def test_passages_hold_every_word_of_their_sections_in_order() -> None:
    held: dict[tuple[str, str], list[str]] = {}
    for passage in PASSAGES:
        held.setdefault((passage.title, passage.heading), []).append(passage.text)
    for n in range(12):
        for heading, whole in document(n).sections:
            assert whole.startswith(" ".join(held[document(n).title, heading]))
    assert {len(p.text.split()) > 100 for p in PASSAGES} == {True, False}
    assert max(len(p.text.split()) for p in PASSAGES) <= 180
    random.seed(5)
    assert passages([document(n) for n in range(12)]) == PASSAGES, "the cut depends on the documents alone"
    assert len({p.key for p in PASSAGES}) == len({p.text for p in PASSAGES})
    assert len({p.document for p in passages([document(n) for n in range(12)], most=1)}) == 1
    endless = passages([Document("set", "t", (("", " ".join(["lake"] * 2000)),))])  # without a full stop
    assert len(endless) > 4
    assert sum(len(p.text.split()) for p in endless) == 2000


def test_queries_ask_for_passages_that_are_there_and_repeat_with_the_seed() -> None:
    made = requests(PASSAGES, random.Random(1), each=2.5)
    assert made == requests(PASSAGES, random.Random(1), each=2.5)
    assert made != requests(PASSAGES, random.Random(2), each=2.5)
    assert 2.0 * len(PASSAGES) < len(made) <= 3.0 * len(PASSAGES)
    for request in made:
        assert 1 <= len(request.query.split()) <= 100
        assert not request.certain
        assert set(request.positive) <= set(range(len(PASSAGES)))
        assert not request.replaced or len(request.positive) == 1
    lengths = [len(request.query.split()) for request in made]
    assert min(lengths) <= 2
    assert max(lengths) >= 20


def test_a_query_that_was_cut_out_of_its_passage_is_not_in_it() -> None:
    """In whole: half of the queries lose words, and one cloze sentence in ten stays in on purpose."""
    made = [r for r in requests(PASSAGES, random.Random(0), each=5) if r.replaced]
    whole = [r for r in made if r.query in PASSAGES[r.positive[0]].text]
    assert len(whole) > 20
    assert sum(r.query in r.replaced for r in whole) < 0.15 * len(whole)
    for request in made:
        assert set(sentences(request.replaced)) <= set(sentences(PASSAGES[request.positive[0]].text))


def test_entries_are_asked_for_by_their_terms() -> None:
    found = passages([document(n, entry=True) for n in range(30)])
    made = requests(found, random.Random(0), each=2)
    named = [r for r in made if found[r.positive[0]].title in r.query]
    assert len(named) > len(found) / 2
    assert any(r.query == found[r.positive[0]].title for r in named)
    assert any(r.query == f"what is {found[r.positive[0]].title}" for r in named)
    assert requests([Passage(0, 0, "{0} {x}", "", text(1, 4), True)], random.Random(0), each=4), "a term with braces"
    shown = [Passage(0, 0, "Lakes", heading, "text", False) for heading in ("", "Lakes", "Depth")]
    assert corpus("d", shown).titles == ["Lakes", "Lakes", "Lakes Depth"]


def test_titles_ask_for_bare_passages_of_their_section() -> None:
    made = [r for r in requests(PASSAGES, random.Random(0), each=5) if r.bare]
    assert made
    for request in made:
        sections = {(PASSAGES[n].document, PASSAGES[n].section) for n in request.positive}
        assert len(sections) == 1
        passage = PASSAGES[request.positive[0]]
        assert set(request.query.split()) <= {*passage.title.split(), *passage.heading.split()}


TEXT = "The first sentence has quite enough words. The second one is different from it. A third one ends the text."


def test_cloze_takes_the_sentence_out_except_where_it_is_kept() -> None:
    for seed in range(20):
        pair = cloze("t", TEXT, random.Random(seed), keep=0.0)
        assert pair.query in sentences(TEXT)
        assert pair.query not in pair.text
        kept = cloze("t", TEXT, random.Random(seed), keep=1.0)
        assert kept.text == TEXT
    assert cloze("t", "Only one sentence stands in here.", random.Random(0)) is None


def test_sections_of_markdown_and_restructured_text() -> None:
    body = "word " * 25
    text = f"# First\n{body}\n```\n# not a heading\n```\n{body}\n\nSecond\n------\n{body}\n\n## Short\ntoo few words\n"
    assert [heading for heading, _ in sections(text)] == ["First", "Second"]
    assert plain("see :func:`~a.b` and ``code``, [text](http://x) <b>bold</b>") == "see a.b and code, text bold"


def test_docstrings_give_the_first_sentence_with_the_rest_or_with_the_code() -> None:
    rest = " ".join(["explained"] * 20)
    source = f'''
def read_table(path):
    """Read a table from a file on disk.

    {rest}
    """

def add_numbers(first, second):
    """Add one number to another one."""
    total = first + second
    for extra in (1, 2, 3, 4, 5, 6, 7, 8):
        total = total + extra
    return total

def _hidden(path):
    """Read a table from a hidden file on disk.

    {rest}
    """
'''
    first, second = docstrings(source)
    assert (first.query, first.title, first.text) == ("Read a table from a file on disk.", "read table", rest)
    assert second.query == "Add one number to another one."
    assert second.text.startswith("total = first + second")
    assert list(docstrings("def broken(:")) == []


def test_only_permissive_licences_pass() -> None:
    assert permissive("MIT")
    assert permissive("License :: OSI Approved :: BSD License")
    assert not permissive("GPL-3.0-or-later")
    assert not permissive("MIT AND LGPL-2.1")
    assert not permissive("")
