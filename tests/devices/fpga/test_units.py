"""Each unit of the design equals its twin in integers, while its streams pause at random."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth")
from amaranth.sim import Simulator

from edge.devices.fpga.accelerator import PqScorer, SystolicQueue, TableBuilder, TruncatedQueues, WeightedScorer
from edge.devices.fpga.shape import CODES, KeyForm

WIDTH = 20
RANDOM = np.random.default_rng(5)


def keys(count: int, seed: int = 0) -> list[int]:
    """Different keys; none is 0."""
    return (1 + np.random.default_rng(seed).permutation((1 << WIDTH) - 1)[:count]).tolist()


def pushed(values: list[int], width: int = WIDTH) -> list[int]:
    """A stream of keys of which the last says so."""
    return [value | (i == len(values) - 1) << width for i, value in enumerate(values)]


def pulled(values: list[int], width: int = WIDTH) -> list[list[int]]:
    """The keys of each run."""
    runs: list[list[int]] = [[]]
    for value in values:
        runs[-1].append(value & (1 << width) - 1)
        if value >> width & 1:
            runs.append([])
    return runs[:-1]


@pytest.mark.parametrize("length", [1, 2, 10])
def test_a_queue_keeps_the_largest_keys_run_after_run_and_says_what_it_dropped(length: int) -> None:
    runs = [keys(37, 1), [0], keys(3, 2), keys(length, 3), [*keys(40, 4), 0]]
    best = [sorted(run, reverse=True)[:length] for run in runs]
    best = [[key for key in run if key] or [0] for run in best]
    found = streamed(
        SystolicQueue(length, WIDTH), {"push": [word for run in runs for word in pushed(run)]},
        {"pull": sum(map(len, best))}, watched={"dropped": "pull"}, seed=length,
    )  # fmt: skip
    assert pulled(found["pull"]) == best
    ends = np.cumsum([len(run) for run in best]) - 1
    assert [found["dropped"][i] for i in ends] == [max([0, *sorted(run)[:-length]]) for run in runs]


def test_truncated_queues_are_exact_down_to_the_best_key_that_one_dropped() -> None:
    streams, kept, results = 3, 2, 5
    runs = [[keys(20, 3 * run + i) for i in range(streams)] for run in range(3)]
    for run in runs:  # no key twice
        for i, lane in enumerate(run):
            lane[:] = [key // streams * streams + i for key in lane]
    wanted, lost = [], []
    for run in runs:
        first = [sorted(set(lane), reverse=True) for lane in run]
        merged = sorted((key for lane in first for key in lane[:kept]), reverse=True)
        wanted.append(merged[:results])
        lost.append(max([*(key for lane in first for key in lane[kept:]), *merged[results:]]))
    given = {f"push__{i}": [word for run in runs for word in pushed(run[i])] for i in range(streams)}
    unit = TruncatedQueues(streams, kept, results, WIDTH)
    found = streamed(unit, given, {"pull": 3 * results}, watched={"dropped": "pull"}, seed=1)
    assert pulled(found["pull"]) == wanted
    assert found["dropped"][results - 1 :: results] == lost


@pytest.mark.parametrize(("parts", "loads"), [(4, 1), (6, 2)])
def test_look_up_tables_score_codes_in_either_half(parts: int, loads: int) -> None:
    form = KeyForm(score=20, row=10)
    tables = RANDOM.integers(-(1 << 15), 1 << 15, (2, parts, CODES))
    unit, share = PqScorer(parts, form, loads), parts // loads
    bits = max(1, (max(2, share) - 1).bit_length())
    given: dict[str, list[int]] = {f"load__{i}": [] for i in range(loads)}
    for half, part, code in np.ndindex(tables.shape):
        value = int(tables[half, part, code]) & 0xFFFF
        word = half | part % share << 1 | code << 1 + bits | value << 9 + bits
        given[f"load__{part // share}"].append(word)
    codes, halves = RANDOM.integers(0, CODES, (40, parts)), RANDOM.integers(0, 2, 40)
    scores = [int(sum(tables[h, p, c] for p, c in enumerate(code))) for h, code in zip(halves, codes, strict=True)]
    ceiling = sorted(form.of(score, i) for i, score in enumerate(scores))[30]
    wanted = [form.of(score, i) for i, score in enumerate(scores)]
    wanted = [0 if half and key > ceiling else key for key, half in zip(wanted, halves, strict=True)]
    rows = [*range(39), form.no_row]
    wanted[39] = 0
    given["codes"] = [
        sum(int(c) << 8 * p for p, c in enumerate(code)) | row << 8 * parts | int(half) << 8 * parts + 10
        for code, row, half in zip(codes, rows, halves, strict=True)
    ]
    found = streamed(
        unit, given, {"scores": 40}, ports={"ceilings__0": (1 << 30) - 1, "ceilings__1": ceiling},
        before=[f"load__{i}" for i in range(loads)], stall=0.1,
    )  # fmt: skip
    assert found["scores"] == wanted


@pytest.mark.parametrize(("lanes", "beats"), [(3, 1), (4, 3)])
def test_weighted_sums_score_bytes(lanes: int, beats: int) -> None:
    form = KeyForm(score=22, row=8)
    unit = WeightedScorer(lanes, beats, form)
    weights = RANDOM.integers(-(1 << 15), 1 << 15, (beats, lanes))
    bits = max(1, (max(2, beats) - 1).bit_length())
    load = [
        1 | beat << 1 | sum((int(w) & 0xFFFF) << 16 * i for i, w in enumerate(row)) << 1 + bits
        for beat, row in enumerate(weights)
    ]
    codes = RANDOM.integers(0, CODES, (30, beats, lanes))
    given = [
        sum(int(c) << 8 * i for i, c in enumerate(beat)) | row << 8 * lanes | 1 << 8 * lanes + 8
        for row, code in enumerate(codes) for beat in code
    ]  # fmt: skip
    found = streamed(
        unit, {"load__0": load, "codes": given}, {"scores": 30},
        ports={"ceilings__0": 0, "ceilings__1": (1 << 30) - 1}, before=["load__0"],
    )  # fmt: skip
    assert found["scores"] == [form.of(int((code * weights).sum()) >> unit.shift, i) for i, code in enumerate(codes)]


def test_tables_are_the_products_of_a_query_with_all_centroids() -> None:
    parts, width, lanes = 3, 4, 2
    unit = TableBuilder(parts, width, lanes)
    book = RANDOM.integers(-127, 128, (parts, CODES, width))
    queries = RANDOM.integers(-(1 << 15), 1 << 15, (2, parts, width))
    flat = book.reshape(-1, lanes)
    bits = (unit.words - 1).bit_length()
    load = [i | sum((int(v) & 0xFF) << 8 * j for j, v in enumerate(row)) << bits for i, row in enumerate(flat)]
    asked = [sum((int(v) & 0xFFFF) << 16 * j for j, v in enumerate(row)) for row in queries.reshape(-1, lanes)]
    found = streamed(
        unit, {"codebook": load, "query": asked}, {"entries": 2 * parts * CODES}, ports={"go": 1},
        before=["codebook"], stall=0.05,
    )["entries"]  # fmt: skip
    products = np.einsum("pcw,qpw->qpc", book, queries) >> unit.shift
    assert np.abs(products).max() < 1 << 15
    wanted = [
        part << 1 | code << 3 | (int(products[q, part, code]) & 0xFFFF) << 11
        for q, part, code in np.ndindex(products.shape)
    ]
    assert found == wanted


def streamed(
    unit: Any,
    given: Mapping[str, Sequence[int]],
    expected: Mapping[str, int],
    *,
    ports: Mapping[str, int] | None = None,
    watched: Mapping[str, str] | None = None,
    stall: float = 0.3,
    seed: int = 0,
    limit: int = 20_000,
    before: Sequence[str] = (),
) -> dict[str, list[int]]:
    """The payloads that leave each expected stream. Outputs in `watched` are recorded with each word of a stream, under
    their own names; the input streams `before` are emptied before the others begin."""
    chance = random.Random(seed)
    found: dict[str, list[int]] = {name: [] for name in (*expected, *(watched or {}))}

    def port(name: str) -> Any:
        at = unit
        for step in name.split("__"):
            at = at[int(step)] if step.isdigit() else getattr(at, step)
        return at

    def raw(value: Any) -> Any:
        return value.as_value() if hasattr(value, "as_value") else value

    async def bench(ctx: Any) -> None:
        for name, value in (ports or {}).items():
            ctx.set(port(name), value)
        waiting = {name: list(values) for name, values in given.items()}
        offering = dict.fromkeys(given, False)
        cycle = 0
        while any(len(found[name]) < count for name, count in expected.items()):
            cycle += 1
            assert cycle < limit, f"no result after {limit} cycles: { ({k: len(v) for k, v in found.items()}) }"
            held = any(waiting[name] for name in before)
            for name, values in waiting.items():
                if not offering[name] and values and chance.random() >= stall and (name in before or not held):
                    ctx.set(raw(port(name).payload), values[0])
                    offering[name] = True
                ctx.set(port(name).valid, offering[name])
            for name in expected:
                ctx.set(port(name).ready, chance.random() >= stall)
            taken = [name for name in given if offering[name] and ctx.get(port(name).ready)]
            for name in expected:
                if ctx.get(port(name).valid) and ctx.get(port(name).ready):
                    found[name].append(ctx.get(raw(port(name).payload)))
                    for watch, of in (watched or {}).items():
                        if of == name:
                            found[watch].append(ctx.get(raw(port(watch))))
            await ctx.tick()
            for name in taken:
                waiting[name].pop(0)
                offering[name] = False

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return found
