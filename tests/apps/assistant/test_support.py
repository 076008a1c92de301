"""From a statement to the line of a passage that says it, and to the part that is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.citations import QUOTE_CHARS, support

RUSSIAN = "Сад.\n\nЯблони сажают осенью. Поливать их надо.\n\nПароль от ворот: берёза. Ключ от сарая лежит под камнем."
CHINESE = "花园的大门密码是七七四三。请不要告诉邻居。\n苹果树在十月种植，每周浇水一次。车库的钥匙在厨房的抽屉里。"
LIST = "# Facts\n\n- The router password is in the folder\n- The gas meter number is 8812\n- The boiler is new"
WRAPPED = "It is dry.\nThe lease of the flat, as long as nobody says anything,\nends on 31 May. Then it rains."
LOG = "\n".join(
    f"2025-03-0{day}T12:00:00 the service number {day}00 of the cluster said event-{day} to nobody"
    for day in range(1, 6)
)


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
def test_every_passage_has_a_line(passage: str, statement: str) -> None:
    at, quote = support(passage, statement)
    assert 0 <= at <= len(passage)
    assert "\n" not in quote
    assert quote in " ".join(passage.split())


def test_of_parts_that_share_as_much_the_shorter_is_shown() -> None:
    passage = "The gate, which nobody has ever seen open in winter, opens. The gate opens. Rain falls."
    assert support(passage, "gate opens")[1] == "The gate opens."


def test_a_quote_may_be_as_long_as_allowed() -> None:
    text = "a" * 130 + " " + "b" * 109
    assert support(text + " c" * 60, "a" * 130)[1] == text + " …"


DOCSTRING = 'def ask():\n    """Asks.\n\n    A failed request is repeated\n    after a pause.\n    """\n'
TABLE = "| Setting | Default |\n|---|---|\n| port | 80 |\n| keep | 180 |"


@pytest.mark.parametrize(
    ("passage", "statement", "line", "quote"),
    [
        (
            DOCSTRING,
            "A failed request is repeated after a pause. [1]",
            3,
            "A failed request is repeated after a pause.",
        ),
        (TABLE, "Setting: keep, Default: 180 [1]", 3, "Setting: keep, Default: 180"),
        ("Rent: 5. Rent: 6.\nIt is due. Rent: 6.", "Rent: 6.", 0, "Rent: 6."),
        (
            "# Ombra\n\nThe Ombra is 214 km long. [1] It rises at Kell.",
            "The Ombra is 214 km long [2].",
            2,
            "The Ombra is",
        ),
        ("# Mill Lane\n\nNo cars.\nMill Lane is closed!", "Mill Lane is closed [1]!", 3, "Mill Lane is closed!"),
        (
            "# Keys\n\nThe keys are\nwith the caretaker. He is old.",
            "The keys are with the caretaker.",
            2,
            "The keys are",
        ),
    ],
)
def test_a_quotation_is_found_where_it_begins(passage: str, statement: str, line: int, quote: str) -> None:
    at, found = support(passage, statement)
    assert passage.count("\n", 0, at) == line
    assert found.startswith(quote)
