"""`infer=True`: facts where a generator gives them, the messages themselves where it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.memory.entries import parse_facts
from edge.apps.memory.memory import Memory
from edge.errors import CapabilityError, ModelError
from edge.runtimes.generation.base import Message, Piece, Sampling

Make = Callable[..., Memory]
SAID = [
    {"role": "system", "content": "be nice"},
    {"role": "user", "content": "I moved to Rome", "timestamp": "2023-05-08"},
    {"role": "assistant", "content": "How is Rome?"},
]


class Scripted:
    """Gives scripted answers; raises scripted errors."""

    name = "scripted"
    context = 4096
    follows_instructions = True
    stats = None

    def __init__(self, answer: str | Exception) -> None:
        self.answer = answer
        self.asked: list[Message] = []

    def stream(self, messages: Sequence[Message], sampling: Sampling, **options: Any) -> Iterator[Piece]:
        self.asked = list(messages)
        if isinstance(self.answer, Exception):
            raise self.answer
        for letter in self.answer:
            yield Piece(letter)

    def count(self, text: str) -> int:
        return len(text)

    def close(self) -> None:
        pass


def test_facts_are_stored_instead_of_messages(make: Make) -> None:
    generator = Scripted('Sure!\n```json\n{"facts": ["Ann moved to Rome.", "Ann moved to Rome.", " She left. "]}\n```')
    memory = make(generator=generator)
    result = memory.add(SAID, user_id="ann", infer=True, metadata={"k": 1}, expiration_date="2030-01-01")
    assert [(r["memory"], r["event"]) for r in result["results"]] == [
        ("Ann moved to Rome.", "ADD"), ("She left.", "ADD"),
    ]  # fmt: skip
    assert "extraction" not in result
    stored = memory.get(result["results"][0]["id"]) or {}
    assert stored["metadata"] == {"k": 1}
    assert stored["expiration_date"] == "2030-01-01"
    assert stored["timestamp"].startswith("2023-05-08")
    assert "role" not in stored
    assert generator.asked[1].content == "[8 May 2023] user: I moved to Rome\nassistant: How is Rome?"


def test_facts_were_told_on_the_day_it_was_there(make: Make) -> None:
    generator = Scripted('{"facts": ["Ann moved to Rome."]}')
    said = [
        {"role": "user", "content": "I moved to Rome", "timestamp": "2023-05-08T23:30-07:00"},
        {"role": "assistant", "content": "How is Rome?", "timestamp": "2023-05-08T16:00-07:00"},
    ]
    memory = make(generator=generator)
    memory.add(said, user_id="ann", infer=True)
    (fact,) = memory.get_all(user_id="ann")["results"]
    assert fact["local_timestamp"] == "2023-05-08T23:30:00.000000-07:00"
    assert generator.asked[1].content.startswith("[8 May 2023, 23:30] user: ")


def test_the_instructions_can_be_given(make: Make) -> None:
    generator = Scripted('{"facts": []}')
    assert make(generator=generator).add("x", user_id="ann", infer=True, prompt="Only names.") == {"results": []}
    assert generator.asked[0].content == "Only names."


@pytest.mark.parametrize(
    "answer",
    [
        "I cannot do that.", '{"facts": "none"}', '{"facts": [1, 2]}', '{"facts": ["cut of', '{"facts": [""]}', "[]",
        "",
        '{"facts": ["' + "x" * 5_000 + '"]}', '{"facts": ["\\ud800"]}', "[" * 5_000, '{"facts": ' * 3_000,
        ModelError("it broke"), RuntimeError("it broke otherwise"),
    ],
)  # fmt: skip
def test_what_cannot_be_extracted_is_stored_as_it_came(make: Make, answer: str | Exception) -> None:
    memory = make(generator=Scripted(answer))
    result = memory.add(SAID, user_id="ann", infer=True)
    assert [r["memory"] for r in result["results"]] == ["I moved to Rome", "How is Rome?"]
    assert result["extraction"]["stored"] == "messages"
    assert result["extraction"]["reason"]
    assert len(memory.get_all(user_id="ann")["results"]) == 2


def test_without_a_generator_nothing_is_inferred_in_silence(memory: Memory) -> None:
    with pytest.raises(CapabilityError, match="infer=True needs a generator"):
        memory.add(SAID, user_id="ann", infer=True)
    assert memory.add(SAID, user_id="ann")["results"][0]["memory"] == "I moved to Rome"


@given(before=st.text(max_size=20), facts=st.lists(st.text(min_size=1, max_size=20)), after=st.text(max_size=20))
def test_parsing_never_fails(before: str, facts: list[str], after: str) -> None:
    import json

    found = parse_facts(before + json.dumps({"facts": facts}) + after)
    assert found is None or all(isinstance(fact, str) and fact.strip() for fact in found)
    if "{" not in before and all(fact.strip() for fact in facts):
        assert found is None or found == list(dict.fromkeys(fact.strip() for fact in facts))
