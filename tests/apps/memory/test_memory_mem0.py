"""mem0's public examples, with only the import changed, and facts from a generator; a stand-in plays the chat model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from naive.words import WordEmbedder, WordReranker

import edge
from edge.apps.memory.memory import Memory
from edge.apps.store import models
from edge.config import Config
from edge.errors import CapabilityError, ModelError
from edge.runtimes.generation.base import Message, Piece, Sampling
from tests.apps.memory.conftest import Make


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """`Memory()` takes default models and the user's own place: here, models that know words and a temporary folder."""
    monkeypatch.setattr("platformdirs.user_data_path", lambda *_, **__: tmp_path)
    monkeypatch.setattr(models, "Embedder", lambda *_, **__: WordEmbedder())
    monkeypatch.setattr(models, "Reranker", lambda *_, **__: WordReranker())
    monkeypatch.setattr(Config, "load", classmethod(lambda cls: cls(memory=10**11)))
    yield
    assert {path.name for path in tmp_path.iterdir()} <= {"memory"}


class OpenAI:
    """Answers with the last line of its prompt."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))
        self.systems: list[str] = []

    def _create(self, model: str, messages: list[dict[str, str]]) -> Any:
        self.systems.append(messages[0]["content"])
        message = SimpleNamespace(content=f"You said: {messages[-1]['content']}")
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def test_the_readme_example() -> None:
    openai_client = OpenAI()
    memory = edge.Memory()

    def chat_with_memories(message: str, user_id: str = "default_user") -> str:
        relevant_memories = memory.search(query=message, filters={"user_id": user_id}, top_k=3)
        memories_str = "\n".join(f"- {entry['memory']}" for entry in relevant_memories["results"])
        system_prompt = f"You are a helpful AI. Answer based on query and memories.\nUser Memories:\n{memories_str}"
        messages = [{"role": "system", "content": system_prompt}, {"role": "user", "content": message}]
        response = openai_client.chat.completions.create(model="gpt-5-mini", messages=messages)
        assistant_response: str = response.choices[0].message.content
        messages.append({"role": "assistant", "content": assistant_response})
        memory.add(messages, user_id=user_id)
        return assistant_response

    assert chat_with_memories("I like hiking in the Alps") == "You said: I like hiking in the Alps"
    chat_with_memories("where do I like hiking")
    assert "- I like hiking in the Alps" in openai_client.systems[-1]
    assert len(memory.get_all(filters={"user_id": "default_user"})["results"]) == 4
    memory.close()


def test_the_quickstart_and_operations_examples() -> None:
    """Calls as the documentation of mem0's library has them, and the shapes it shows."""
    m = edge.Memory()
    messages = [
        {"role": "user", "content": "Hi, I'm Alex. I love basketball and gaming."},
        {"role": "assistant", "content": "Hey Alex! I'll remember your interests."},
    ]
    m.add(messages, user_id="alex")
    results = m.search("What do you know about me?", filters={"user_id": "alex"})
    assert {"id", "memory", "user_id", "created_at", "updated_at", "score"} <= set(results["results"][0])

    result = m.add("I prefer vegetarian food", user_id="alex", metadata={"category": "food"}, infer=False)
    assert {"id", "memory", "event"} <= set(result["results"][0])
    memory_id = result["results"][0]["id"]
    assert m.get(memory_id)["memory"] == "I prefer vegetarian food"  # type: ignore[index]
    assert m.get(memory_id=memory_id)["metadata"] == {"category": "food"}  # type: ignore[index]

    all_memories = m.get_all(filters={"user_id": "alex"})
    assert len(all_memories["results"]) == 3
    found = m.search(
        "food preferences",
        filters={"AND": [{"user_id": "alex"}, {"category": {"in": ["food", "diet"]}}]},
        top_k=5,
        threshold=0.0,
        rerank=True,
        explain=True,
    )
    assert [hit["memory"] for hit in found["results"]] == ["I prefer vegetarian food"]

    assert m.update(memory_id=memory_id, text="I am vegan") == {"message": "Memory updated successfully!"}
    assert m.update(memory_id, data="I am vegan now") == {"message": "Memory updated successfully!"}
    history = m.history(memory_id=memory_id)
    assert [(line["event"], line["old_memory"], line["new_memory"]) for line in history] == [
        ("ADD", None, "I prefer vegetarian food"),
        ("UPDATE", "I prefer vegetarian food", "I am vegan"),
        ("UPDATE", "I am vegan", "I am vegan now"),
    ]
    assert m.delete(memory_id=memory_id) == {"message": "Memory deleted successfully!"}
    assert m.delete_all(user_id="alex") == {"message": "Memories deleted successfully!"}
    m.reset()
    assert m.get_all(filters={"user_id": "alex"}) == {"results": []}
    m.close()


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
