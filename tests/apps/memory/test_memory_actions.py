"""The action cache: sure or silent, learning from examples and from feedback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.words import WordEmbedder, WordReranker

from edge.apps.memory.actions import SIGNALS, ActionExample, Confidence, describe, details, fit
from edge.apps.memory.memory import Memory
from edge.errors import InputError
from edge.runtimes.reranker import Ranked
from tests.apps.memory.conftest import Make

VERBS = ("open", "close", "delete", "share", "print")
THINGS = ("the invoice", "the photo album", "the shopping list", "my calendar", "the weather page")
POLITE = ("please {}", "could you {} now", "i want to {}", "{} for me")


def fill(memory: Memory) -> dict[str, str]:
    tasks = [f"{verb} {thing}" for verb in VERBS for thing in THINGS]
    return {task: memory.actions.add(task, {"steps": task.split()}, state="home screen") for task in tasks}


def examples(ids: dict[str, str]) -> list[ActionExample]:
    known = [ActionExample(form.format(task), "home screen", ids[task]) for task in ids for form in POLITE]
    return known + [ActionExample(form.format("water the plants"), "home screen", None) for form in POLITE]


def test_only_the_same_is_sure_until_it_is_calibrated(make: Make) -> None:
    memory = make(user_id="ann")
    identifier = memory.actions.add("open settings", ["tap", 3], state="home")
    hit = memory.actions.lookup("open settings", state="home")
    assert hit is not None
    assert (hit.id, hit.trajectory, hit.confidence) == (identifier, ["tap", 3], 1.0)
    assert memory.actions.lookup("open settings", state="lock screen") is None
    assert memory.actions.lookup("open the settings", state="home") is None
    assert memory.actions.candidates("open the settings", state="home")[0].confidence == 0


def test_the_same_task_again_replaces_its_trajectory(make: Make) -> None:
    memory = make(user_id="ann")
    first = memory.actions.add("open settings", ["a"])
    memory.actions.feedback(first, False)
    assert memory.actions.add("open settings", ["b"]) == first
    hit = memory.actions.lookup("open settings")
    assert hit is not None
    assert (hit.trajectory, hit.failures) == (["b"], 0)


@pytest.mark.parametrize("rerank", [True, False])
def test_calibrated_it_knows_paraphrases_and_strangers(make: Make, rerank: bool) -> None:
    memory = make(user_id="ann", embedder=WordEmbedder(512))
    ids = fill(memory)
    fitted = memory.actions.calibrate(examples(ids), rerank=rerank)
    assert fitted.examples == 104
    assert fitted.hit_rate > 0.8
    assert fitted.wrong_rate <= 0.05
    assert memory.actions.calibration(rerank=rerank) == fitted
    assert memory.actions.calibration(rerank=not rerank) is None
    right = wrong = 0
    for task, identifier in ids.items():
        hit = memory.actions.lookup(f"kindly {task}", state="home screen", rerank=rerank)
        right += hit is not None and hit.id == identifier
        wrong += hit is not None and hit.id != identifier
    assert right > 20
    assert wrong == 0
    assert memory.actions.lookup("fry an egg", state="kitchen", rerank=rerank) is None
    with make(user_id="ann", embedder=WordEmbedder(512)) as again:
        assert again.actions.calibration(rerank=rerank) == fitted


def test_a_calibration_of_other_models_does_not_count(make: Make) -> None:
    class Other:
        fingerprint = "another reranker"

    memory = make(user_id="ann", embedder=WordEmbedder(512))
    memory.actions.calibrate(examples(fill(memory)))
    other = make(user_id="ann", embedder=WordEmbedder(512), reranker=Other())
    assert other.actions.calibration() is None


def test_too_few_examples_are_refused(make: Make) -> None:
    memory = make(user_id="ann")
    ids = fill(memory)
    with pytest.raises(InputError, match=r"10 examples find .* at least 20"):
        memory.actions.calibrate(examples(ids)[:10])
    same = [ActionExample(task, "home screen", ids[task]) for task in ids]
    with pytest.raises(InputError, match="0 examples"):
        memory.actions.calibrate(same)
    with pytest.raises(InputError, match="share"):
        memory.actions.calibrate(examples(ids), most_wrong=1)


def test_feedback_makes_it_unsure(make: Make) -> None:
    memory = make(user_id="ann")
    identifier = memory.actions.add("open settings", [])
    memory.actions.feedback(identifier, True)
    assert memory.actions.lookup("open settings") is not None
    memory.actions.feedback(identifier, False)
    hit = memory.actions.lookup("open settings", confidence=0.5)
    assert hit is not None
    assert hit.confidence == pytest.approx(2 / 3)
    assert memory.actions.lookup("open settings") is None


def test_hits_misses_and_wrong_hits_are_counted_over_processes(make: Make) -> None:
    one, other = make(user_id="ann"), make(user_id="ann")
    assert one.actions.stats().hit_rate == 0
    identifier = one.actions.add("open settings", [])
    for _ in range(3):
        one.actions.lookup("open settings")
    other.actions.lookup("open the door")
    for success in (True, True, False):
        other.actions.feedback(identifier, success)
    one.actions.stats()
    stats = other.actions.stats()
    assert (stats.trajectories, stats.lookups, stats.hits, stats.right, stats.wrong) == (1, 4, 3, 2, 1)
    assert stats.hit_rate == 0.75


def test_actions_are_deleted_and_reset(make: Make) -> None:
    memory = make()
    first = memory.actions.add("open settings", [], user_id="ann")
    memory.actions.delete(first)
    assert memory.actions.lookup("open settings", user_id="ann") is None
    memory.actions.add("open settings", [], user_id="ann")
    memory.reset()
    assert memory.actions.stats().trajectories == 0
    assert memory.actions.lookup("open settings", user_id="ann") is None


class Blurred(WordEmbedder):
    """Sees the first words of a text only."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Any:
        return super().embed([" ".join(text.split()[:9]) for text in texts], query=query)


