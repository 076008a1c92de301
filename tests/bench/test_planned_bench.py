"""The benchmark of planned servers: the schedules that it runs, and the comparison."""

from __future__ import annotations

import pytest

from bench.load import Arrival, Sample
from bench.planned import Asking, compared, schedules
from edge.planner.measured import Company, LimitProfile, MachineProfile, Reading

COMPANY = [Company(1, "exact", 1.0, 2e8), Company(4, "exact", 1.0, 2e8), Company(4, "shared", 0.6, 1.5e8)]
READINGS = [
    Reading(depth, passages, 20, 1.0, 0.01, 0.02, depth / 100, passages / 10, 0.0, 0.0, 1e8, start=passages / 20)
    for depth in (0, 30)
    for passages in (2, 8)
]
KNOWN = MachineProfile({"machine": "a"}, {300: LimitProfile(300, READINGS, COMPANY)})


def test_schedules_have_every_kind_of_company_at_every_share() -> None:
    found = schedules(KNOWN, (0.3, 0.6))
    assert {(one.company.answers, one.company.generation) for one in found} == {
        (1, "exact"),
        (4, "exact"),
        (4, "shared"),
    }
    assert [round(one.busy, 6) for one in found] == [0.3, 0.6] * 3
    assert len({(one.prediction.depth, one.prediction.passages) for one in found}) > 1


def test_what_was_measured_stands_beside_the_plan() -> None:
    serving = schedules(KNOWN, (0.5,))[0]
    samples = [Sample("ask", 1.0, 2.0, 5, 200), Sample("ask", 3.0, 4.0, 5, 200), Sample("ask", status=429)]
    found = compared(serving, samples, 10.0, 1000)
    assert (found["rate"], found["first"], found["answers"], found["failed"]) == (0.2, 2.0, 2, 1)
    assert found["first_error"] == pytest.approx(serving.first / 2 - 1)
    path, body = Asking(["a", "b"]).request(Arrival(0.0, "ask", 0, 3), 7)
    assert (path, body["question"], body["max_tokens"]) == ("/v1/ask", "b", 7)
