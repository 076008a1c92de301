"""Of two mails or notes that contradict each other the newer one answers, and the older one is named."""

from __future__ import annotations

from typing import Any

import pytest

from edge.apps.assistant import prompts
from edge.apps.assistant.contradictions import contradictions
from edge.apps.documents.base import Mail

OLD, NEW = "2024-04-02T10:00:00+02:00", "2024-05-03T09:00:00+02:00"


def mailed(hit: Any, number: int, text: str, sent: str) -> Any:
    mail = Mail("Ann <ann@a.org>", "bo@b.org", "Door", sent)
    return hit(number, text, kind="mail", mail=mail, modified="2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("question", "older", "newer"),
    [
        ("What is the door code?", "The door code is 1234.", "The door code is now 5678."),
        ("What is the door code?", "Hello Bo. The door code is 1234. Bye.", "The new door code is 5678. Greetings."),
        ("When does the boiler man come?", "The boiler man comes on Thursday.", "The boiler man comes on Friday."),
        ("When does the boiler man come?", "The boiler man comes at 9:30.", "The boiler man comes at 11:00."),
        ("How many chairs do we need?", "We need nine chairs for the hall.", "We need twelve chairs for the hall."),
        ("Wie ist der Code der Haustür?", "Der Code der Haustür ist 1234.", "Der Code der Haustür ist jetzt 5678."),
        ("Who has the key of the shed?", "The key of the shed has Ann.", "The key of the shed has Bo."),
    ],
)
def test_the_newer_one_replaces_the_older(hit: Any, question: str, older: str, newer: str) -> None:
    for passages in ([(1, older, OLD), (2, newer, NEW)], [(2, newer, NEW), (1, older, OLD)]):
        (found,) = contradictions(question, [mailed(hit, *each) for each in passages])
        assert (found.newer.id, found.older.id) == (2, 1)
        assert found.statement in older
        assert found.text.startswith("Until 3 May 2024: “")
    notes = [hit(1, older, modified=OLD), hit(2, newer, modified=NEW)]
    assert [found.older.id for found in contradictions(question, notes)] == [1]
    assert contradictions(question, [hit(1, older, modified=NEW), hit(2, newer, modified=NEW)]) == [], "of one day"
    assert contradictions(question, [hit(1, older), hit(2, newer, modified=NEW)]) == [], "without a time"
    reports = [hit(1, older, kind="pdf", modified=OLD), hit(2, newer, kind="pdf", modified=NEW)]
    assert contradictions(question, reports) == []


@pytest.mark.parametrize(
    ("question", "older", "newer"),
    [
        ("What is the door code?", "The door code is 1234.", "The gate code is 5678."),
        ("What is the door code?", "Door code is 1234.", "Gate code is 1234."),
        ("What is the door code?", "The door code is 1234.", "The door code is 1234."),
        ("What is the door code?", "The door code is secret.", "The door code is unknown."),
        ("What does the meeting cost?", "The meeting in May costs 50.", "The meeting in June costs 60."),
        ("What is invoice 17?", "Invoice 17 is 300 euros.", "Invoice 18 is 400 euros."),
        ("When is lunch?", "The door code is 1234.", "The door code is now 5678."),
        ("Who called?", "Ann called.", "Bo called."),
    ],
)
def test_other_statements_stay(hit: Any, question: str, older: str, newer: str) -> None:
    assert contradictions(question, [mailed(hit, 1, older, OLD), mailed(hit, 2, newer, NEW)]) == []


def test_of_three_each_older_one_is_replaced_by_the_newest(hit: Any) -> None:
    texts = ["The door code is 1111.", "The door code is 2222.", "The door code is 3333."]
    passages = [mailed(hit, n, text, f"2024-0{n + 1}-02") for n, text in enumerate(texts)]
    assert [(c.newer.id, c.older.id) for c in contradictions("door code?", passages)] == [(2, 1), (2, 0)]


@pytest.mark.parametrize("follows", [True, False])
def test_an_answer_names_the_older_one(steps: Any, hit: Any, generator: Any, follows: bool) -> None:
    said = generator(lambda messages, documents: f"{documents[0].text} [1]", follows_instructions=follows)
    made = steps(said)
    given = [mailed(hit, 1, "The door code is 1234.", OLD), mailed(hit, 2, "The door code is now 5678.", NEW)]
    text = "".join(made.answer(prompts.answer("What is the door code?"), given))
    assert text == "The door code is now 5678. [1]\nUntil 3 May 2024: “The door code is 1234.” [2]"
    assert [citation.id for citation in made.showing.citations.of(text)] == [2, 1]
    assert [document.text for _, documents, _ in said.requests for document in documents] == [given[1].text]
