"""Times are learned from finished work, kept across processes, and given with their uncertainty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.files import sealed
from edge.scheduling.predictor import (
    BenefitGate,
    PromptWork,
    Rate,
    ReplyLengths,
    RunningMean,
    Saving,
    Seconds,
    TimePredictor,
)
from edge.trace import Trace


def taught(predictor: TimePredictor, tokens: int = 20) -> None:
    predictor.learn_reply(
        "model", "hyde/passage", PromptWork(100), new=tokens, ttft_s=0.5, restore_s=0.0,
        seconds=0.5 + 0.1 * (tokens - 1),
    )  # fmt: skip


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_mean_and_deviation_of_a_rate_are_those_of_its_readings(noise: float) -> None:
    random = np.random.default_rng(0)
    rates, deviations = [], []
    for _ in range(200):
        rate = Rate()
        for _ in range(60):
            units = int(random.integers(10, 200))
            rate.add(units, units * 0.01 * (1 + noise * random.standard_normal()))
        rates.append(rate.mean)
        deviations.append(rate.deviation)
    assert np.mean(rates) == pytest.approx(0.01, rel=0.02)
    assert np.mean(deviations) == pytest.approx(noise * 0.01, rel=0.2, abs=1e-9)
    few = Rate()
    few.add(1, 1.0)
    few.add(99, 9.9)
    assert few.mean == pytest.approx((0.9 + 9.9) / (0.9 + 99)), "a reading of many units counts for more"


def test_a_reply_takes_its_prompt_and_its_usual_length() -> None:
    predictor = TimePredictor()
    assert predictor.reply("model", "hyde/passage", prompt=PromptWork(100), most=128) is None
    taught(predictor)

    def mean(computed: int, generator: str = "model", step: str = "hyde/passage") -> float | None:
        reply = predictor.reply(generator, step, prompt=PromptWork(computed), most=128)
        return None if reply is None else reply.mean

    assert mean(100) == pytest.approx(0.5 + 20 * 0.1)
    assert mean(200) == pytest.approx(1.0 + 20 * 0.1), "a longer prompt"
    assert mean(100, step="plain/passage") is None, "each step has its own lengths"
    assert mean(100, generator="other") is None, "and each model its own speed"
    for tokens in (10, 40):
        for _ in range(80):
            taught(predictor, tokens)
    reply = predictor.reply("model", "hyde/passage", most=128)
    assert reply.mean == pytest.approx(4.0, rel=0.05), "recent replies count more"


def test_restored_tokens_have_a_rate_of_their_own() -> None:
    """The fault that was: seconds by the few tokens computed, times all tokens of the prompt."""
    predictor = TimePredictor()
    for _ in range(3):
        predictor.learn_reply("m", "s", PromptWork(100, 1900), new=11, ttft_s=1.19, restore_s=0.19, seconds=2.19)
    cached = predictor.reply("m", "s", prompt=PromptWork(100, 1900), most=128)
    assert cached.mean == pytest.approx(1.0 + 0.19 + 11 * 0.1)
    fresh = predictor.reply("m", "s", prompt=PromptWork(2000), most=128)
    assert fresh.mean == pytest.approx(20.0 + 11 * 0.1)
    in_context = predictor.reply("m", "s", prompt=PromptWork(30), most=128)
    assert in_context.mean == pytest.approx(0.3 + 11 * 0.1)


def test_what_remains_of_a_reply_depends_on_the_length_it_has_reached() -> None:
    lengths = ReplyLengths([10] * 8 + [100] * 8)
    assert lengths.remaining(0, 1000)[0] == 55
    assert lengths.remaining(10, 1000)[0] == 90, "it is one of the long ones"
    assert lengths.remaining(60, 1000) == (40, 0)
    assert lengths.remaining(60, 80)[0] == 20, "it may be no longer"
    assert lengths.remaining(0, 50)[0] == 30
    exponential = np.random.default_rng(0).exponential(50, 64)
    lengths = ReplyLengths([1 + int(n) for n in exponential])  # such a reply always has its mean left
    assert lengths.remaining(0, 10**6)[0] == pytest.approx(50, rel=0.3)
    assert lengths.remaining(1000, 10**6)[0] == pytest.approx(50, rel=0.5)


@pytest.mark.parametrize("lengths", [[20], [20] * 9, [5, 10, 20, 40, 80], [1]])
def test_a_reply_that_outlives_all_before_it_has_time_left(lengths: list[int]) -> None:
    known = ReplyLengths(lengths)
    for written in (max(lengths), 2 * max(lengths), 10 * max(lengths)):
        assert known.remaining(written, 10**6)[0] >= 1
        assert known.remaining(written, written + 1)[0] <= 1
        assert known.remaining(written, written)[0] == 0


def test_savings_may_be_losses_and_grow_old() -> None:
    saving = Saving()
    for seconds in (-0.1, -0.3):
        saving.add(seconds)
    assert saving.mean == pytest.approx(-0.39 / 1.9)
    for _ in range(50):
        saving.fade()
    assert saving.mean == pytest.approx(-0.39 / 1.9)
    assert saving.weight < 1


def test_what_was_learned_survives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    predictor = TimePredictor(path)
    taught(predictor)
    predictor.learn("reranking", 30, 0.6)
    predictor.learn_saving("following/hyde/passage", -0.25)
    predictor.save()
    again = TimePredictor(path)
    assert again.reply("model", "hyde/passage", prompt=PromptWork(100), most=128) == predictor.reply(
        "model", "hyde/passage", prompt=PromptWork(100), most=128
    )
    assert again.seconds("reranking", 10) == Seconds(pytest.approx(0.2), pytest.approx(0.0, abs=1e-6))
    assert again.saving("following/hyde/passage").mean == -0.25
    assert [p.name for p in tmp_path.iterdir()] == ["times.json"]
    elsewhere = TimePredictor(tmp_path / "times.json" / "below")
    taught(elsewhere)
    elsewhere.save()  # which cannot be, and is no obstacle


@pytest.mark.parametrize(
    "state",
    [
        {}, {"format": 1}, {"format": 2}, {"format": 2, "rates": [], "lengths": {}, "savings": {}},
        {"format": 2, "rates": {"model/token": [1, 1]}, "lengths": {}, "savings": {}},
        {"format": 2, "rates": {}, "lengths": {"a": 1}, "savings": {}},
        {"format": 2, "rates": {}, "lengths": {}, "savings": {"a": ["much", 0, 0]}},
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_no_obstacle(tmp_path: Path, state: dict[str, object]) -> None:
    path = tmp_path / "times.json"
    sealed.write_sealed(path, state)
    predictor = TimePredictor(path)
    assert predictor.reply("model", "hyde/passage", most=128) is None
    taught(predictor)
    predictor.save()
    assert TimePredictor(path).reply("model", "hyde/passage", most=128) is not None


@pytest.mark.parametrize(
    ("new", "ttft", "restore", "seconds"),
    [(0, 0.1, 0.0, 0.2), (5, 0.3, 0.0, 0.2), (5, -1.0, 0.0, 0.2), (5, 0.1, 0.2, 0.3)],
)
def test_readings_that_cannot_be_are_not_learned(new: int, ttft: float, restore: float, seconds: float) -> None:
    predictor = TimePredictor()
    predictor.learn_reply("m", "s", PromptWork(10), new=new, ttft_s=ttft, restore_s=restore, seconds=seconds)
    assert predictor.reply("m", "s", most=10) is None
    predictor.learn("work", 0, 1.0)
    predictor.learn("work", 1, float("inf"))
    assert predictor.seconds("work") is None


def test_the_first_readings_count_fully() -> None:
    expected = RunningMean()
    assert (expected.mean, expected.upper) == (0.0, 0.0)
    readings = [3.0, 5.0, 1.0, 7.0]
    for count, reading in enumerate(readings, 1):
        expected.add(reading)
        assert expected.mean == pytest.approx(np.mean(readings[:count]))
        assert expected.upper == pytest.approx(np.mean(readings[:count]) + 2 * np.std(readings[:count]))
    expected = RunningMean(1.0, 0.5, count=3)  # taken for granted
    assert expected.upper == pytest.approx(2.0)
    expected.add(3.0)
    assert expected.mean == pytest.approx(1.5)
    for reading in [100.0] * 20 + [1.0] * 100:
        expected.add(reading)
    assert expected.mean == pytest.approx(1.0, abs=0.01), "old readings are forgotten"
    assert expected.upper < 1.1
    total = Seconds(1.0, 0.3) + Seconds(2.0, 0.4)
    assert (total.mean, total.deviation, total.upper) == (3.0, 0.5, 4.0)


def gate_after(*saved: float) -> tuple[BenefitGate, Trace]:
    trace = Trace(events=True)
    gate = BenefitGate(TimePredictor(), trace)
    for seconds in saved:
        gate.learn("guess", "here", seconds)
    return gate, trace


@pytest.mark.parametrize(
    ("saved", "opens"), [((), True), ((-1.0,), True), ((-1.0, -1.0), False), ((0.005,) * 5, False), ((0.02,) * 5, True)]
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
    nothing = gate_after(*[0.0] * 20)[0]  # a search that found all in memory says little about one that will not
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
    gate, refusals = gate_after(*[-0.01, 0.0] * 10)[0], 0
    while not gate.opens("guess", "here", Seconds(0.01)):
        refusals += 1
        assert refusals < 200, "what did not pay is tried again once little is known of it"
    assert refusals > 20
