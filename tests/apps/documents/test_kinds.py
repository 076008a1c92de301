"""Which extractor a file gets, and which titles programs left and people gave."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.documents.base import Reason, Skipped, meaningful
from edge.apps.documents.file_types import KINDS, choose, is_binary, load
from edge.apps.documents.kinds import Parts, plain

TEXT = b"Just some words.\n"


@pytest.mark.parametrize(
    ("name", "head", "kind"),
    [
        ("notes.MD", TEXT, "markdown"),
        ("README", TEXT, "text"),
        ("Makefile", TEXT, "code"),
        ("unknown.suffix", TEXT, "text"),
        ("no suffix", TEXT, "text"),
        (".txt", TEXT, "text"),
        ("script", b"#!/usr/bin/env python3\n", "code"),
        ("script", b"#!/bin/sh\n", "code"),
        ("page", b"  <!-- a -->\n<!DOCTYPE html>\n", "html"),
        ("page.txt", b"<?xml version='1.0'?><html>", "html"),
        ("page.py", b"<html>", "code"),
        ("paper", b"junk before %PDF-1.7\n", "pdf"),
        ("paper.txt", b"%PDF-1.7\n\0\0", "pdf"),
        ("about.txt", b"A file begins with %PDF-1.7.\n", "text"),
        ("utf16.txt", "\ufeffwords".encode("utf-16-le"), "text"),
        ("latin.txt", "Füße, Straße".encode("cp1252"), "text"),
        ("colours.log", b"\x1b[31mred\x1b[0m\n", "text"),
        ("a", b"<!---->" * 1100 + b"x", "text"),  # in no time
        ("a.txt", b"\x89PNG\r\n\x1a\n\0\0\0", "image"),
        ("a.txt", b"\xff\xd8\xff\xe0", "image"),
        ("a.txt", b"GIF89a\x10\0\x10\0", "image"),
        ("a.txt", b"BM\x9a\x10\0\0\0\0", "image"),
        ("a.txt", b"BMI is weight over height.", "text"),
        ("a.md", b"GIF89a is a format of pictures.", "markdown"),
        ("a.md", b"BM", "markdown"),
    ],
)
def test_kind(name: str, head: bytes, kind: str) -> None:
    assert choose(name, head).name == kind


@pytest.mark.parametrize(
    ("name", "head", "reason"),
    [
        ("a.txt", b"\x7fELF\x02\x01\x01\0\0\0", Reason.BINARY),
        ("a.py", b"text\0text", Reason.BINARY),
        ("a", bytes(range(1, 256)), Reason.BINARY),
        ("a.svg", b"<svg/>", Reason.UNSUPPORTED),
        ("a.rtf", TEXT, Reason.UNSUPPORTED),
        ("a.zip", TEXT, Reason.UNSUPPORTED),
        ("a.dot", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Reason.UNSUPPORTED),
        ("a.ps", b"%!PS-Adobe-3.0", Reason.UNSUPPORTED),
        ("a.xlsb", b"PK\x03\x04....", Reason.UNSUPPORTED),
        ("a.docx", TEXT, Reason.UNSUPPORTED),
        ("a.pdf", TEXT, Reason.UNSUPPORTED),
    ],
)
def test_what_is_not_read(name: str, head: bytes, reason: Reason) -> None:
    with pytest.raises(Skipped) as skipped:
        choose(name, head)
    assert skipped.value.reason is reason


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.extractor)
def test_every_extractor_is_there(kind: object) -> None:
    assert callable(load(kind.extractor))  # type: ignore[attr-defined]


def test_no_suffix_has_two_kinds() -> None:
    suffixes = [suffix for kind in KINDS for suffix in kind.suffixes]
    assert len(suffixes) == len(set(suffixes))


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1))
def test_text_is_not_binary(text: str) -> None:
    assert not is_binary(text.encode())


PLACEHOLDERS = (
    "(anonymous)", "untitled", "Untitled-1", "Untitled document", "Microsoft Word - x.doc", "PowerPoint Presentation",
    "Document1", "Slide 1", "paper.dvi", "TeX output 1999.01.02:1200", "- ", "12", "Unbenannt", "title",
    "Microsoft PowerPoint - Vortrag.ppt [Kompatibilitätsmodus]", "C:\\temp\\letter.doc", "scan0001", "()",
)  # fmt: skip
TITLES = (
    "Draft of the constitution", "Document management", "Titles", "Old ice", "Sheet music of Bach", "2020 report",
    "Microsoft's history", "Apple pie recipes", "LaTeX for beginners", "Untitled Goose Game: a review", "C++",
    "The unknown soldier", "Adobe houses of Taos",
)  # fmt: skip


@pytest.mark.parametrize("title", PLACEHOLDERS + TITLES)
def test_placeholders_say_nothing_and_titles_stay(title: str) -> None:
    assert meaningful(title) == (title if title in TITLES else "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# The garden\n\n**Beans** in *May*; see [beds](b.md).", "The garden Beans in May; see beds."),
        ("Heading\n-------\n\n> Never\n> again", "Heading Never again"),
        ("| bed | crop |\n|-----|:---:|\n| north | beans |", "bed | crop north | beans"),
        ("```sh\nwater #3\n```\n\n---\n\n1. `a` - b\n- c", "water #3 1. `a` - b - c"),
        ("2 * 3 * 4 and snake_case_name, #tag", "2 * 3 * 4 and snake_case_name, #tag"),
    ],
)
def test_a_snippet_of_markdown_has_no_marks(text: str, expected: str) -> None:
    assert plain(text) == expected


class CountedText(str):
    """Counts how often a part of it is taken."""

    taken = 0

    def __getitem__(self, place: Any) -> str:
        self.taken += 1
        return super().__getitem__(place)


@pytest.mark.parametrize(
    "line",
    ["river", "on and on", "- bread", "a | b", "|x|\nword", "```\nx", "key = value", "x = f(y);", "# Head", "Section:"],
)
def test_lines_are_looked_at_a_bounded_number_of_times(line: str) -> None:
    """A word list has a hundred thousand lines without an empty one between them."""

    def taken(count: int) -> int:
        text = CountedText(f"{line}\n" * count)
        Parts(text).plain(0, len(text))
        return text.taken

    assert taken(800) <= 2.2 * taken(400)
