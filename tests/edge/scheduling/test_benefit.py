"""The gate lets steps through that pay, and in the end tries steps again that once did not."""

from __future__ import annotations

import pytest

from edge.scheduling.predictor import BenefitGate, Seconds, TimePredictor
from edge.trace import Trace


def gate_after(*saved: float) -> tuple[BenefitGate, Trace]:
    trace = Trace(events=True)
    gate = BenefitGate(TimePredictor(), trace)
    for seconds in saved:
        gate.learn("guess", "here", seconds)
    return gate, trace


@pytest.mark.parametrize(
    ("saved", "opens"),
    [((), True), ((-1.0,), True), ((-1.0, -1.0), False), ((0.005,) * 5, False), ((0.02,) * 5, True)],
)
def test_work_starts_if_it_should_save_more_than_it_costs(saved: tuple[float, ...], opens: bool) -> None:
    gate, trace = gate_after(*saved)
    assert gate.opens("guess", "here", Seconds(0.01)) is opens
    assert gate.opens("guess", "there", Seconds(0.01)), "what it saves elsewhere is not known"
    counters = trace.snapshot()
    assert counters.get("gate.guess.refused", 0) == (not opens)
    assert counters["gate.guess.started"] == 1 + opens
    assert len([event for event in trace._events if event["name"] == "no guess"]) == (not opens)


def test_what_costs_nothing_starts_unless_it_does_harm() -> None:
    assert gate_after(0.001, 0.001, 0.001)[0].opens("guess", "here", Seconds(0.0))
    assert not gate_after(-0.01, -0.01, -0.01)[0].opens("guess", "here", Seconds(0.0))
    assert gate_after(0.001, 0.001, 0.001)[0].opens("guess", "here", None)


def test_what_saved_nothing_may_save_something_the_next_time() -> None:
    """A search that found everything in memory says little about one that will not."""
    nothing = gate_after(*[0.0] * 20)[0]
    assert nothing.opens("guess", "here", Seconds(0.001))
    assert not nothing.opens("guess", "here", Seconds(0.01))


def test_what_others_lost_later_is_charged() -> None:
    gate, trace = gate_after(*[0.05] * 5)
    assert gate.opens("guess", "here", Seconds(0.01))
    gate.charge("guess", "elsewhere", 1.0)
    assert gate.opens("guess", "here", Seconds(0.01))
    for _ in range(8):
        gate.charge("guess", "here", 0.1)
    assert not gate.opens("guess", "here", Seconds(0.01))
    assert trace.snapshot()["gate.guess.lost_s"] == pytest.approx(1.8)


def test_what_did_not_pay_is_tried_again_once_little_is_known_of_it() -> None:
    gate, _ = gate_after(*[-0.01, 0.0] * 10)
    refusals = 0
    while not gate.opens("guess", "here", Seconds(0.01)):
        refusals += 1
        assert refusals < 200
    assert refusals > 20
