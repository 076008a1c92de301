"""Pairs found in a text's own form."""

from __future__ import annotations

import random

from edge.models.training.pairs import cloze, docstrings, permissive, plain, sections, sentences

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
