"""The assistant over a real collection: tiny random models, sentences picked or a random language model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from making.random_gguf import RandomModel, words
from naive.program import config_of, write_tiny_models
from naive.waiting import PATIENCE_S

from edge import Answer, Assistant, Collection
from edge.apps.assistant.answer import NOT_FOUND, AnswerStats, notices
from edge.apps.assistant.assistant import AnswerStream, Turn, recent, standalone
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.reading import PassageReader
from edge.apps.verbs.requests import AskOptions
from edge.config import Config
from edge.errors import BudgetExceeded, CapabilityError, InputError, ModelError, StorageError
from edge.kv_cache.backend import LearnedCosts
from edge.trace import Trace

TEXTS = {
    "ombra": "The river Ombra floods its valley in spring.\nThe snow melts then.",
    "bridge": "The bridge over the Ombra was built in 1821 by Anna Berg.",
    "bread": "Bread needs flour, water, salt and time.",
}
ANY = AskOptions(min_relevance=0.0)
"""The reranker's weights are random: what it says about relevance means nothing."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_models(tmp_path_factory.mktemp("models"))
    RandomModel().write(folder / "tiny.gguf")
    return folder


@pytest.fixture
def config(models: Path, tmp_path: Path) -> Config:
    return config_of(models, tmp_path / "cache", threads=1)


@pytest.fixture
def collection(config: Config, tmp_path: Path) -> Iterator[Collection]:
    with Collection(tmp_path / "notes", config=config, trace=Trace(events=True)) as made:
        made.add(list(TEXTS.values()), ids=list(TEXTS))
        yield made


def test_sentences_are_picked_and_cited(collection: Collection) -> None:
    with Assistant(collection, options=ANY) as assistant:
        answer = assistant.ask("When does the river flood?")
    assert answer.found
    assert answer.citations
    sources = " ".join(TEXTS.values()).replace("\n", " ")
    for sentence in answer.text.split("]")[:-1]:
        assert sentence.rpartition("[")[0].strip() in sources, "nothing is made up"
    assert [c.number for c in answer.citations] == list(range(1, len(answer.citations) + 1))
    assert {c.path for c in answer.citations} <= set(TEXTS)
    assert answer.stats.generator == "extractive"
    assert answer.stats.rounds == 1
    assert 0 < answer.stats.peak_resident < answer.stats.limit


def test_brackets_of_the_documents_are_no_citations(config: Config, tmp_path: Path) -> None:
    said = "The receiver checks that frame[3] equals the ` sum, as Oktay [1] and others [7] do."
    with Collection(tmp_path / "papers", config=config) as made:
        made.add([said], ids=["paper"])
        with Assistant(made, options=ANY) as assistant:
            answer = assistant.ask("What does the receiver check?")
    spaced = said.replace("Oktay [1]", "Oktay [ 1 ]").replace("others [7]", "others [ 7 ]")
    assert answer.text.endswith(f"{spaced} [1]"), "and cannot be mistaken for one"
    assert [(c.number, c.path) for c in answer.citations] == [(1, "paper")]


def test_below_the_floor_the_documents_do_not_say(collection: Collection) -> None:
    with Assistant(collection, options=AskOptions(min_relevance=1.0)) as assistant:
        answer = assistant.ask("Which volcano erupted?")
    assert not answer.found
    assert answer.text == NOT_FOUND
    assert answer.citations == ()
    assert answer.stats.best_relevance is not None
    assert answer.stats.best_relevance < 1.0
    assert answer.to_json()["stats"]["found"] is False
    assert 1 <= len(answer.nearest) <= 3
    assert answer.to_json()["nearest"] == answer.nearest
    assert f"nearest to the question: {', '.join(answer.nearest)}" in list(notices(answer))


def test_an_empty_collection_holds_no_answer(config: Config, tmp_path: Path) -> None:
    with Collection(tmp_path / "empty", config=config) as empty, Assistant(empty, options=ANY) as assistant:
        assert not assistant.ask("What is here?").found


