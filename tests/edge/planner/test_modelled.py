"""Rooflines and bytes scanned: the shapes that the source reports."""

from __future__ import annotations

from dataclasses import replace

import pytest
from naive.published_rago import device_seconds, shares

from edge.errors import InputError
from edge.planner.modelled import (
    ACCELERATORS,
    BATCHES,
    HOST,
    accelerator_points,
    forward_seconds,
    modelled_tables,
    retrieval_seconds,
    roofline,
    step_seconds,
)
from edge.planner.schema import MODELS, PUBLISHED, RagSchema, Stage

C = ACCELERATORS["xpu-c"]
CHIPS = [1, 2, 4, 8, 16]


def share(schema: RagSchema, device: str = "xpu-c") -> float:
    tables = modelled_tables(schema, ACCELERATORS[device], chips=CHIPS, servers=[16, 32], batches=BATCHES)
    return shares(device_seconds(schema, tables))["retrieve"]


def test_an_operator_takes_as_long_as_its_slowest_part() -> None:
    peak = C.efficiency * 2
    assert roofline(1e15, 1, 1, 2, C) == pytest.approx(1e15 / C.flops / peak)
    assert roofline(1, 1e12, 1, 2, C) == pytest.approx(1e12 / C.bandwidth / peak)
    assert roofline(1, 1, 1e12, 2, C) == pytest.approx(1e12 / C.network)


def test_one_query_runs_on_one_core_and_many_fill_the_memory_bandwidth() -> None:
    nbytes = 6.144e9
    assert retrieval_seconds(1, nbytes, 32) == pytest.approx(192e6 / 18e9)
    # 368 GB/s over 18 GB/s: batches of up to 20 take as long as one query.
    assert retrieval_seconds(16, nbytes, 32) == retrieval_seconds(1, nbytes, 32)
    assert retrieval_seconds(32, nbytes, 32) == pytest.approx(32 * 192e6 / 368e9)
    assert retrieval_seconds(97, nbytes, 32) == pytest.approx(2 * retrieval_seconds(96, nbytes, 32))


def test_the_bottleneck_moves_as_published() -> None:
    """Retrieval's share falls with the model, and rises with the accelerator, the queries and the share scanned."""
    small = PUBLISHED["case-1"]
    by_model = [share(replace(small, llm=MODELS[name])) for name in ("llama-1b", "llama-8b", "llama-70b")]
    assert by_model == sorted(by_model, reverse=True)
    by_device = [share(replace(small, llm=MODELS["llama-8b"]), name) for name in ("xpu-a", "xpu-b", "xpu-c")]
    assert by_device == sorted(by_device)
    by_queries = [share(replace(small, queries_per_retrieval=count)) for count in (1, 2, 4, 8)]
    assert by_queries == sorted(by_queries)
    by_scan = [share(replace(small, scanned=scanned)) for scanned in (1e-4, 1e-3, 1e-2)]
    assert by_scan == sorted(by_scan)


def test_a_database_and_a_model_need_devices_that_hold_them() -> None:
    tables = modelled_tables(PUBLISHED["case-1"], C, chips=CHIPS, servers=[1, 8, 16], batches=[1])
    assert tables["retrieve"].devices() == [16]  # 6.1 TB over servers of 384 GB
    assert 16 * HOST.memory >= PUBLISHED["case-1"].database_nbytes > 8 * HOST.memory
    large = modelled_tables(PUBLISHED["case-2"], C, chips=CHIPS, servers=[1], batches=[1])
    assert large["decode"].devices() == [2, 4, 8, 16]  # 140 GB over devices of 96 GB
    with pytest.raises(InputError, match="the stage prefill"):
        modelled_tables(PUBLISHED["case-2"], C, chips=[1], servers=[1], batches=[1])


def test_states_of_the_context_limit_the_batch() -> None:
    stage = Stage("decode", "decode", MODELS["llama-8b"], 256, 768, before=False)
    held = [point.batch for point in accelerator_points(stage, [1], BATCHES, C)]
    assert max(held) == 512  # 16 GB of weights, and 0.1 GB of states for each sequence
    assert 16e9 + 512 * 768 * 131072 < C.memory < 16e9 + 1024 * 768 * 131072


def test_width_shortens_and_depth_sends_less() -> None:
    stage = Stage("prefill", "prefill", MODELS["llama-8b"], 512)
    points = accelerator_points(stage, [32], [1], C)
    wide = min(points, key=lambda point: point.latency)
    assert wide.latency == pytest.approx(forward_seconds(MODELS["llama-8b"], 512, 32, C))
    deep = min(points, key=lambda point: point.interval)
    assert deep.interval < wide.interval
    assert deep.latency > wide.latency
    assert deep.working > wide.working  # several batches are under way


def test_a_token_costs_the_weights_and_the_states_read() -> None:
    model = MODELS["llama-8b"]
    assert step_seconds(model, 1, 0, 1, C) == pytest.approx(16e9 / (0.9 * 2765e9))
    more = step_seconds(model, 64, 768, 1, C)
    assert more == pytest.approx((16e9 + 64 * 768 * 131072) / (0.9 * 2765e9))


def test_devices_and_models_are_those_of_the_source() -> None:
    """Thesis, table 3.2 (TFLOPS, GB, GB/s of memory and of the network) and section 3.4; Llama 3's heads."""
    published = {"xpu-a": (197, 16, 819, 200), "xpu-b": (275, 32, 1200, 300), "xpu-c": (459, 96, 2765, 600)}
    for name, (flops, memory, bandwidth, network) in published.items():
        device = ACCELERATORS[name]
        assert (device.flops, device.memory) == (flops * 1e12, memory * 1e9)
        assert (device.bandwidth, device.network) == (bandwidth * 1e9, network * 1e9)
    assert (HOST.cores, HOST.memory, HOST.bandwidth, HOST.accelerators) == (96, 384e9, 460e9, 4)
    assert (HOST.scan_rate, HOST.utilisation) == (18e9, 0.8)
    for name, head in (("llama-1b", 64), ("llama-8b", 128), ("llama-70b", 128), ("llama-405b", 128)):
        model = MODELS[name]  # keys and values of 8 heads in each layer, in 16 bits
        assert model.kv_nbytes == 2 * 8 * head * 2 * model.layers
        assert model.nbytes == 2 * model.params
        billions = float(name.removeprefix("llama-").removesuffix("b"))
        assert model.params == pytest.approx(billions * 1e9, rel=0.25)
        # Attention and the feed-forward part (3 matrices, 3.5 times as wide or wider) make up most of the weights.
        assert 0.6 * model.params < model.layers * model.hidden**2 * 12.5 < 1.1 * model.params
    assert MODELS["encoder-120m"].kv_nbytes == 0
