"""`growth`: the prediction by events, the throttle, and the tables."""

from __future__ import annotations

import json
import random

import pytest
from naive.program import output_of

from bench.growth import Load, Throttle, growth, network_s, predicted, table


def test_a_throttle_works_on_one_request_after_the_other() -> None:
    one = Throttle()
    assert [one.end(0.0, 2.0), one.end(1.0, 2.0), one.end(9.0, 1.0)] == [2.0, 4.0, 10.0]


def test_equal_shards_share_the_work() -> None:
    for shards in (1, 2, 4):
        load = Load([[1.0 / shards] * shards for _ in range(20)], clients=3)
        assert predicted(load) == pytest.approx(shards)
    alone = Load([[1.0, 3.0]] * 5, clients=1)
    assert predicted(alone) == pytest.approx(1 / 3)  # the slower shard decides


def test_tables_grow_with_the_vectors() -> None:
    small, large = (table(10**power, 16 * 10**9, random.Random(0)) for power in (8, 9))
    assert (small["shards"], large["shards"]) == (4, 31)  # 396 B of each vector in 12.8 GB
    assert small["median"] < small["p99"]
    assert small["median"] < large["median"]  # of more draws the maximum is larger
    assert network_s(1) == 0 < network_s(2) < network_s(64)


def test_the_command_says_what_is_derived() -> None:
    words = ["--counts", "1,2", "--questions", "4", "--clients", "2", "--whole", "0.05", "--json"]
    report = json.loads(output_of(growth, *words))
    assert list(report["rows"]) == ["1 shards", "2 shards"]
    assert "derived" in report["conditions"]["tables"]
    assert "throttled" in report["conditions"]["places"]
    assert all(row["measured"] > 0 for row in report["rows"].values())
