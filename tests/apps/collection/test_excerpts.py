"""Reading indexed documents by path, line, number and pattern."""

from __future__ import annotations

from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.collection.excerpts import NotIndexed, read_excerpts
from edge.errors import InputError

CODE = "\n".join(f"def f{i}():\n    return {i}\n\n" for i in range(60))


@pytest.fixture
def filled(collection: Collection, folder: Any) -> Collection:
    folder.write("a/notes.md", "# One\n\nFirst line.\n\n\n\n\nSixth, after a gap.\n\n## Two\n\nThe end.\n")
    folder.write("b/notes.md", "Another.\n")
    folder.write("code.py", CODE)
    folder.write("empty.txt", "")
    collection.index([folder.path])
    return collection


def lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def test_lines_are_those_of_the_file(filled: Collection, folder: Any) -> None:
    path = folder.path / "code.py"
    every = CODE.split("\n")
    for first, last in ((1, 3), (50, 57), (200, 239)):
        (excerpt,) = read_excerpts(filled.database, [f"{path}:{first}-{last}"])
        assert lines(excerpt.text) == [line for line in every[first - 1 : last] if line]
        assert first <= excerpt.line_start <= excerpt.line_end <= last
    (excerpt,) = read_excerpts(filled.database, [f"{path}:17"], lines=2)
    assert excerpt.text.strip() == "def f4():\n    return 4"
    (excerpt,) = read_excerpts(filled.database, ["a/notes.md:8-8"])
    assert (excerpt.text, excerpt.line_start) == ("Sixth, after a gap.", 8)
    (whole,) = read_excerpts(filled.database, ["code.py"])
    assert lines(whole.text) == [line for line in every if line]
    assert whole.continues_at is None


def test_passages_patterns_and_descriptions(filled: Collection, folder: Any) -> None:
    filled.describe(folder.path / "a", "Notes of  the river.")
    filled.describe(folder.path, "Everything.")
    (hit,) = filled.search("lex: sixth", 1)
    assert hit.description == "Everything.\nNotes of the river."
    assert hit.line == 8
    assert hit.citation.endswith("notes.md:8")
    (excerpt,) = read_excerpts(filled.database, [f"#{hit.id}"])
    assert excerpt.text == hit.text
    assert excerpt.description == hit.description
    both = read_excerpts(filled.database, ["**/notes.md"])
    assert [excerpt.path for excerpt in both] == [str(folder.path / name / "notes.md") for name in "ab"]
    filled.describe(folder.path / "a", "")
    assert filled.descriptions() == {str(folder.path): "Everything."}
    with pytest.raises(InputError, match="at most 2,000"):
        filled.describe(folder.path, "x" * 3000)


def test_bytes_are_limited_and_the_next_call_goes_on(filled: Collection) -> None:
    seen: list[str] = []
    target = "code.py"
    for _ in range(50):
        (excerpt,) = read_excerpts(filled.database, [target], max_bytes=200)
        assert len(excerpt.text.encode()) <= 200
        seen += lines(excerpt.text)
        if excerpt.continues_at is None:
            break
        target = f"code.py:{excerpt.continues_at}"
    assert seen == lines(CODE)
    found = read_excerpts(filled.database, ["code.py", "a/notes.md", "b/notes.md"], max_bytes=2_300)
    assert sum(len(excerpt.text.encode()) for excerpt in found) <= 2_301


def test_lines_are_limited_and_the_next_call_goes_on(filled: Collection) -> None:
    with filled.database.read() as db:
        (passage,) = db.execute("SELECT max(chunks.id) FROM chunks JOIN files ON files.id = file WHERE kind = 'code'")
    (whole,) = read_excerpts(filled.database, [f"#{passage[0]}"])
    (begun,) = read_excerpts(filled.database, [f"#{passage[0]}"], lines=2)
    assert lines(begun.text) == lines(whole.text)[:2]
    assert begun.continues_at is not None
    assert begun.line_end < begun.continues_at <= whole.line_end
    seen: list[str] = []
    target: str | None = "code.py"
    while target is not None:
        (excerpt,) = read_excerpts(filled.database, [target], lines=7)
        assert excerpt.line_end <= excerpt.line_start + 6
        seen += lines(excerpt.text)
        target = None if excerpt.continues_at is None else f"code.py:{excerpt.continues_at}"
    assert seen == lines(CODE)
    (asked,) = read_excerpts(filled.database, ["code.py:3-9"], lines=100)
    assert (asked.line_end, asked.continues_at) == (9, None)


def test_a_line_that_is_too_long_is_not_read_again_and_again(collection: Collection, folder: Any) -> None:
    words = [f"word{number}" for number in range(3_000)]
    folder.write("long.txt", " ".join(words) + "\nThe end.\n")
    folder.write("only.txt", " ".join(words))
    collection.index(folder.path)
    for most in (5, 2_000, 20_000):
        (excerpt,) = read_excerpts(collection.database, ["long.txt"], max_bytes=most)
        assert (excerpt.line_end, excerpt.continues_at, excerpt.cut) == (1, 2, True)
        assert " ".join(words).startswith(" ".join(excerpt.text.split()))
        (excerpt,) = read_excerpts(collection.database, ["only.txt"], max_bytes=most)
        assert (excerpt.continues_at, excerpt.cut) == (None, True)
    (excerpt,) = read_excerpts(collection.database, ["long.txt"])
    assert (excerpt.continues_at, excerpt.cut) == (None, False)
    assert excerpt.text.split() == [*words, "The", "end."]


def test_what_cannot_be_read_says_so(filled: Collection, folder: Any) -> None:
    for target, said in (
        ("notes.md", "may be"), (str(folder.path / "empty.txt"), "is not indexed"), ("code.py:9-2", "names no lines"),
        ("code.py:0", "names no lines"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            read_excerpts(filled.database, [target])
    for target in ("absent.md", "#999999", "*.xyz", "/"):
        with pytest.raises(NotIndexed):
            read_excerpts(filled.database, [target])
    with pytest.raises(InputError, match="at least 1"):
        read_excerpts(filled.database, ["code.py"], max_bytes=0)


@pytest.mark.parametrize("name", ["caf\udce9.md", "a\0b", "docs/\ud800*", "#" + "9" * 30, "~\0", "a:" + "9" * 30])
def test_a_name_that_no_file_can_have_is_not_indexed(filled: Collection, name: str) -> None:
    with pytest.raises(InputError):
        read_excerpts(filled.database, [name])
