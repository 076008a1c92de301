"""A vocabulary is charged, gives way, comes back with the next text, and says the same as before."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from making.synth import synth
from naive.waiting import PATIENCE_S

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded
from edge.models.packed import PackedModel
from edge.models.tokenizer import PairTokenizer, Vocabulary

LIMIT = 64 << 20
DOCS = ["the river floods its valley", "a bridge of grey stone"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedModel]:
    with synth("tiny-bert", tmp_path_factory.mktemp("vocabulary") / "model") as made:
        yield made


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(LIMIT, part=True)


@pytest.fixture
def vocabulary(model: PackedModel, budget: MemoryBudget) -> Iterator[Vocabulary]:
    made = Vocabulary(model, budget, max_tokens=32)
    made.give_way()
    yield made
    made.close()


def test_it_tokenizes_as_its_tokenizer_does(model: PackedModel, vocabulary: Vocabulary) -> None:
    naive = PairTokenizer(model.tokenizer_path, model.spec, sha256=model.tokenizer_sha256)
    for _ in range(2):
        found, expected = vocabulary.pairs("river", DOCS), naive.encode_pairs("river", DOCS, 32)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        found, expected = vocabulary.texts(DOCS), naive.encode_texts(DOCS, max_tokens=32)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        assert vocabulary.length("grey " * 100, 40) == 40
        assert vocabulary.drop(), "the second round loads it again"


def test_it_is_charged_while_it_is_loaded(budget: MemoryBudget, vocabulary: Vocabulary) -> None:
    held = budget.used
    assert held >= vocabulary.nbytes > 0
    assert vocabulary.drop()
    assert budget.used == held - vocabulary.nbytes
    assert not vocabulary.drop(), "there is nothing left to give"
    vocabulary.texts(DOCS)
    assert budget.used == held
    vocabulary.close()
    vocabulary.close()
    assert budget.used == held - vocabulary.nbytes


def test_it_gives_way_to_what_needs_its_memory(budget: MemoryBudget, vocabulary: Vocabulary) -> None:
    with budget.reserve("other", budget.free + vocabulary.nbytes), pytest.raises(BudgetExceeded):
        vocabulary.texts(DOCS)
    vocabulary.texts(DOCS)


def test_it_does_not_give_way_under_another_threads_hands(vocabulary: Vocabulary) -> None:
    tokenizing, done = threading.Event(), threading.Event()

    def hold() -> None:
        with vocabulary._lock:
            tokenizing.set()
            done.wait(PATIENCE_S)

    other = threading.Thread(target=hold)
    other.start()
    assert tokenizing.wait(PATIENCE_S)
    assert not vocabulary.drop()
    done.set()
    other.join()
    assert vocabulary.drop()


def test_a_text_that_must_be_encoded_whole_is_leased_or_refused(model: PackedModel, budget: MemoryBudget) -> None:
    """One word of a million letters is one token, and only its end shows that."""
    vocabulary = Vocabulary(model, budget, max_tokens=32)
    vocabulary.give_way()
    held = budget.used
    with pytest.raises(BudgetExceeded, match="tokenizing"):
        vocabulary.texts(["x" * 10**6])
    assert budget.used == held, "nothing stays leased, and the tables were not dropped while they were in use"
    wide = MemoryBudget(1 << 36, part=True)
    roomy = Vocabulary(model, wide, max_tokens=32)
    roomy.give_way()
    assert len(roomy.texts(["x" * 10**6]).tokens) == 3
    roomy.close()
    vocabulary.close()


def test_many_short_texts_are_leased(model: PackedModel, budget: MemoryBudget) -> None:
    vocabulary = Vocabulary(model, budget, max_tokens=32)
    vocabulary.give_way()
    with budget.reserve("other", budget.free - (1 << 20)), pytest.raises(BudgetExceeded, match="tokenizing"):
        vocabulary.texts(["river"] * 60_000)
    assert len(vocabulary.texts(["river"] * 60_000)) == 60_000
    vocabulary.close()
