"""The passages of several retrievals in one list, and those that fit a context."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from making.random_gguf import RandomModel, words

from edge.apps.assistant.steps import dealt, documents_read, fused, merge_passages
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.openai_http import OpenAIGenerator


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


def test_numbers_say_what_is_too_long(generator: Any) -> None:
    with pytest.raises(InputError) as raised:
        documents_read(generator(str, context=29), MESSAGES, [Document("1", "a b c", "d")], SAMPLING)
    assert [int(number) for number in re.findall(r"\d+", str(raised.value))] == [1, 29, 18, 7, 5]


def test_passages_of_several_collections_are_told_apart(hit: Any) -> None:
    """Numbers count within a collection. Ties are in the order of the numbers, not of their digits."""
    assert [each.id for each in fused([[hit(12, "a")], [hit(5, "b")]])] == [5, 12]
    one, two = hit(1, "a", collection="notes"), hit(1, "b", collection="mail")
    assert fused([[one], [two]]) == [two, one]
    assert merge_passages(4, [one], [two, one]) == [one, two]
    assert dealt(4, [[one], [two], [one]]) == [one, two]
