"""Which brackets are citations, and which the documents' own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.answer import cited
from edge.apps.assistant.citations import Citation, MarkReader

PASSAGES = (
    "The gate of Oktay [2] improves it over the plain network [12].",
    "The receiver checks that frame[3] equals header[0].",
    "Press the ` key to open it.",
)


def reader(passages: tuple[str, ...] = PASSAGES) -> MarkReader:
    """Reads marks with numbers given as places are first referred to."""
    cited: list[int] = []

    def number(place: int) -> int:
        if place not in cited:
            cited.append(place)
        return cited.index(place) + 1

    return MarkReader(passages, number)


def read(*pieces: str, quoted: bool = False) -> str:
    marks = reader()
    return "".join([*(marks.feed(piece, quoted=quoted) for piece in pieces), marks.finish()])


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("The gate of Oktay [2] improves it [3].", "The gate of Oktay [ 2 ] improves it [1]."),
        ("It improves it over the network [12] [3].", "It improves it over the network [ 12 ] [1]."),
        ("Its gate [12] helps [3].", "Its gate [ 12 ] helps [1]."),
        ("It improves it [13].", "It improves it."),
        ("It checks frame[3] and header[0][2].", "It checks frame[3] and header[0][1]."),
        ("It checks frame[1] [2].", "It checks frame[1] [1]."),
        ("It ends in May[2].", "It ends in May[1]."),
        ("Then x[0] is set [2].", "Then x[0] is set [1]."),
        ("密码是七七四三[2]。", "密码是七七四三[1]。"),
        ("Press the ` key. [3]", "Press the ` key. [1]"),
        ("Press the ` key. [3]\nThen ` again. [2]", "Press the ` key. [1]\nThen ` again. [2]"),
        ("Press ` now.\nThen `a [2]` [3]", "Press ` now.\nThen `a [2]` [1]"),
        ("Type `a[2]` or ``b` [2]``. [3]", "Type `a[2]` or ``b` [2]``. [1]"),
        ("```c\nx = a [2];\ny = b [3];\n```\nSo [3].", "```c\nx = a [2];\ny = b [3];\n```\nSo [1]."),
    ],
)
def test_what_a_model_copied_is_told_from_what_it_cites(written: str, shown: str) -> None:
    assert read(written) == shown
    assert read(*written) == shown, "character by character"


@pytest.mark.parametrize("number", [1, 2])
def test_a_mark_behind_a_quotation_is_a_citation_although_the_document_has_the_same(number: int) -> None:
    marks = reader(("The Ombra is long. [1] It rises at Kell. [2]", "The mill burned down. [1] [2]"))
    text = marks.feed("The mill burned down.", quoted=True) + marks.feed(f" [{number}]") + marks.finish()
    assert text == "The mill burned down. [1]"


def test_a_mark_behind_words_of_ones_own_may_be_the_documents() -> None:
    marks = reader(("The Ombra is long. [1] It rises at Kell. [2]",))
    text = marks.feed("It rises", quoted=True) + marks.feed(" and the Ombra is long. [1]") + marks.finish()
    assert text == "It rises and the Ombra is long. [ 1 ]"


@pytest.mark.parametrize(
    ("quoted", "shown"),
    [
        ("The gate [2] of it [12].", "The gate [ 2 ] of it [ 12 ]."),
        ("Checks frame[3] of 网络[1].", "Checks frame[3] of 网络[ 1 ]."),
        ("The river:\n[4] fake/nel.md:2\n", "The river:\n[ 4 ] fake/nel.md:2\n"),
        ("[99] fake/nel.md:2", "[ 99 ] fake/nel.md:2"),
        ("Ports [80, 443], all [1, 2].", "Ports [80, 443], all [ 1, 2 ]."),
        ("Not [see 1], nor [a-z][0-9].", "Not [see 1], nor [a-z][0-9]."),
    ],
)
def test_no_mark_in_a_quotation_is_a_citation(quoted: str, shown: str) -> None:
    words = [f" {word}" if at else word for at, word in enumerate(quoted.split(" "))]
    marks = reader()
    text = "".join(marks.feed(word, quoted=True) for word in words) + marks.feed(" [3]")
    assert text + marks.finish() == f"{shown} [1]"


def test_a_backtick_in_a_quotation_does_not_hide_the_citation() -> None:
    marks = reader()
    assert marks.feed("Press ` now.", quoted=True) + marks.feed(" [3]") + marks.finish() == "Press ` now. [1]"


@given(st.lists(st.tuples(st.text(alphabet="ab [],12`\n-", max_size=8), st.booleans()), max_size=8))
def test_pieces_do_not_matter(pieces: list[tuple[str, bool]]) -> None:
    whole, parts = reader(("a[1] b [2]",) * 2), reader(("a[1] b [2]",) * 2)
    joined: list[tuple[str, bool]] = []
    for text, quoted in pieces:
        if joined and joined[-1][1] == quoted:
            joined[-1] = (joined[-1][0] + text, quoted)
        else:
            joined.append((text, quoted))
    once = "".join(whole.feed(text, quoted=quoted) for text, quoted in joined) + whole.finish()
    assert "".join(parts.feed(text, quoted=quoted) for text, quoted in pieces) + parts.finish() == once


def test_the_list_of_sources_cannot_be_imitated_by_a_title_or_a_quote() -> None:
    forged = "[4] fake/nel.md:2"
    citation = Citation(1, 1, "a.md", 1, 1, 1, None, f"Title {forged}", f"It rises. {forged}", None, "", None)
    lines = list(cited([citation], quotes=True))
    assert not any("[4]" in line for line in lines)
    assert lines[0].startswith("[1] ")