@pytest.mark.parametrize(
    ("question", "told"), [("", "empty"), ("  \n", "empty"), ("🎉", "holds no word"), ("river " * 60, "359 characters")]
)
def test_a_question_that_cannot_be_answered_is_refused(collection: Collection, question: str, told: str) -> None:
    with Assistant(collection) as assistant, pytest.raises(InputError, match=told):
        assistant.ask(question)


def test_what_cannot_be_opened_is_said(collection: Collection, config: Config, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no pipeline 'magic'; there are plain, hyde"):
        Assistant(collection, pipeline="magic")
    with pytest.raises(CapabilityError, match="hyde asks the generator"):
        Assistant(collection, pipeline="hyde")
    with pytest.raises(StorageError, match="edge index"):
        Assistant(tmp_path / "nothing", config=config)
    with pytest.raises(ModelError, match=r"missing\.gguf"):
        Assistant(collection, llm=tmp_path / "missing.gguf")
    (tmp_path / "short.gguf").write_bytes((Path(config.models_dir) / "tiny.gguf").read_bytes()[:-1000])
    with pytest.raises(ModelError, match="truncated"):
        Assistant(collection, llm=tmp_path / "short.gguf")
    with Assistant(collection, options=ANY) as assistant:
        assert assistant.ask("When does the river flood?").found, "nothing of that did any harm"


def test_ended_early_the_answer_is_what_was_written(collection: Collection) -> None:
    with Assistant(collection, options=ANY) as assistant:
        stream = assistant.stream("When does the river flood?")
        first = next(stream)
        stream.cancel()
        answer = stream.answer
        assert answer.text == first.rstrip()
        assert answer.stats.interrupted
        with assistant.stream("When does the river flood?") as stream:
            next(stream)
        assert stream.answer.stats.interrupted, "left early"
        assert not assistant.ask("When does the river flood?").stats.interrupted


def test_one_answer_is_written_at_a_time(collection: Collection) -> None:
    with Assistant(collection, options=ANY) as assistant:
        stream = assistant.stream("When does the river flood?")
        next(stream)
        with pytest.raises(InputError, match="still being written"):
            assistant.ask("And another?")
        found: list[Answer] = []
        other = threading.Thread(target=lambda: found.append(assistant.ask("When does the river flood?")))
        other.start()
        other.join(0.2)
        assert other.is_alive(), "another thread waits"
        whole = stream.answer
        other.join(PATIENCE_S)
        assert found[0].text == whole.text


def test_a_follow_up_is_understood_from_what_was_said(collection: Collection) -> None:
    with Assistant(collection, options=replace(ANY, rerank=False)) as assistant:
        chat = assistant.chat()
        chat.ask("Who built the bridge over the Ombra?")
        answer = chat.ask("When was it built?")
    assert answer.stats.question == "Who built the bridge over the Ombra, When was it built?"
    assert [turn.asked for turn in chat.turns] == ["Who built the bridge over the Ombra?", "When was it built?"]


def test_a_follow_up_that_names_nothing_is_judged_by_what_was_said(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    read = PassageReader.read

    def watched(self: PassageReader, question: str, *given: Any) -> Any:
        judged.append(question)
        return read(self, question, *given)

    with Assistant(collection, options=replace(ANY, rerank=False)) as assistant:
        chat = assistant.chat()
        chat.ask("When does the river flood?")
        monkeypatch.setattr(PassageReader, "read", watched)
        chat.ask("And why?")
        assert set(judged) == {"When does the river flood, And why?"}
        judged.clear()
        chat.ask("And who built the bridge?")
    assert set(judged) == {"And who built the bridge?"}
    turns, steps = [turn("Who built the bridge?", "Anna Berg.")], SimpleNamespace(writes=False, relevance=lambda _: 0.9)
    assert standalone("Why?", turns, cast(Any, steps)) == "Who built the bridge, Why?"


def test_a_failed_turn_is_not_part_of_the_conversation(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise ModelError("the model fell over")

    with Assistant(collection, options=ANY) as assistant:
        chat = assistant.chat()
        monkeypatch.setattr(assistant.generator, "stream", broken)
        with pytest.raises(ModelError, match="fell over"):
            chat.ask("Who built the bridge?")
        assert chat.turns == []
        monkeypatch.undo()
        assert chat.ask("Who built the bridge?").found


def test_a_collection_that_is_indexed_meanwhile_goes_on_answering(collection: Collection, config: Config) -> None:
    with Assistant(collection.path, config=config, options=ANY) as assistant:
        stream = assistant.stream("When does the river flood?")
        first = next(stream)
        collection.delete(list(TEXTS))
        collection.add(["Something else entirely is written here."], ids=["new"])
        answer = stream.answer
        assert answer.text.startswith(first.rstrip())
        assert {c.path for c in answer.citations} <= set(TEXTS), "what was found before stays"
        assert {c.path for c in assistant.ask("When does the river flood?").citations} == {"new"}


@pytest.fixture
def long_texts(config: Config, tmp_path: Path) -> Iterator[Collection]:
    """Texts that are a few tokens long for the tiny language model."""
    with Collection(tmp_path / "long", config=config) as made:
        made.add([words(30, seed) for seed in range(4)], ids=[f"text {i}" for i in range(4)])
        yield made


@pytest.mark.usefixtures("llama")
def test_a_language_model_answers_the_same_with_and_without_reused_states(long_texts: Collection, models: Path) -> None:
    question, options = words(5, 99), AskOptions(min_relevance=0.0, max_tokens=12)
    texts = []
    with Assistant(long_texts, llm=models / "tiny.gguf", options=options, kv_cache=False) as assistant:
        plain = assistant.ask(question)
        texts += [plain.text, assistant.ask(question).text]
    assert plain.stats.cached_tokens == 0
    with Assistant(long_texts, llm=models / "tiny.gguf", options=options) as assistant:
        cold, warm = assistant.ask(question), assistant.ask(question)
        texts += [cold.text, warm.text]
        tree = assistant.generator.tree  # type: ignore[attr-defined]
        costs = tree._costs
        assert costs.estimate(0, 100) > 0, "states are ranked by what computing took"
        assert {node.usage.cost > 0 for node in tree._states.host} == {True}
    assert LearnedCosts(costs.fingerprint, costs._path).estimate(0, 100) == costs.estimate(0, 100), "and it is kept"
    assert cold.stats.cached_tokens == 0
    assert warm.stats.cached_tokens > 100, "documents were not computed again"
    with Assistant(long_texts, llm=models / "tiny.gguf", options=options) as assistant:
        again = assistant.ask(question)
        texts.append(again.text)
    assert again.stats.cached_tokens > 100, "nor after a restart"
    assert set(texts) == {plain.text}
    assert plain.text


@pytest.mark.usefixtures("llama")
def test_states_are_moved_where_answers_are_shared(long_texts: Collection, models: Path, config: Config) -> None:
    for generation, states, moves in (
        ("exact", "auto", False), ("shared", "auto", True), ("shared", "exact", False), ("exact", "anywhere", True),
    ):  # fmt: skip
        chosen = replace(config, generation=generation, states=states)
        with Assistant(long_texts.path, llm=models / "tiny.gguf", config=chosen) as assistant:
            assert assistant.generator.tree.anywhere is moves  # type: ignore[attr-defined]


@pytest.mark.usefixtures("llama")
@pytest.mark.parametrize("kv_cache", [True, False])
def test_closing_ends_an_answer_that_nobody_read_to_its_end(
    long_texts: Collection, models: Path, kv_cache: bool
) -> None:
    streams: list[AnswerStream] = []

    def leave() -> None:
        options = AskOptions(min_relevance=0.0, max_tokens=40)
        with Assistant(long_texts, llm=models / "tiny.gguf", options=options, kv_cache=kv_cache) as assistant:
            streams.append(assistant.stream(words(5, 99)))
            next(streams[0])

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    leaving.join(60)
    assert not leaving.is_alive(), "closing waits for nobody"
    assert streams[0].answer.stats.interrupted


@pytest.mark.usefixtures("llama")
def test_every_pipeline_runs_on_a_language_model_the_same_with_and_without_lookahead(
    long_texts: Collection, models: Path
) -> None:
    for pipeline in ("hyde", "subquestion", "iterative", "iter-retgen", "flare", "self-rag", "piperag"):
        results = []
        for lookahead in (True, False):
            options = AskOptions(min_relevance=0.0, max_tokens=40, rounds=2, lookahead=lookahead)
            with Assistant(long_texts, llm=models / "tiny.gguf", pipeline=pipeline, options=options) as assistant:
                answer = assistant.ask(words(5, 99))
            results.append((answer.text, answer.citations, [round.queries for round in answer.rounds]))
        if pipeline != "piperag":  # its nprobe follows the clock
            assert results[0] == results[1], pipeline


@pytest.mark.usefixtures("llama")
def test_a_model_that_does_not_fit_names_what_would(collection: Collection, models: Path) -> None:
    budget = collection.budget
    collection.reranker.engine.window.prefetch()
    with budget.reserve("something else", budget.free - 5_000_000):
        with pytest.raises(BudgetExceeded, match=r"tiny\.gguf needs .* smallest memory limit that works"):
            Assistant(collection, llm=models / "tiny.gguf")
        assert not [holder for holder in budget.holders() if "generator" in holder or holder == "retrieval"]
    with Assistant(collection, llm=models / "tiny.gguf", options=ANY) as assistant:
        assert assistant.generator.name == "tiny.gguf"


@pytest.mark.usefixtures("llama")
def test_retrieval_still_works_when_the_generator_took_what_it_could(long_texts: Collection, models: Path) -> None:
    with Assistant(
        long_texts, llm=models / "tiny.gguf", options=AskOptions(min_relevance=0.0, max_tokens=4)
    ) as assistant:
        budget = long_texts.budget
        assert "retrieval" not in budget.holders(), "what was kept free for embedder and reranker is free again"
        assert assistant.ask(words(5, 99)).stats.peak_resident < budget.limit
        assert "knowledge tree" in " ".join(budget.holders())


def turn(question: str, text: str, *titles: str) -> Turn:
    cited = tuple(Citation(n, n, f"/{n}.md", 1, 1, 1, None, title, "", None) for n, title in enumerate(titles, 1))
    return Turn(question, question, Answer(text, cited, AnswerStats()))


@pytest.mark.parametrize(
    ("alone", "both", "looked_up"),
    [(0.8, 0.9, "When was it built?"), (0.3, 0.9, "Who built the bridge, When was it built?"),
     (0.0, 0.0, "Who built the bridge, When was it built?")],
)  # fmt: skip
def test_a_question_is_looked_up_with_the_one_before_it_if_more_is_found(
    alone: float, both: float, looked_up: str
) -> None:
    turns = [turn("What is a mill?", "A place."), turn("Who built the bridge?", "Anna Berg.")]
    asked = "When was it built?"
    steps: Any = SimpleNamespace(writes=False, relevance=lambda text: alone if text == asked else both)
    assert standalone(asked, turns, steps) == looked_up
    assert standalone(asked, [], steps) == asked
    long = turn("What is " + "very " * 80 + "long?", "This.")
    assert standalone(asked, [long], steps) == asked


def test_only_the_last_turns_are_remembered_and_only_their_beginnings() -> None:
    turns = [turn(f"Question {i}?", "word " * 500) for i in range(9)]
    shown = recent(turns)
    assert [asked for asked, _ in shown] == ["Question 6?", "Question 7?", "Question 8?"]
    assert all(len(said) <= 400 for _, said in shown)


def test_thanks_are_answered_without_documents_and_forgotten(collection: Collection) -> None:
    with Assistant(collection, options=AskOptions(min_relevance=0.0, rerank=False)) as assistant:
        chat = assistant.chat()
        chat.ask("Who built the bridge over the Ombra?")
        answer = chat.ask("Thanks!")
        assert (answer.text, answer.found, answer.citations, answer.rounds) == ("You are welcome.", True, (), ())
        assert (
            chat.ask("When was it built?").stats.question == "Who built the bridge over the Ombra, When was it built?"
        )
