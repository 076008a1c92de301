"""Servers as queues: the formulas against a simulation, and the choice among schedules."""

from __future__ import annotations

import random

import pytest

from edge.errors import InputError
from edge.planner.measured import Company, LimitProfile, MachineProfile, Prediction, Reading
from edge.planner.serving import BUSIEST, Serving, best_serving, servings


def simulated(rate: float, answers: int, first: float, rest: float, requests: int = 20_000) -> float:
    """Mean seconds to the first text, of a machine that computes the prompts of `answers` requests in turn, and writes
    all their texts together when no prompt is left."""
    source = random.Random(7)
    now, arrival = 0.0, source.expovariate(rate)
    waiting: list[list[float]] = []
    inside: list[list[float]] = []
    firsts: list[float] = []
    while len(firsts) < requests:
        reading = next((one for one in inside if one[1] > 0), None)
        left = float("inf") if not inside else min(one[2] for one in inside) * len(inside)
        left = left if reading is None else reading[1]
        step = min(left, arrival - now)
        now += step
        if reading is not None:
            reading[1] -= step
            if reading[1] < 1e-12:
                reading[1] = 0.0
                firsts.append(now - reading[0])
        else:
            for one in inside:
                one[2] -= step / len(inside)
            inside = [one for one in inside if one[2] > 1e-12]
        if now >= arrival - 1e-12:
            waiting.append([now, first, rest])
            arrival = now + source.expovariate(rate)
        while waiting and len(inside) < answers:
            inside.append(waiting.pop(0))
    return sum(firsts) / len(firsts)


def prediction(depth: int = 30, passages: int = 4, *, write: float = 0.8, start: float = 0.3) -> Prediction:
    return Prediction(300, depth, passages, {"search": 0.2, "write": write}, 100.0, start=start)


@pytest.mark.parametrize("answers", [1, 2, 8])
@pytest.mark.parametrize(("rate", "start"), [(0.3, 0.5), (0.6, 0.2), (0.6, 0.9), (0.8, 0.5)])
def test_the_first_text_comes_as_in_a_queue_of_prompts(answers: int, rate: float, start: float) -> None:
    alone = Prediction(300, 30, 4, {"write": 1.0}, 100.0, start=start)
    serving = Serving(alone, Company(answers, "exact", 1.0, 0.0), rate)
    assert serving.first == pytest.approx(simulated(rate, answers, start, 1 - start), rel=0.12)


def test_the_wait_of_equal_answers_in_turn_is_that_of_a_queue_of_equal_jobs() -> None:
    serving = Serving(prediction(), Company(1, "exact", 1.0, 0.0), 0.5)
    assert serving.busy == pytest.approx(0.5)
    assert serving.wait == pytest.approx(0.5 / (2 * (1 - 0.5)))
    assert serving.first == pytest.approx(0.5 + 0.5)


def known() -> MachineProfile:
    readings = [
        Reading(depth, passages, 20, 1.0, 0.01, 0.02, depth / 100, passages / 10, 0.0, 0.0, 1e8, start=passages / 20)
        for depth in (0, 30)
        for passages in (2, 8)
    ]
    company = [Company(1, "exact", 1.0, 2e8), Company(4, "exact", 1.0, 2e8), Company(4, "shared", 0.6, 1.5e8)]
    return MachineProfile({"machine": "a"}, {300: LimitProfile(300, readings, company)})


def test_the_deepest_schedule_that_keeps_up_is_chosen() -> None:
    def chosen(rate: float, within: float = 1e9) -> tuple[int, int, int, str]:
        found = servings(known(), (0, 30), (2, 8), rate)
        assert all(one.busy <= BUSIEST for one in found)
        best = best_serving(found, within, None)
        return best.prediction.depth, best.prediction.passages, best.company.answers, best.company.generation

    assert chosen(0.1) == (30, 8, 4, "exact"), "the earlier first text"
    assert chosen(1.0) == (30, 8, 4, "shared"), "only shared answers keep up"
    assert chosen(2.0)[:2] == (30, 2)
    assert chosen(4.0)[:2] == (0, 2)
    assert chosen(0.1, within=0.35)[:2] == (30, 2)
    assert chosen(0.1, within=0.2)[0] == 0
    with pytest.raises(InputError, match="no measured schedule keeps up"):
        chosen(10.0)
    with pytest.raises(InputError, match=r"comes after 0\.\d\d s"):
        chosen(0.1, within=0.01)
    with pytest.raises(InputError, match="more memory"):
        best_serving(servings(known(), (0,), (2,), 0.1), 9.0, 299)
    with pytest.raises(InputError, match="--answers"):
        servings(MachineProfile({}, {300: LimitProfile(300, known().limits[300].readings)}), (0,), (2,), 0.1)
