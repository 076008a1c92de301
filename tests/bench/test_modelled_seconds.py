"""The model of pipelined retrieval against the published tables.

The figures are those of PipeRAG (retrieval by nprobe, milliseconds per token by position) and what follows from them.
"""

from __future__ import annotations

import numpy as np
import pytest

from bench.pipelining import modelled_seconds

RETRIEVAL = {1: 26.06, 2: 48.12, 4: 92.59, 8: 178.43, 16: 344.49, 32: 666.43, 64: 1298.52, 128: 2544.44}
PER_TOKEN = (7.24, 7.29, 7.71, 8.34, 9.31, 10.47, 11.84, 13.19)


def intervals(length: int) -> list[float]:
    """Seconds of each interval of 1,024 tokens."""
    per_token = np.repeat(PER_TOKEN, 128) / 1e3
    return [float(per_token[start : start + length].sum()) for start in range(0, 1024, length)]


def test_generation_alone_takes_what_the_table_adds_up_to() -> None:
    assert sum(intervals(64)) == pytest.approx(9.65, abs=0.005)


@pytest.mark.parametrize(
    ("nprobe", "serial", "pipelined"),
    [
        (4, 11.04, 9.74),
        (8, 12.33, 9.83),
        (16, 14.82, 9.99),
        (32, 19.65, 11.47),
        (64, 29.13, 20.40),
        (128, 47.82, 39.09),
    ],
)  # fmt: skip
def test_latency_follows_from_the_longer_of_the_two(nprobe: int, serial: float, pipelined: float) -> None:
    generation = intervals(64)
    retrieval = [RETRIEVAL[nprobe] / 1e3] * 15
    assert modelled_seconds(generation, retrieval, pipelined=False) == pytest.approx(serial, abs=0.01)
    assert modelled_seconds(generation, retrieval, pipelined=True) == pytest.approx(pipelined, abs=0.01)


def test_the_gain_has_one_peak_where_both_take_equally_long() -> None:
    generation = intervals(64)
    gains = []
    for ms in RETRIEVAL.values():
        both = [modelled_seconds(generation, [ms / 1e3] * 15, pipelined=p) for p in (False, True)]
        gains.append(both[0] / both[1])
    peak = gains.index(max(gains))
    assert list(RETRIEVAL)[peak] == 32
    assert max(gains) == pytest.approx(1.71, abs=0.01)
    assert gains == sorted(gains[: peak + 1]) + sorted(gains[peak + 1 :], reverse=True)
    assert max(gains) < 2
