"""The steps themselves: looking ahead, learning times, fusing, cancelling, counting."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from edge.apps.assistant import prompts, replies
from edge.apps.assistant.answer import Cancelled
from edge.apps.assistant.reading import Reading
from edge.apps.assistant.retrieval import Retrieval
from edge.apps.assistant.steps import Steps
from edge.apps.documents.base import Mail
from edge.apps.verbs.requests import AskOptions
from edge.errors import InputError
from edge.scheduling.predictor import PromptWork, TimePredictor
from tests.apps.assistant.conftest import answering

QUESTION = "When does the river Ombra flood its valley?"

Make = Callable[..., Steps]


def test_lookahead_is_as_long_as_the_step_took_before(
    library: Any, generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = TimePredictor()
    said = generator(lambda messages, documents: "Snow melts and the water rises.")
    monkeypatch.setattr(replies, "time", SimpleNamespace(perf_counter=count(0, 5).__next__))
    took = 7 * 5  # seconds of six words and the end
    predicted = []
    for _ in range(3):
        before = len(library.calls("lookahead"))
        steps = Steps(library, said, AskOptions(), pipeline="hyde", predictor=predictor)
        steps.write(prompts.hypothetical(QUESTION), ahead=[QUESTION])
        steps.retrieve(QUESTION)
        predicted.append(library.calls("lookahead")[before][1])
    first, second, third = predicted
    assert first is None, "nothing is known yet"
    assert 0.5 * took < second < 3 * took
    assert 0.5 * took < third < 3 * took


def test_what_the_reader_does_between_two_tokens_is_not_the_generators_time(
    steps: Make, library: Any, generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = TimePredictor()
    said = generator(lambda messages, documents: "one two three four")
    made = Steps(library, said, AskOptions(), pipeline="p", predictor=predictor)
    read = 0
    monkeypatch.setattr(replies, "time", SimpleNamespace(perf_counter=lambda: time.perf_counter() + 1000 * read))
    for _ in made.stream(prompts.hypothetical(QUESTION)):
        read += 1
    assert read == 4
    reply = predictor.reply("fake", "p/passage", prompt=PromptWork(50), most=128)
    assert reply is not None
    assert reply.mean < 500, "the reader took 1,000 s for each of the four tokens"


def reusing(generator: Any, reply: str, **methods: Callable[..., Any]) -> Any:
    """A generator that reuses KV states, with some methods of its own."""
    usual = {
        "prompt_work": lambda *_: PromptWork(1), "cached_order": lambda *_, **__: [0], "read_ahead": lambda *_: None,
    }  # fmt: skip
    return type("Reusing", (generator,), {**usual, **methods})(lambda *_: reply)


def test_a_prompt_is_expected_to_take_what_will_be_computed_of_it(library: Any, generator: Any, hit: Any) -> None:
    """Of 1,000 tokens 900 are restored at 1 ms each, and 100 computed at 10 ms: 1.9 s, where it once was 100 s."""
    said = reusing(generator, "one", prompt_work=lambda *_: PromptWork(100, 900))
    predictor = TimePredictor()
    made = Steps(library, said, AskOptions(), pipeline="p", predictor=predictor)
    predictor.learn_reply("fake", "p/answer", PromptWork(10, 90), new=2, ttft_s=0.19, restore_s=0.09, seconds=0.2)
    expected = made.expect(prompts.answer(QUESTION), [hit(1, "Text.")])
    assert expected is not None
    assert expected.mean == pytest.approx(100 * 0.01 + 900 * 0.001 + 2 * 0.01)


def test_a_window_protects_what_it_fetched_until_the_search_is_over(steps: Make, library: Any, generator: Any) -> None:
    made = steps(generator(lambda messages, documents: "Snow."))
    made.write(prompts.hypothetical(QUESTION), ahead=[QUESTION])
    assert not library.aheads[0].cancelled
    made.retrieve(QUESTION)
    assert library.windows == [library.aheads[0]], "the search is told of it"
    assert library.aheads[0].cancelled
    made.write(prompts.hypothetical(QUESTION), ahead=[QUESTION])
    made.write(prompts.hypothetical(QUESTION), ahead=[QUESTION])
    assert [ahead.cancelled for ahead in library.aheads] == [True, True, False], "a later one takes the place of one"
    made.close()
    assert library.aheads[2].cancelled


def test_cancelling_ends_at_the_next_step(steps: Make, library: Any, generator: Any) -> None:
    made = steps(generator(lambda messages, documents: "one two three"))
    made.cancel.set()
    for step in (
        lambda: made.retrieve(QUESTION),
        lambda: made.write(prompts.hypothetical(QUESTION)),
        lambda: made.retrieve_each([QUESTION]),
    ):
        with pytest.raises(Cancelled):
            step()
    assert library.log == []


@pytest.mark.parametrize(
    ("writes", "options", "read", "given"),
    [(True, {}, 6, 4), (False, {}, 6, 6), (True, {"passages": 2}, 2, 2), (False, {"passages": 5}, 5, 5),
     (True, {"pool": 3}, 3, 3), (False, {"pool": 5}, 5, 5)],
)  # fmt: skip
def test_more_passages_are_judged_than_a_language_model_is_given(
    steps: Make, library: Any, generator: Any, hit: Any, monkeypatch: pytest.MonkeyPatch,
    writes: bool, options: dict[str, int], read: int, given: int,
) -> None:  # fmt: skip
    hits = [hit(number, f"Bread {number}.") for number in range(8)]
    judged: list[int] = []
    monkeypatch.setattr(library, "candidates", lambda *_, **__: [hits[: options.get("pool", 8)]])
    monkeypatch.setattr(library, "rerank", lambda question, found, top_k, judged: list(found[:judged][:top_k]))
    reading = Reading((answering(0.9),))
    monkeypatch.setattr(library, "read", lambda question, found: judged.append(len(found)) or reading)
    made = steps(generator(str, follows_instructions=writes), **options)
    assert [found.id for found in made.retrieve(QUESTION)] == [found.id for found in hits[:given]]
    assert judged == [read]
    assert made.rounds[0].below == 0


def test_the_user_decides_how_answers_are_sampled_and_nothing_else(steps: Make, generator: Any) -> None:
    said = generator(lambda messages, documents: "In spring [1].")
    made = steps(said, temperature=0.7, max_tokens=40, seed=3)
    made.write(prompts.hypothetical(QUESTION))
    list(made.answer(prompts.answer(QUESTION), made.retrieve(QUESTION)))
    greedy, chosen = (sampling for _, _, sampling in said.requests)
    assert (greedy.temperature, greedy.max_tokens) == (0.0, 128)
    assert (chosen.temperature, chosen.max_tokens, chosen.seed) == (0.7, 40, 3)


def room_for(*passages: Any, answer: int = 20) -> int:
    """Words of context for the question, an answer and these passages."""
    asked = sum(len(message.content.split()) for message in prompts.answer(QUESTION).messages)
    return asked + answer + sum(len(f"[1] {hit.title} {hit.text}".split()) for hit in passages)


def test_passages_that_do_not_fit_are_not_cited(steps: Make, generator: Any, hit: Any) -> None:
    passages = [hit(i, f"Text number {i}.") for i in range(3)]
    said = generator(lambda messages, documents: "First [1]. Third [3]. Second [2].", context=room_for(*passages[:2]))
    made = steps(said, max_tokens=20)
    text = "".join(made.answer(prompts.answer(QUESTION), passages))
    assert text == "First [1]. Third. Second [2]."
    assert [c.id for c in made.showing.citations.of(text)] == [0, 1]
    assert made.given == passages[:2]
    assert made.trace.snapshot()["assistant.dropped"] == 1


def test_passages_change_places_where_that_is_allowed_and_keep_their_marks(
    library: Any, generator: Any, hit: Any
) -> None:
    """The generator would rather read the second passage first."""
    passages = [hit(i, f"Text number {i}.", score=0.9 - i / 10) for i in range(2)]
    tolerances: list[float] = []

    def cached_order(*_: Any, scores: Any, tolerance: float) -> list[int]:
        tolerances.append(tolerance)
        return [1, 0]

    said = reusing(generator, "One [1]. Two [2].", cached_order=cached_order)
    for tolerance, first in ((0.0, 0), (0.2, 1)):
        made = Steps(
            library, said, AskOptions(order_tolerance=tolerance, check=False), pipeline="p", predictor=TimePredictor()
        )
        text = "".join(made.answer(prompts.answer(QUESTION), passages))
        assert [document.id for document in said.requests[-1][1]] == [str(first), str(1 - first)]
        assert [citation.id for citation in made.showing.citations.of(text)] == [first, 1 - first]
    assert tolerances == [0.2], "without a tolerance nobody is asked"
    made = Steps(library, said, AskOptions(order_tolerance=0.2), pipeline="p", predictor=TimePredictor())
    list(made.stream(prompts.answer(QUESTION), passages[::-1]))
    assert tolerances == [0.2], "passages of several rounds are not in the order of their relevance"


@pytest.mark.parametrize("rerank", [True, False])
def test_states_of_the_best_found_passages_are_read_before_reranking(
    library: Any, generator: Any, monkeypatch: pytest.MonkeyPatch, rerank: bool
) -> None:
    """Without reranking the prompt is built at once, and its own states are read then."""
    happened: list[Any] = []
    said = reusing(generator, "One.", read_ahead=lambda _, ids: happened.append(list(ids)))
    ranked = library.rerank
    monkeypatch.setattr(library, "rerank", lambda *given: happened.append("reranked") or ranked(*given))
    options = AskOptions(passages=2, rerank=rerank)
    made = Steps(library, said, options, pipeline="p", predictor=TimePredictor())
    found = library.candidates([Retrieval.of(QUESTION)], library.embed_queries([QUESTION]), options.pool)[0]
    made.retrieve(QUESTION)
    named = [str(hit.id) for hit in found[:2]]
    assert len(named) == 2
    assert happened == ([named, "reranked"] if rerank else [])


def test_nothing_is_answered_from_no_passage(steps: Make, generator: Any, hit: Any) -> None:
    said = generator(lambda *_: "Anything.", context=room_for() + 2)
    made = steps(said, max_tokens=20)
    with pytest.raises(InputError, match=r"none of the 2 passages fits the context of fake.*holds 83 tokens.*about 61"):
        list(made.answer(prompts.answer(QUESTION), [hit(1, "Text number one."), hit(2, "Text.")]))
    assert said.requests == []


def test_a_model_that_only_thought_has_not_answered(steps: Make, generator: Any, hit: Any) -> None:
    said = generator(lambda *_: "<think> It may be [2], or not, </think> In spring [1].")
    assert "".join(steps(said).answer(prompts.answer(QUESTION), [hit(1, "Text.")])).strip() == "In spring [1]."
    with pytest.raises(InputError, match="still thinking when its 5 tokens"):
        list(steps(said, max_tokens=5).answer(prompts.answer(QUESTION), [hit(1, "Text.")]))
    assert steps(said, max_tokens=5).write(prompts.answer(QUESTION), [hit(1, "Text.")]) == "", "a step is none"


def test_why_a_model_only_thought_is_told_as_it_is(steps: Make, generator: Any, hit: Any) -> None:
    def told(reply: str, *, step: int) -> str:
        made = steps(generator(lambda *_: reply), max_tokens=5)
        made.write(prompts.answer(QUESTION, max_tokens=step), [hit(1, "Text.")])
        with pytest.raises(InputError) as error:
            made.check_replied()
        return str(error.value)

    assert "when it ended by itself" in told("<think> It may", step=5)
    assert "--max-tokens" not in told("<think> It may", step=5), "more would not help"
    assert "its 5 tokens were used up" in told("<think> It may be as it is.", step=5)
    assert "its 3 tokens were used up" in told("<think> It may be as it is.", step=3)
    assert "--max-tokens" not in told("<think> It may be as it is.", step=3), "the step allows no more"


def test_options_that_make_no_sense_are_refused() -> None:
    wrong = {"passages": 0, "pool": 0, "min_relevance": 1.5, "temperature": -1.0, "max_tokens": 0, "rounds": 0}
    for name, value in {**wrong, "order_tolerance": -0.1}.items():
        with pytest.raises(InputError, match="not"):
            AskOptions(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("follows", "order"), [(True, [4, 2, 3, 1]), (False, [1, 2, 3, 4])])
def test_a_model_reads_mails_of_one_thread_newest_first(
    steps: Make, generator: Any, hit: Any, follows: bool, order: list[int]
) -> None:
    """A generator that quotes reads the best passages, and its reading is the one that decided."""
    mails = {1: ("t", "2026-01-02"), 2: ("other", "2026-01-01"), 3: ("t", "2026-01-03"), 4: ("t", "2026-01-04")}
    passages = [
        hit(number, f"The {number}th mail.", mail=Mail("Ann", "Bo", "Keys", f"{day}T10:00:00", str(number), thread))
        for number, (thread, day) in mails.items()
    ]
    said = generator(lambda messages, documents: "Keys.", follows_instructions=follows)
    list(steps(said, check=False).answer(prompts.answer(QUESTION), passages))
    (_, documents, _) = said.requests[0]
    assert [int(document.text.split()[1][0]) for document in documents] == order
