"""Profiles of this machine: kept, refused under other conditions, and planned with."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from edge.errors import InputError
from edge.planner.measured import Company, MachineProfile, Manner, Queue, Reading, Serving

CONDITIONS = {"machine": "a", "reranker": "b"}


def reading(
    depth: int, passages: int = 4, *, limit: int = 300, rerank: float = 0.0, write: float = 0.1, written: float = 1.0,
    draft: float = 0.0, nbytes: float = 1e8,
) -> Reading:  # fmt: skip
    return Reading(limit, depth, passages, 20, written, 0.01, 0.02, rerank, write, draft, 0.005, nbytes)


def company(
    answers: int, *, limit: int = 300, clients: int = 1, ratio: float = 1.0, delay: float = 1.0, llm_threads: int = 0
) -> Company:
    manner = Manner(answers, "shared", "anywhere", llm_threads=llm_threads)
    return Company(limit, manner, clients, ratio, delay, 1e8)


def profile() -> MachineProfile:
    readings = [reading(0), reading(0, 8, write=0.3), reading(30, rerank=0.4, nbytes=1.9e8)]
    return MachineProfile(CONDITIONS, readings, [company(4, clients=8, ratio=0.6)])


def test_a_profile_survives_being_kept(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile().save(path)
    again = MachineProfile.load(path, CONDITIONS)
    assert again == profile()
    assert MachineProfile.load(path, {**CONDITIONS, "machine": "another"}).readings == []
    assert MachineProfile.load(tmp_path / "none.json", CONDITIONS).readings == []
    path.write_bytes(path.read_bytes().replace(b"300", b"301", 1))  # a damaged one is measured anew
    assert MachineProfile.load(path, CONDITIONS).readings == []
    assert not path.exists()
    again.measured([reading(0, limit=200)], [company(2, limit=200)])
    again.measured([reading(9)], [company(8)])  # a limit's new readings take the place of its old ones
    assert [(p.limit, p.depth) for p in again.readings] == [(200, 0), (300, 9)]
    assert again.limits == [200, 300]
    assert {(one.reading.limit, one.company.manner.answers) for one in again.servings()} == {(200, 2), (300, 8)}


def test_profiles_of_other_devices_are_found_beside_those_of_other_machines(tmp_path: Path) -> None:
    for number, changed in enumerate(({}, {"device": "cuda"}, {"machine": "b"}, {"threads": "1"})):
        MachineProfile({**CONDITIONS, "device": "", **changed}, [reading(0)]).save(tmp_path / f"profile-{number}.json")
    (tmp_path / "profile-9.json").write_bytes(b"{}")
    paths = sorted(tmp_path.glob("profile-*.json"))
    found = MachineProfile.alike(paths, {**CONDITIONS, "device": ""}, ("device",))
    assert [one.conditions["device"] for one in found] == ["", "cuda"]


def test_the_mean_time_counts_refused_questions_without_an_answer() -> None:
    found = reading(10, rerank=0.1, write=2.0, written=0.6, draft=0.5)
    assert found.seconds == pytest.approx(0.01 + 0.02 + 0.1 + 2.0 + 0.005)
    assert found.mean_seconds == pytest.approx(0.135 + 0.6 * 2 + 0.4 * 0.5)
    assert Serving(found, company(2)).plan("plain").outcome.interval == pytest.approx(found.mean_seconds)
    (alone,) = MachineProfile(CONDITIONS, [found]).servings()  # without a server
    assert alone.company.manner.answers == 1
    assert alone.plan("plain").outcome.throughput == pytest.approx(1 / found.mean_seconds)
    with pytest.raises(InputError, match="at least 0"):
        reading(10, rerank=-1.0)
    with pytest.raises(InputError, match="from 0 to 1"):
        reading(10, written=1.5)


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
    queue = Queue(Serving(timed(write=1.0, start=start), company(answers)), rate)
    assert queue.first == pytest.approx(simulated(rate, answers, start, 1 - start), rel=0.12)


def test_the_wait_of_equal_answers_in_turn_is_that_of_a_queue_of_equal_jobs() -> None:
    queue = Queue(Serving(timed(search=0.2, write=0.8, start=0.3), company(1)), 0.5)
    assert queue.busy == pytest.approx(0.5)
    assert queue.wait == pytest.approx(0.5 / (2 * (1 - 0.5)))
    assert queue.first == pytest.approx(0.5 + 0.5)
    assert queue.seconds == pytest.approx(0.5 + 1.0)


def endless(groups: list[list[float]], clients: int, requests: int = 5_000) -> float:
    """Seconds for each answer of a machine whose parts take requests in turn, each stage by stage, if so many clients
    ask again as soon as they have an answer."""
    free, ready = [0.0] * len(groups), [0.0] * clients
    for _ in range(requests):
        client = min(range(clients), key=ready.__getitem__)
        for part, stages in enumerate(groups):
            free[part] = ready[client] = max(free[part], ready[client]) + sum(stages)
    return max(ready) / requests


@pytest.mark.parametrize(("answers", "clients"), [(1, 1), (1, 4), (4, 4), (4, 8)])
@pytest.mark.parametrize(("llm_threads", "ratio"), [(0, 1.0), (0, 0.6), (1, 1.0)])
def test_the_rate_of_an_endless_load_is_that_of_a_long_run(
    answers: int, clients: int, llm_threads: int, ratio: float
) -> None:
    """With parts of their own, retrieval and writing work at the same time if there are two clients."""
    read = timed(search=0.4, write=1.6, start=0.9)
    one = company(answers, clients=clients, ratio=ratio, delay=1.2, llm_threads=llm_threads)
    plan = Serving(read, one).plan("plain")
    parts = [[0.4], [1.6]] if llm_threads else [[0.4, 1.6]]
    # Where there are parts, the measured `ratio` to single answers is of the slower one.
    scale = ratio * (2.0 / 1.6 if llm_threads else 1.0)
    long = endless([[scale * seconds for seconds in part] for part in parts], max(clients, 2))
    assert plan.outcome.interval == pytest.approx(long, rel=0.01)
    assert plan.outcome.interval == pytest.approx(ratio * 2.0), "as measured"
    assert plan.outcome.ttft == pytest.approx(1.2 * (0.4 + 0.9))
    assert plan.outcome.nbytes == 1e8
