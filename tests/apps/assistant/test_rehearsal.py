"""Searches run ahead while a model elsewhere writes, where that pays, and never change what is found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from naive.waiting import until

from edge.apps.assistant import prompts
from edge.apps.assistant import rehearsal as rehearsing
from edge.apps.assistant.pipelines import hyde
from edge.apps.assistant.rehearsal import REHEARSAL, Rehearsal
from edge.apps.assistant.retrieval import Retrieval
from edge.errors import InputError
from edge.scheduling.predictor import BenefitGate, TimePredictor
from edge.scheduling.waiting_line import BATCH, PERSON, Urgency, current_urgency, urgent
from edge.trace import Trace

QUESTION = "When does the river Ombra flood its valley?"


class Rig:
    """A rehearsal whose searches are noted with the text near which they search and what ranks them."""

    def __init__(self, run: Callable[[], object] = lambda: None) -> None:
        self.ran: list[tuple[str, str]] = []
        self.trace = Trace()
        self.predictor = TimePredictor()
        self._run = run
        self.rehearsal = Rehearsal(self._note, BenefitGate(self.predictor, self.trace))

    def _note(self, queries: Sequence[Retrieval], rank_by: str) -> None:
        self._run()
        self.ran += [(query.near[-1], rank_by or query.words) for query in queries]

    def write(self, becoming: Any, text: str, *, rank_by: str = "") -> None:
        """Writes a text letter by letter. Each rehearsal ends before the next letter."""
        self.rehearsal.begin("p/step", becoming, rank_by)
        for end in range(1, len(text) + 1):
            until(lambda: not self.rehearsal._behind.busy)
            self.rehearsal.follow(becoming, text[:end])
        until(lambda: not self.rehearsal._behind.busy)
        self.rehearsal.ready()


def passage(text: str) -> list[Retrieval]:
    return [Retrieval("question", ("question", text) if text else ("question",))]


def test_a_text_that_grows_is_searched_for_at_growing_lengths() -> None:
    rig = Rig()
    rig.write(passage, "x" * 400)
    assert [len(near) for near, _ in rig.ran] == [len("question"), 100, 150, 225, 337]
    assert {ranked for _, ranked in rig.ran} == {"question"}


def test_it_stops_where_it_saves_nothing_and_goes_on_where_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsing, "time", SimpleNamespace(perf_counter=count(0, 0.5).__next__))
    rig = Rig()
    rig.predictor.learn("slowed", 1, 0.0)
    rig.predictor.learn("retrieval/p/step", 1, 0.5)
    for _ in range(8):
        rig.write(passage, "x" * 120)
        rig.rehearsal.judge(0.1)
    assert rig.trace.snapshot()[f"gate.{REHEARSAL}.started"] == 8
    assert rig.trace.snapshot()[f"gate.{REHEARSAL}.saved_s"] == pytest.approx(8 * 0.4)
    slowed = Rig()
    slowed.predictor.learn("slowed", 1, 0.9)
    slowed.predictor.learn("retrieval/p/step", 1, 0.5)
    for _ in range(8):
        slowed.write(passage, "x" * 120)
        slowed.rehearsal.judge(0.1)
    assert slowed.trace.snapshot()[f"gate.{REHEARSAL}.started"] < 8, "a reply gets longer by more than it saves"
    slow = Rig()
    slow.predictor.learn("retrieval/p/step", 1, 0.5)
    for _ in range(8):
        slow.write(passage, "x" * 120)
        slow.rehearsal.judge(0.6)
    assert slow.trace.snapshot()[f"gate.{REHEARSAL}.started"] == 2, "it was tried"
    assert len(slow.ran) == 4


def test_an_error_is_left_to_the_search_itself() -> None:
    def fail() -> None:
        raise InputError("nothing can be found")

    rig = Rig(fail)
    rig.write(passage, "x" * 200)
    assert rig.rehearsal.ran == 0
    rig.rehearsal.judge(0.5)
    assert rig.predictor.saving(f"{REHEARSAL}/p/step").weight == 0, "no search ran ahead"


def test_what_runs_becomes_as_urgent_as_the_search_that_waits_for_it() -> None:
    begun, go = threading.Event(), threading.Event()
    seen: list[int] = []

    def hold() -> None:
        urgency = current_urgency()
        seen.append(urgency.priority)
        begun.set()
        go.wait(30)
        seen.append(urgency.priority)

    rig = Rig(hold)
    rig.rehearsal.begin("p/step", passage, "")
    assert begun.wait(30)
    waiting = rig.rehearsal._behind.settle
    rig.rehearsal._behind.settle = lambda: (go.set(), waiting())[1]  # type: ignore[method-assign,func-returns-value]
    with urgent(Urgency(PERSON)):
        rig.rehearsal.ready()
    assert seen == [BATCH, PERSON]


def test_only_a_model_elsewhere_is_searched_ahead_of(steps: Any, library: Any, generator: Any) -> None:
    found = {}
    for elsewhere in (False, True):
        said = generator(lambda messages, documents: "Snow melts in the mountains and the river Ombra rises. " * 4)
        said.elsewhere = elsewhere
        before = len(library.batches)
        made = steps(said, "hyde", max_tokens=96)
        text = "".join(hyde(QUESTION, made))
        found[elsewhere] = text, [[hit.id for hit in each.passages] for each in made.rounds]
        assert (len(library.batches) - before > 1) == elsewhere
        made.close()
    assert found[False] == found[True]
    said.elsewhere = True
    before = len(library.batches)
    steps(said, lookahead=False).write(prompts.hypothetical(QUESTION), ahead=[QUESTION], becoming=passage)
    assert len(library.batches) == before
