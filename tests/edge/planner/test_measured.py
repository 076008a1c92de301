"""Profiles of this machine: kept, refused under other conditions, and planned with."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from edge.errors import InputError
from edge.planner.measured import (
    BUSIEST,
    Company,
    MachineProfile,
    Reading,
    Serving,
    best_serving,
    servings,
    unbeaten_choices,
)

CONDITIONS = {"machine": "a", "reranker": "b"}


def reading(
    depth: int, passages: int = 4, *, limit: int = 300, rerank: float = 0.0, write: float = 0.1, written: float = 1.0,
    draft: float = 0.0, nbytes: float = 1e8,
) -> Reading:  # fmt: skip
    return Reading(limit, depth, passages, 20, written, 0.01, 0.02, rerank, write, draft, 0.005, nbytes)


def profile() -> MachineProfile:
    readings = [reading(0), reading(0, 8, write=0.3), reading(30, rerank=0.4, nbytes=1.9e8)]
    return MachineProfile(CONDITIONS, readings)


def test_a_profile_survives_being_kept(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile().save(path)
    again = MachineProfile.load(path, CONDITIONS)
    assert again == profile()
    assert MachineProfile.load(path, {**CONDITIONS, "machine": "another"}).readings == []
    assert MachineProfile.load(tmp_path / "none.json", CONDITIONS).readings == []


def test_a_limit_that_is_measured_again_takes_the_place_of_what_was_known() -> None:
    """Each limit keeps its own numbers of answers."""
    again = known()
    again.measured([reading(0, limit=200)], [Company(200, 2, "exact", 1.0, 1e8)])
    again.measured([reading(9)], [Company(300, 8, "exact", 1.0, 1e8)])
    assert [(p.limit, p.depth) for p in again.readings] == [(200, 0), (300, 9)]
    assert again.limits == [200, 300]
    assert {(one.reading.limit, one.company.answers) for one in servings(again, 1e-9)} == {(200, 2), (300, 8)}


def test_a_damaged_profile_is_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile().save(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"300", b"301", 1))
    assert MachineProfile.load(path, CONDITIONS).readings == []
    assert not path.exists()


def test_what_no_measurement_can_be_is_refused() -> None:
    with pytest.raises(InputError, match="at least 0"):
        reading(10, rerank=-1.0)
    with pytest.raises(InputError, match="from 0 to 1"):
        reading(10, written=1.5)


def test_the_mean_time_counts_refused_questions_without_an_answer() -> None:
    found = reading(10, rerank=0.1, write=2.0, written=0.6, draft=0.5)
    assert found.seconds == pytest.approx(0.01 + 0.02 + 0.1 + 2.0 + 0.005)
    assert found.mean_seconds == pytest.approx(0.135 + 0.6 * 2 + 0.4 * 0.5)


def test_choices_that_another_one_beats_are_left_out() -> None:
    def choice(limit: int, depth: int, seconds: float, nbytes: float) -> Reading:
        return reading(depth, limit=limit, rerank=seconds, nbytes=nbytes)

    slow, small, deep = choice(1, 10, 2.0, 50), choice(2, 10, 1.5, 40), choice(3, 30, 3.0, 60)
    assert unbeaten_choices([slow, small, deep]) == [small, deep]
    assert unbeaten_choices([]) == []


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


def timed(*, write: float, start: float, search: float = 0.0) -> Reading:
    return Reading(300, 30, 4, 20, 1.0, 0.0, search, 0.0, write, 0.0, 0.0, 100.0, start)


@pytest.mark.parametrize("answers", [1, 2, 8])
@pytest.mark.parametrize(("rate", "start"), [(0.3, 0.5), (0.6, 0.2), (0.6, 0.9), (0.8, 0.5)])
def test_the_first_text_comes_as_in_a_queue_of_prompts(answers: int, rate: float, start: float) -> None:
    serving = Serving(timed(write=1.0, start=start), Company(300, answers, "exact", 1.0, 0.0), rate)
    assert serving.first == pytest.approx(simulated(rate, answers, start, 1 - start), rel=0.12)


def test_the_wait_of_equal_answers_in_turn_is_that_of_a_queue_of_equal_jobs() -> None:
    serving = Serving(timed(search=0.2, write=0.8, start=0.3), Company(300, 1, "exact", 1.0, 0.0), 0.5)
    assert serving.busy == pytest.approx(0.5)
    assert serving.wait == pytest.approx(0.5 / (2 * (1 - 0.5)))
    assert serving.first == pytest.approx(0.5 + 0.5)


def known() -> MachineProfile:
    readings = [
        Reading(300, depth, passages, 20, 1.0, 0.01, 0.02, depth / 100, passages / 10, 0.0, 0.0, 1e8, passages / 20)
        for depth in (0, 30)
        for passages in (2, 8)
    ]
    kinds = [(1, "exact", 1.0, 2e8), (4, "exact", 1.0, 2e8), (4, "shared", 0.6, 1.5e8)]
    return MachineProfile({"machine": "a"}, readings, [Company(300, *kind) for kind in kinds])


def test_the_deepest_schedule_that_keeps_up_is_chosen() -> None:
    def chosen(rate: float, within: float = 1e9) -> tuple[int, int, int, str]:
        found = servings(known(), rate)
        assert all(one.busy <= BUSIEST for one in found)
        best = best_serving(found, within, None)
        return best.reading.depth, best.reading.passages, best.company.answers, best.company.generation

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
        best_serving(servings(known(), 0.1), 9.0, 299)
    with pytest.raises(InputError, match="--answers"):
        servings(MachineProfile({}, known().readings), 0.1)
