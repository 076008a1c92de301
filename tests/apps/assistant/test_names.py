"""Names and numbers of a question, and the passages that hold them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.apps.assistant.evidence import ELSEWHERE, NOWHERE, Name, Naming, Words, names_of
from edge.apps.collection.hits import Hit
from edge.models.evidence import CERTAIN

SURE, UNSURE = True, False


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("When was invoice 2025-005 paid?", {"2025-005": SURE}),
        ("What does shutil.copy2 do in Python 3.8?", {"copy2": SURE, "Python": SURE, "3.8": SURE}),
        ("Did it cost 2,000 euros in week 3?", {"2,000": SURE, "3": UNSURE}),
        ("Which blood group does Solveig have?", {"Solveig": SURE}),
        ("What is Mrs Abara's number? Is it Tobias'?", {"Abara": SURE, "Tobias": SURE}),
        ("Ada wrote: Where is the mill? Bread is there.", {}),
        ("May I call on Monday, and what if I'm late in March?", {"March": UNSURE}),
        ("What is the password of the NAS?", {"NAS": UNSURE}),
        ("Wie viel kostet die Klassenfahrt nach Rom?", {"Klassenfahrt": UNSURE, "Rom": UNSURE}),
        ("How Do I Install Tqdm?", {}),
        ("WHO IS ADA?", {}),
        ("how do i call solveig", {"solveig": UNSURE}),
        ("", {}),
    ],
)
def test_names_of_a_question(question: str, names: dict[str, bool]) -> None:
    passages = ["The boat is called by Solveig, not by me. Is the house old?"]
    assert {name.text: name.sure for name in names_of(question, passages)} == names


def test_a_word_that_a_passage_writes_small_is_no_name() -> None:
    assert names_of("where is the mill", ["We call the old Mill a mill."]) == []
    assert names_of("where is the mill", ["We call the old Mill a ruin."]) == [Name("mill", UNSURE)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("2025-005", "Invoice 2025/005 was paid."),
        ("2,000", "It has 2000 seats."),
        ("2000", "It has 2.000 seats."),
        ("E30", "The code is E 30."),
        ("3B", "flat-3b.md"),
        ("3", "There are three of them."),
        ("Solveig", "solveig's boat"),
        ("Malmö", "We met in Malmo."),
        ("Genghis", "Ghengis Khan"),
        ("Steuererklärung", "Die Erklärung muss bis zum Mai abgegeben werden."),
        ("Wi-Fi", "The WiFi is off."),
        ("ABC", "The American Broadcasting Company began."),
        ("Romans", "A Roman came."),
    ],
)
def test_a_name_is_held_in_another_form(name: str, text: str) -> None:
    assert Words(text).hold(Name(name, SURE))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("2025-005", "Invoice 2025-003 was paid."),
        ("409", "It is number 14090."),
        ("E30", "The code is E24, and 30 more."),
        ("4.2", "Release 4.1"),
        ("3", "There are two of them."),
        ("Rom", "Die Fahrt findet vom 16. bis 20. Juni statt."),
        ("Porto", "from Lisbon"),
        ("NAS", "the new address"),
    ],
)
def test_another_name_is_not_held(name: str, text: str) -> None:
    assert not Words(text).hold(Name(name, SURE))


def test_hits_without_the_names_of_a_question_are_about_something_else(hit: Callable[..., Hit]) -> None:
    mine, hers = hit(1, "Blood group: A.", file=1), hit(2, "Solveig sails.", file=2)
    naming = Naming("Which blood group does Solveig have?", [mine, hers])
    assert naming.hits == [hers]
    assert naming.most(hers) == 1.0
    assert naming.most(mine) == ELSEWHERE < CERTAIN, "shown with a warning"


def test_a_name_of_no_passage_is_not_answered(hit: Callable[..., Hit]) -> None:
    hits = [hit(1, "Invoice 2025-003 was paid in March.", file=1), hit(2, "Solveig pays.", file=2)]
    for question, most in (
        ("When was invoice 2025-005 paid?", NOWHERE),
        ("When did Tobias pay?", NOWHERE),
        ("When did tobias pay?", 1.0),
        ("Did Solveig pay invoice 2025-005?", NOWHERE),
        ("Did Solveig pay 2025-003 of Tobias?", ELSEWHERE),
        ("Wann hat der Tobias bezahlt?", ELSEWHERE),
        ("When was it paid?", 1.0),
    ):
        naming = Naming(question, hits)
        assert naming.most(naming.hits[0]) == most, question


def test_names_are_looked_for_in_the_whole_file_and_its_place(hit: Callable[..., Hit]) -> None:
    """But not in the folders that most files have in common."""
    first = hit(1, "Ada came.", file=1, path="/home/lena/notes/kell/mill.md")
    later = hit(2, "She left in May.", file=1, path="/home/lena/notes/kell/mill.md")
    for question, most in (
        ("When did she leave Ada?", 1.0), ("When did she leave Kell?", 1.0), ("When did Lena leave?", NOWHERE),
    ):  # fmt: skip
        assert Naming(question, [first, later]).most(later) == most, question
