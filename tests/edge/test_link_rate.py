"""A link's rate, learned from transfers of very different sizes."""

from __future__ import annotations

import numpy as np
import pytest

from edge.link import LinkRate


def taught(sizes: list[int], latency: float, bandwidth: float, *, noise: float = 0.0) -> LinkRate:
    random = np.random.default_rng(0)
    rate = LinkRate()
    for nbytes in sizes:
        rate.add(nbytes, (latency + nbytes / bandwidth) * float(1 + noise * random.standard_normal()))
    return rate


def test_nothing_is_known_before_the_first_transfer() -> None:
    rate = LinkRate()
    assert (rate.bandwidth, rate.latency, rate.seconds(100), rate.throughput(100)) == (0, 0, 0, 0)
    rate.add(0, 1.0)
    rate.add(5, 0.0)
    assert rate.bandwidth == 0


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_latency_and_bandwidth_are_told_apart(noise: float) -> None:
    rate = taught([4096, 8 << 20, 60_000, 1 << 20] * 20, 100e-6, 1e9, noise=noise)
    assert rate.latency == pytest.approx(100e-6, rel=0.01 + 2 * noise)
    assert rate.bandwidth == pytest.approx(1e9, rel=0.01 + 2 * noise)
    assert rate.seconds(8 << 20) == pytest.approx(100e-6 + (8 << 20) / 1e9, rel=0.01 + 2 * noise)


def test_many_small_transfers_do_not_displace_a_few_large_ones() -> None:
    """An unweighted mean of the rates, or one over the last transfers, would be that of the small ones."""
    rate = taught([8 << 20] * 5 + [4096] * 5000, 100e-6, 1e9)
    assert rate.seconds(8 << 20) == pytest.approx(100e-6 + (8 << 20) / 1e9, rel=0.01)
    assert rate.throughput(4096) == pytest.approx(4096 / (100e-6 + 4096 / 1e9), rel=0.01)


def test_transfers_of_one_size_have_no_latency_of_their_own() -> None:
    rate = taught([1000] * 10, 1.0, 1000.0)
    assert (rate.latency, rate.bandwidth) == (0.0, pytest.approx(500))


def test_a_link_that_changes_is_learned_anew() -> None:
    rate = taught([1000, 100_000] * 20, 0.001, 1e6)
    for nbytes in [1000, 100_000] * 40:
        rate.add(nbytes, 0.002 + nbytes / 1e5)
    assert rate.bandwidth == pytest.approx(1e5, rel=0.02)
    assert rate.latency == pytest.approx(0.002, rel=0.05)


def test_no_term_is_negative() -> None:
    """A cold disk read the small blocks, the page cache the large ones."""
    rate = LinkRate()
    rate.add(4096, 0.01)
    rate.add(1 << 20, 0.001)
    assert rate.latency == 0
    assert rate.bandwidth > 0
