"""Profiles of this machine: kept, refused under other conditions, and interpolated."""

from __future__ import annotations

import random
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edge.errors import InputError
from edge.planner.measured import (
    BUSIEST,
    Company,
    Curve,
    LimitProfile,
    MachineProfile,
    Prediction,
    Reading,
    Serving,
    best_serving,
    servings,
    unbeaten_choices,
)

CONDITIONS = {"machine": "a", "reranker": "b"}


def reading(
    depth: int,
    passages: int = 4,
    *,
    rerank: float = 0.0,
    write: float = 0.1,
    written: float = 1.0,
    draft: float = 0.0,
    nbytes: float = 1e8,
) -> Reading:
    return Reading(depth, passages, 20, written, 0.01, 0.02, rerank, write, draft, 0.005, nbytes)


def profile() -> MachineProfile:
    readings = [
        reading(0), reading(0, 8, write=0.3), reading(10, rerank=0.1, nbytes=1.5e8),
        reading(30, rerank=0.4, nbytes=1.9e8), reading(30, 8, rerank=0.4, write=0.3, nbytes=1.9e8),
    ]  # fmt: skip
    return MachineProfile(CONDITIONS, {300: LimitProfile(300, readings)})


def test_a_profile_survives_being_kept(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile().save(path)
    again = MachineProfile.load(path, CONDITIONS)
    assert again == profile()
    assert MachineProfile.load(path, {**CONDITIONS, "machine": "another"}).limits == {}
    assert MachineProfile.load(tmp_path / "none.json", CONDITIONS).limits == {}


def test_a_damaged_profile_is_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile().save(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"300", b"301", 1))
    assert MachineProfile.load(path, CONDITIONS).limits == {}
    assert not path.exists()


def test_between_two_depths_the_time_lies_between_theirs() -> None:
    known = profile().limits[300]
    assert known.predict(10, 4).stages["rerank"] == pytest.approx(0.1)
    assert known.predict(20, 4).stages["rerank"] == pytest.approx(0.25)
    assert known.predict(40, 4).stages["rerank"] == pytest.approx(0.55)
    assert known.predict(20, 4).nbytes == pytest.approx(1.7e8)
    assert known.predict(30, 6).stages["write"] == pytest.approx(0.2)
    assert known.predict(0, 4).stages["rerank"] == 0
    assert known.predict(0, 4).nbytes == 1e8
    assert known.predict(10, 4).seconds == pytest.approx(0.01 + 0.02 + 0.1 + 0.1 + 0.005)


def test_what_was_not_measured_is_not_predicted() -> None:
    known = LimitProfile(300, [reading(10)])
    with pytest.raises(InputError, match="without reranking"):
        known.predict(0, 4)
    assert [p.depth for p in MachineProfile(CONDITIONS, {300: known}).choices([0, 10], [4])] == [10]
    without = LimitProfile(300, [reading(0)])
    assert [p.depth for p in MachineProfile(CONDITIONS, {300: without}).choices([0, 10], [4])] == [0]
    with pytest.raises(InputError, match="at least 0"):
        reading(10, rerank=-1.0)
    with pytest.raises(InputError, match="from 0 to 1"):
        reading(10, written=1.5)


def test_the_time_of_writing_is_that_of_all_written_answers_whatever_the_depth() -> None:
    """1 of 20 answers at depth 10 and 9 of 20 at depth 30 are written; the one alone says little."""
    readings = [reading(10, write=8.0, written=0.05), reading(30, write=3.0, written=0.45), reading(60, written=0.0)]
    known = LimitProfile(300, readings)
    for depth in (10, 30, 60):
        assert known.predict(depth, 4).stages["write"] == pytest.approx((0.05 * 8 + 0.45 * 3) / 0.5)
    assert LimitProfile(300, [reading(10, write=0.0, written=0.0)]).predict(10, 4).stages["write"] == 0