PAGE = "toolbar menu button link header navigation " * 3


@pytest.mark.parametrize("rerank", [True, False])
def test_the_same_state_is_found_among_others_that_begin_alike(make: Make, rerank: bool) -> None:
    memory = make(user_id="ann", embedder=Blurred())
    states = [f"{PAGE} dialog {number}" for number in range(20)]
    ids = {state: memory.actions.add("press the button", [state[-2:]], state=state) for state in states}
    for state, identifier in ids.items():
        hit = memory.actions.lookup("press the button", state=state, rerank=rerank)
        assert hit is not None
        assert (hit.id, hit.confidence) == (identifier, 1.0)
        found = memory.actions.candidates("press the button", state=state, rerank=rerank)
        assert (found[0].id, len(found)) == (identifier, len({one.id for one in found}))
        assert found[0].similarity == pytest.approx(1)
        assert memory.actions.add("press the button", ["again"], state=state) == identifier
    assert memory.actions.stats().hits == 20


def test_the_same_task_and_state_is_found_without_a_model(make: Make) -> None:
    embedder = WordEmbedder()
    memory = make(user_id="ann", embedder=embedder)
    memory.actions.add("open settings", [1])
    memory.actions.add("open", [2], state="settings")
    asked = embedder.calls
    hit = memory.actions.lookup("open settings")
    assert hit is not None
    assert (hit.trajectory, embedder.calls) == ([1], asked)


def test_of_the_same_in_several_sessions_what_worked_best_is_chosen(make: Make, clock: Any) -> None:
    memory = make(user_id="ann")
    ids = []
    for run in ("r", "s", "t"):
        clock.forward(hours=1)
        ids.append(memory.actions.add("open settings", [run], run_id=run))
    memory.actions.feedback(ids[2], False)
    hit = memory.actions.lookup("open settings")
    assert hit is not None
    assert hit.trajectory == ["s"]
    assert [one.id for one in memory.actions.candidates("open settings")] == [ids[1], ids[0], ids[2]]
    assert memory.actions.lookup("open settings", run_id="t") is None
    hit = memory.actions.lookup("open settings", run_id="r")
    assert hit is not None
    assert hit.id == ids[0]


