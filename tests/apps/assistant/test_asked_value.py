"""The kind of value that a question asks for, and the texts that hold one."""

from __future__ import annotations

import pytest

from edge.apps.assistant.asked_value import asked_value, holds_value


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("How much did the boat cost?", "price"), ("What is the rent?", "price"), ("Wie viel kostet es?", "price"),
        ("How many keys are there?", "number"), ("How much is there?", "number"), ("Wie lange dauert es?", "number"),
        ("When does it open?", "time"), ("and until when?", "time"), ("Which day is it?", "time"),
        ("Wann endet die Frist?", "time"), ("What happens when it costs more?", "price"), ("Who pays?", None),
        ("What do I do when a pole breaks?", None), ("bridge", None), ("", None),
    ],
)  # fmt: skip
def test_the_kind_of_value_asked_for(question: str, kind: str | None) -> None:
    assert asked_value(question) == kind


def test_texts_that_hold_values() -> None:
    held = {
        "price": ["It cost 4,000 euros.", "Brake pads 142.50", "Pump: €90", "price_eur: 740", "Entry is free."],
        "number": ["Serves 4.", "There are three keys.", "Es sind zwei."],
        "time": ["on 9 July", "at 21:27", "in 2019", "bis Freitag", "two weeks before", "every Monday"],
    }
    bare = "The class trip to the North Sea is in the north of the sea."
    for kind, texts in held.items():
        assert [text for text in texts if not holds_value(kind, text)] == []  # type: ignore[arg-type]
        assert not holds_value(kind, bare)  # type: ignore[arg-type]
    assert not holds_value("price", "It takes place from 12 to 16 May.")
    assert not holds_value("time", "Train: NR 295 Vienna - Venice")