def test_the_mean_time_counts_refused_questions_without_an_answer() -> None:
    """More passages let more answers be written here, and a deeper list fewer."""
    readings = [reading(10, rerank=0.1, write=2.0, written=0.6, draft=0.5), reading(30, rerank=0.1, write=2.0,
                written=0.4, draft=0.5), reading(30, 8, rerank=0.1, write=2.0, written=0.5, draft=0.5),
                reading(30, 2, rerank=0.1, write=2.0, written=0.3, draft=0.5)]  # fmt: skip
    known = LimitProfile(300, readings)
    shares = {place: known.predict(*place).written for place in ((10, 4), (20, 4), (30, 4), (60, 4), (30, 8), (10, 8))}
    expected = {(10, 4): 0.6, (20, 4): 0.5, (30, 4): 0.4, (60, 4): 0.4, (30, 8): 0.5, (10, 8): 0.7}
    assert shares == pytest.approx(expected)
    found = known.predict(20, 4)
    assert found.seconds == pytest.approx(0.01 + 0.02 + 0.1 + 2.0 + 0.005)
    assert found.mean_seconds == pytest.approx(found.seconds - 0.5 * 1.5)
    assert readings[0].mean_seconds == pytest.approx(0.135 + 0.6 * 2 + 0.4 * 0.5)


def test_choices_that_another_one_beats_are_left_out() -> None:
    def choice(limit: int, depth: int, seconds: float, nbytes: float) -> Prediction:
        return Prediction(limit, depth, 4, {"rerank": seconds}, nbytes)

    slow, small, deep = choice(1, 10, 2.0, 50), choice(2, 10, 1.5, 40), choice(3, 30, 3.0, 60)
    assert unbeaten_choices([slow, small, deep]) == [small, deep]
    assert unbeaten_choices([]) == []


def test_more_passages_add_to_what_the_depth_takes() -> None:
    """Judging an answer takes a time for each passage, and reranking one for each candidate."""
    readings = [reading(depth, rerank=0.06 * 4 + 0.01 * depth) for depth in (10, 30, 60)]
    readings += [reading(30, count, rerank=0.06 * count + 0.3) for count in (2, 8)]
    known = LimitProfile(300, readings)
    assert known.predict(30, 2).stages["rerank"] == pytest.approx(0.42)
    assert known.predict(45, 8).stages["rerank"] == pytest.approx(0.06 * 8 + 0.45)
    assert known.predict(10, 4).stages["rerank"] == pytest.approx(0.34)


POINTS = st.dictionaries(st.integers(1, 500), st.floats(0, 100), min_size=1, max_size=8)


@given(points=POINTS, count=st.integers(0, 600))
def test_it_goes_through_the_points_and_never_falls(points: dict[int, float], count: int) -> None:
    curve = Curve.measured(list(points.items()))
    for at, seconds in points.items():
        assert curve(at) >= seconds, "no less is promised than was measured"
    assert curve(count) <= curve(count + 1) + 1e-12


@given(st.integers(0, 64))
def test_between_the_points_it_is_linear(count: int) -> None:
    curve = Curve((1, 4, 20), (1.0, 5.0, 6.0))
    if 1 <= count <= 20:
        assert curve(count) == pytest.approx(np.interp(count, curve.counts, curve.seconds))
    elif count > 20:
        assert curve(count) == pytest.approx(6.0 + (count - 20) / 16)
    else:
        assert curve(count) == 1.0


def test_noise_is_flattened_upwards() -> None:
    assert Curve.measured([(4, 3.0), (1, 5.0), (2, 4.0), (8, 9.0)]).seconds == (5.0, 5.0, 5.0, 9.0)


@pytest.mark.parametrize(
    ("counts", "seconds"),
    [((), ()), ((1, 1), (1.0, 2.0)), ((2, 1), (1.0, 2.0)), ((1, 2), (2.0, 1.0)), ((1,), (-1.0,)), ((1,), (1.0, 2.0))],
)
def test_what_is_no_curve_is_refused(counts: tuple[int], seconds: tuple[float]) -> None:
    with pytest.raises(InputError, match="a curve needs"):
        Curve(counts, seconds)


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