class Contrary(WordReranker):
    """Finds texts that say the same least relevant."""

    def rank(self, *given: Any, **options: Any) -> list[Ranked]:
        return super().rank(*given, **options)[::-1]


def test_the_same_comes_first_whatever_the_reranker_thinks(make: Make) -> None:
    memory = make(user_id="ann", reranker=Contrary())
    for task in ("open the door", "open the window", "open settings"):
        memory.actions.add(task, [task])
    first, *others = memory.actions.candidates("open the window")
    assert (first.task, len(others)) == ("open the window", 2)


def test_lookups_are_counted_when_a_memory_is_closed(make: Make) -> None:
    with make(user_id="ann") as one:
        one.actions.add("open settings", [])
        one.actions.lookup("open settings")
    one.close()
    other = make(user_id="ann")
    assert (other.actions.stats().lookups, other.actions.stats().hits) == (1, 1)


def test_a_reset_forgets_what_was_counted_and_learnt(make: Make) -> None:
    memory, other = (make(embedder=WordEmbedder(512)) for _ in range(2))
    ids = {}
    for task in (f"{verb} {thing}" for verb in VERBS for thing in THINGS):
        ids[task] = memory.actions.add(task, [], state="home screen", user_id="ann")
    memory.actions.calibrate(examples(ids), user_id="ann")
    memory.actions.lookup("open settings", user_id="ann")
    other.actions.lookup("open settings", user_id="ann")
    other.actions.stats()
    memory.reset()
    assert memory.actions.stats().lookups == 0
    assert memory.actions.calibration() is None


def test_details_are_what_a_paraphrase_keeps() -> None:
    assert details("Send 25.50 to Bob") == {"25.50", "bob"}
    assert details("please send 25.50 to Bob") == {"25.50", "bob"}
    assert details('Search for "red shoes"') == {"red shoes"}
    same = describe("send 5 to Bob", "", "please send 5 to Bob", "", similarity=1, lead=0)
    other = describe("send 5 to Bob", "", "please send 6 to Bob", "", similarity=1, lead=0)
    name = SIGNALS.index("details_differ")
    assert (same[name], other[name]) == (0, 1)
    assert len(same) == len(SIGNALS)


def test_what_tells_nothing_is_never_sure() -> None:
    generator = np.random.default_rng(0)
    signals = generator.normal(size=(200, len(SIGNALS)))
    fitted = fit(signals, generator.random(200) < 0.5, 0.05, ("a", "b"))
    assert fitted.threshold > 1
    assert fitted.hit_rate == fitted.wrong_rate == 0
    assert Confidence.from_json(fitted.to_json()) == fitted


@pytest.mark.parametrize("right", [True, False])
def test_examples_of_one_kind_can_be_fitted(right: bool) -> None:
    signals = np.random.default_rng(0).normal(size=(100, len(SIGNALS)))
    signals[:, 0] = 1.0  # a signal that never changes
    fitted = fit(signals, np.full(100, right), 0.05, ("a", "b"))
    assert (fitted.threshold <= 1) == right
    assert np.isfinite(fitted.weights).all()
    assert (fitted.of(signals[0]) > 0.5) == right


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=20, max_size=80), st.floats(0.02, 0.5))
def test_the_threshold_holds_on_what_it_was_chosen_on(pairs: list[tuple[float, bool]], most_wrong: float) -> None:
    signals = np.zeros((len(pairs), len(SIGNALS)))
    signals[:, 0] = [similarity for similarity, _ in pairs]
    fitted = fit(signals, np.array([right for _, right in pairs]), most_wrong, ("a", "b"))
    assert fitted.wrong_rate <= most_wrong
