"""Citations: marks in texts, quotations, and the passages and parts that they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from making.random_gguf import RandomModel, words

from edge.apps.assistant.answer import cited
from edge.apps.assistant.citations import (
    QUOTE_CHARS,
    Citation,
    Citations,
    MarkReader,
    support,
)
from edge.apps.assistant.steps import dealt, documents_read, fused, merge_passages
from edge.apps.collection.hits import Hit, Stages
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.openai_http import OpenAIGenerator


def read(citations: Citations, passages: list[Hit], *pieces: str) -> str:
    reader = citations.reader(passages)
    return "".join([*(reader.feed(piece) for piece in pieces), reader.finish()])


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("so [1, 2].", "so [1][2]."),
        ("so [1-3].", "so [1][2][3]."),
        ("so [passage 2].", "so [1]."),
        ("so [9].", "so."),
        ("so [2][9].", "so [1]."),
        ("so [see below].", "so [see below]."),
        ("`x[1]` and [1]", "`x[1]` and [1]"),
        ("open [", "open ["),
        ("open [1", "open [1"),
        ("[0] none", " none"),
        ("a [b [1] c]", "a [b [1] c]"),
        ("so [3-1].", "so [1][2]."),
        ("so [2, 2].", "so [1]."),
        ("so [passages 1, 2 and 3].", "so [1][2][3]."),
    ],
)
def test_marks_in_the_forms_models_write_them(hit: Callable[..., Hit], written: str, shown: str) -> None:
    passages = [hit(i, f"Text {i}.") for i in range(3)]
    assert read(Citations(), passages, written) == shown
    assert read(Citations(), passages, *written) == shown, "character by character"


@given(st.lists(st.text(alphabet="ab [],12`\n-", max_size=8), max_size=8))
def test_pieces_do_not_matter(pieces: list[str]) -> None:
    passages = [Hit(i, "p", 1, 1, None, 0.0, "", "t", "", "", "", i, (0, 0)) for i in range(2)]
    assert read(Citations(), passages, *pieces) == read(Citations(), passages, "".join(pieces))


def test_a_passage_that_grows_between_rounds_is_cited_as_it_is_then(hit: Callable[..., Hit]) -> None:
    citations = Citations()
    short = hit(7, "The pump is blue.\nIt hums.", ordinals=(3, 3))
    text = f"{short.text}\nThe warranty is six years.\nAsk Bob."
    grown = hit(7, text, line_start=70, line_end=73, ordinals=(3, 4))
    read(citations, [short], "Ask somebody [1].")
    for passages in ([grown], [short]):  # one that is found alone again takes nothing away
        assert read(citations, passages, "The warranty is six years [1].") == "The warranty is six years [1]."
        (citation,) = citations.of("The warranty is six years [1].")
        assert (citation.line, citation.line_end, citation.quote) == (72, 73, "The warranty is six years.")


def test_what_is_the_documents_own_stays_in_a_prompt(hit: Callable[..., Hit]) -> None:
    citations = Citations()
    passages = [
        hit(i, text) for i, text in enumerate(("It sets frame[1].", "Shown before [2], it seems [12].", "More."))
    ]
    written = "It sets frame[1]. [2] Shown before [2], it seems [12]. `x[1]` [3]"
    shown = read(citations, passages, written)
    assert shown == "It sets frame[1]. [1] Shown before [ 2 ], it seems [ 12 ]. `x[1]` [2]"
    assert citations.prompted(shown, passages) == written
    assert citations.prompted(shown, passages[1:]) == written.replace("[3]", "[2]").replace("[1]. [2]", "[1]. [1]")
    assert citations.prompted("A [1]. B [2].", passages[2:]) == "A. B [1]."


def test_a_citation_points_at_the_line_that_says_it(hit: Callable[..., Hit]) -> None:
    text = "# Rivers\n\nThe Ombra is long.\nIt floods in spring. Fish like it.\nIts bridge is old."
    citations, passages = Citations(), [hit(1, text, score=0.7, stages=Stages(reranker=0.2))]
    answer = read(citations, passages, "The bridge is old [1]. Spring floods come. [1]")
    first = citations.of("The bridge is old [1].")[0]
    assert (first.line, first.quote, first.place) == (14, "Its bridge is old.", "/notes/1.md:14")
    assert first.score == 0.7
    assert citations.of("It floods in spring [1].")[0].line == 13
    assert (citations.of(answer)[0].line_start, citations.of(answer)[0].line_end) == (10, 14)
    paged = Citations()
    read(paged, [hit(1, "Text.", page=7)], "So [1].")
    assert paged.of("So [1].")[0].place == "/notes/1.md p. 7"


ROWS = "name | birthday\n\nname: Ada\nbirthday: 3 May\n\nname: Bo\nbirthday: 9 June\n\nname: Cy\nbirthday: 1 July"


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("name: Bo, birthday: 9 June [1]", 14),
        ("name: Cy, birthday: 1 July [1] name: Ada, birthday: 3 May [1]", 15),
        ("name: Ada, birthday: 3 May [1] name: Cy, birthday: 1 July [1]", 11),
        ("Bo was born on 9 June [1].", 14),
    ],
)
def test_a_row_is_cited_by_its_own_line(hit: Callable[..., Hit], answer: str, line: int) -> None:
    numbers = (10, 10, 11, 11, 11, 14, 14, 14, 15, 15)
    citations, passages = Citations(), [hit(1, ROWS, line_start=10, line_end=15, numbers=numbers)]
    assert citations.of(read(citations, passages, answer))[0].line == line


GARDEN = "Potatoes are planted in May, potatoes and trees.\n\nThe key is under the stone."
HOUSE = "# Household facts\n\n- The router is blue\n- The gas meter number is 8812\n- Bins: Thursday"


@pytest.mark.parametrize(
    ("texts", "answer", "lines"),
    [
        (["The bus is old.\nThe red tram is late.", "The red tram is never late.\nThe bus is late."],
         "The red tram is late [1] and the bus is late [2].", [11, 21]),
        ([HOUSE], "The gas meter number is 8812. [1]", [13]),
        ([GARDEN], "The key is under the stone. [1] Potatoes are planted in May, and trees. [1]", [12]),
        (["Wood burns.\nСнег тает.\nIce melts slowly.", "雪融化。\n木头燃烧。"],
         "- Ice melts slowly\n- Снег тает [1]\n- 木头燃烧。[2]", [11, 21]),
    ],
    ids=["parts of a sentence", "an item of a list", "the first statement with a mark", "lines and sentences"],
)  # fmt: skip
def test_statements_are_cited_by_their_own_words(
    hit: Callable[..., Hit], texts: list[str], answer: str, lines: list[int]
) -> None:
    citations = Citations()
    shown = read(citations, [hit(number, text) for number, text in enumerate(texts, 1)], answer)
    assert [citation.line for citation in citations.of(shown)] == lines


def test_an_answer_without_marks_names_what_it_was_given(hit: Callable[..., Hit]) -> None:
    given = [hit(4, "Text four."), hit(2, "Text two.")]
    found = Citations().of("No marks.", given)
    assert [(c.number, c.id) for c in found] == [(1, 4), (2, 2)]
    assert {"path", "line_start", "line_end", "score", "snippet", "id"} <= set(found[0].to_json())
    assert Citations().of("", given) == ()


def test_a_range_has_at_most_ten_numbers(hit: Callable[..., Hit]) -> None:
    passages = [hit(i, f"Text {i}.") for i in range(12)]
    assert read(Citations(), passages, "so [1-10].") == "so " + "".join(f"[{n}]" for n in range(1, 11)) + "."
    assert read(Citations(), passages, "so [1-11].") == "so [1][2]."


RUSSIAN = "Сад.\n\nЯблони сажают осенью. Поливать их надо.\n\nПароль от ворот: берёза. Ключ от сарая лежит под камнем."
CHINESE = "花园的大门密码是七七四三。请不要告诉邻居。\n苹果树在十月种植，每周浇水一次。车库的钥匙在厨房的抽屉里。"
LIST = "# Facts\n\n- The router password is in the folder\n- The gas meter number is 8812\n- The boiler is new"
WRAPPED = "It is dry.\nThe lease of the flat, as long as nobody says anything,\nends on 31 May. Then it rains."
LOG = "\n".join(
    f"2025-03-0{day}T12:00:00 the service number {day}00 of the cluster said event-{day} to nobody"
    for day in range(1, 6)
)
DOCSTRING = 'def ask():\n    """Asks.\n\n    A failed request is repeated\n    after a pause.\n    """\n'
TABLE = "| Setting | Default |\n|---|---|\n| port | 80 |\n| keep | 180 |"


@pytest.mark.parametrize(
    ("passage", "statement", "line", "quote"),
    [
        (LIST, "The gas meter number is 8812. [1]", 3, "The gas meter number is 8812"),
        (RUSSIAN, "Ключ от сарая под камнем [1].", 4, "Ключ от сарая лежит под камнем."),
        (RUSSIAN, "Яблони сажают осенью", 2, "Яблони сажают осенью."),
        (CHINESE, "钥匙在厨房", 1, "车库的钥匙在厨房的抽屉里。"),
        (CHINESE, "大门的密码", 0, "花园的大门密码是七七四三。"),
        (WRAPPED, "the lease ends on 31 May", 2, "The lease of the flat, as long as nobody says anything, ends"),
        (LOG, "number 400 said event-4", 3, LOG.splitlines()[3]),
        ("Nothing of the first sentence. Short.", "xyzzy", 0, "Nothing of the first sentence."),
        ("???", "why", 0, "???"),
        ("", "why", 0, ""),
        (DOCSTRING, "A failed request is repeated after a pause. [1]", 3,
         "A failed request is repeated after a pause."),
        (TABLE, "Setting: keep, Default: 180 [1]", 3, "Setting: keep, Default: 180"),
        ("Rent: 5. Rent: 6.\nIt is due. Rent: 6.", "Rent: 6.", 0, "Rent: 6."),
        ("# Ombra\n\nThe Ombra is 214 km long. [1] It rises at Kell.", "The Ombra is 214 km long [2].", 2,
         "The Ombra is"),
        ("# Mill Lane\n\nNo cars.\nMill Lane is closed!", "Mill Lane is closed [1]!", 3, "Mill Lane is closed!"),
        ("# Keys\n\nThe keys are\nwith the caretaker. He is old.", "The keys are with the caretaker.", 2,
         "The keys are"),
        ("The gate, which nobody has ever seen open in winter, opens. The gate opens. Rain falls.", "gate opens", 0,
         "The gate opens."),
        ("a" * 130 + " " + "b" * 109 + " c" * 60, "a" * 130, 0, "a" * 130 + " " + "b" * 109 + " …"),
    ],
)  # fmt: skip
def test_line_and_quote(passage: str, statement: str, line: int, quote: str) -> None:
    at, found = support(passage, statement)
    assert passage.count("\n", 0, at) == line
    assert found[: len(quote)] == quote


def test_a_long_part_is_cut_between_words_or_where_there_are_none() -> None:
    _, spaced = support("words and " * 60 + "end.", "words")
    assert spaced.endswith("words and …") or spaced.endswith("words …")
    assert QUOTE_CHARS // 2 < len(spaced) <= QUOTE_CHARS + 2
    _, solid = support("钥" * 300, "钥")
    assert solid == "钥" * QUOTE_CHARS + " …"


@given(st.text(alphabet="ab. \n-。", max_size=60), st.text(alphabet="ab ", max_size=10))
@example("a . .", "")
def test_every_passage_has_a_line(passage: str, statement: str) -> None:
    at, quote = support(passage, statement)
    assert 0 <= at <= len(passage)
    assert "\n" not in quote
    assert quote.replace("`.`", ".") in " ".join(passage.split()), "a mark by itself is quoted as code"


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


def read_marks(*pieces: str, quoted: bool = False) -> str:
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
    assert read_marks(written) == shown
    assert read_marks(*written) == shown, "character by character"


RIVER = "The Ombra is long. [1] It rises at Kell. [2]"


@pytest.mark.parametrize(
    ("passages", "quoted", "own", "shown"),
    [
        ((RIVER, "The mill burned down. [1] [2]"), "The mill burned down.", " [1]", "The mill burned down. [1]"),
        ((RIVER, "The mill burned down. [1] [2]"), "The mill burned down.", " [2]", "The mill burned down. [1]"),
        ((RIVER,), "It rises", " and the Ombra is long. [1]", "It rises and the Ombra is long. [ 1 ]"),
        (PASSAGES, "Press ` now.", " [3]", "Press ` now. [1]"),
    ],
)
def test_a_mark_behind_a_quotation_is_a_citation_and_one_behind_own_words_may_be_the_documents(
    passages: tuple[str, ...], quoted: str, own: str, shown: str
) -> None:
    marks = reader(passages)
    assert marks.feed(quoted, quoted=True) + marks.feed(own) + marks.finish() == shown


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


@given(st.lists(st.tuples(st.text(alphabet="ab [],12`\n-", max_size=8), st.booleans()), max_size=8))
def test_pieces_of_marks_do_not_matter(pieces: list[tuple[str, bool]]) -> None:
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


def test_passages_of_a_later_round_follow_those_of_the_first(hit: Any) -> None:
    first, second, third = (hit(i, f"Text {i}.", score=score) for i, score in enumerate((0.5, 0.3, 0.9)))
    assert merge_passages(2, [first, second], [third, first]) == [first, third]
    assert merge_passages(5, [first, second], [third, first]) == [first, second, third]
    assert merge_passages(2) == []


def test_every_part_of_a_question_has_its_turn(hit: Any) -> None:
    one, two, three, four = (hit(i, f"Text {i}.") for i in range(4))
    assert dealt(3, [[one, two], [one, three], [four]]) == [one, four, two]
    assert dealt(9, [[], [one]]) == [one]


def test_what_several_queries_find_comes_first(hit: Any) -> None:
    one, two, three = (hit(i, f"Text {i}.") for i in range(3))
    assert fused([[one, two]]) == [one, two]
    assert fused([[one, two], [three, two]])[0] == two


MESSAGES = (Message("system", words(12, 1)), Message("user", words(6, 2)))
SAMPLING = Sampling(max_tokens=8)


@pytest.mark.usefixtures("llama")
def test_a_language_model_reads_as_many_as_were_foreseen(tmp_path: Path) -> None:
    file = RandomModel(context=512).write(tmp_path / "small.gguf")
    found = set()
    generator = LlamaGenerator(file, MemoryBudget(1 << 33), cache=tmp_path, threads=1)
    for size in (5, 100, 130, 200):
        documents = [Document(str(i), words(size, i), f"Title {i}") for i in range(6)]
        read = documents_read(generator, MESSAGES, documents, SAMPLING)
        list(generator.stream(MESSAGES, SAMPLING, documents=documents))
        assert generator.stats is not None
        assert read == len(documents) - generator.stats.dropped_documents
        found.add(read)
    assert len(found) > 2, "different numbers of them"
    with pytest.raises(InputError, match=r"none of the 2 passages fits the context of small\.gguf.*512 tokens"):
        documents_read(generator, MESSAGES, [Document("1", words(900, 1)), Document("2", "Short.")], SAMPLING)
    generator.close()


def test_for_a_server_it_is_estimated_as_it_estimates() -> None:
    pytest.importorskip("httpx")
    found = set()
    for context in (45, 60, 75, 4096):
        generator = OpenAIGenerator("http://127.0.0.1:1/v1", context=context)
        documents = [Document(str(i), words(10, i), f"Title {i}") for i in range(4)]
        read = documents_read(generator, MESSAGES, documents, SAMPLING)
        _, _, dropped = generator._turns(MESSAGES, documents, SAMPLING.max_tokens)
        assert read == len(documents) - dropped
        found.add(read)
        generator.close()
    assert len(found) > 2


def test_no_documents_are_all_that_is_read(generator: Any) -> None:
    assert documents_read(generator(str, context=1), MESSAGES, [], SAMPLING) == 0


def test_passages_of_several_collections_are_told_apart(hit: Any) -> None:
    """Numbers count within a collection. Ties are in the order of the numbers, not of their digits."""
    assert [each.id for each in fused([[hit(12, "a")], [hit(5, "b")]])] == [5, 12]
    one, two = hit(1, "a", collection="notes"), hit(1, "b", collection="mail")
    assert fused([[one], [two]]) == [two, one]
    assert merge_passages(4, [one], [two, one]) == [one, two]
    assert dealt(4, [[one], [two], [one]]) == [one, two]
