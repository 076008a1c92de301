"""Profiles of this machine: kept, refused under other conditions, and interpolated."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.errors import InputError
from edge.planner.measured import LimitProfile, MachineProfile, Prediction, Reading, unbeaten_choices

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
