"""The accelerator behind its two buses finds what the scores say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.devices.fpga.device import Image
from edge.devices.fpga.shape import ADDRESS, BUS, ENTRY, Shape, levels, stages
from edge.devices.fpga.simulation import missing, unpacked

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def answered(shape: Shape, sizes: tuple[int, int], *, steady: bool) -> tuple[list[int], list[int], int]:
    """The keys of two queries to two lists of so many rows, those expected, and the cycles from the last command to the
    first result. A memory that is not steady answers late, and sometimes not at once."""
    from amaranth.sim import Simulator

    from bench.board import Board

    random, units, lanes, dim, first = np.random.default_rng(1), shape.units, shape.lanes, shape.dim, sizes[0]
    rows = random.integers(0, 256, (sum(sizes), dim)).astype(np.uint8)
    image = Image.of([(rows[:first], None), (rows[first:], None)], units, lanes, shape.row_words)
    board, keys = Board(shape), shape.keys
    memory = [word >> BUS * beat & (1 << BUS) - 1 for word in unpacked(image.words) for beat in range(board.beats)]
    places = np.concatenate([np.arange(first), image.first[1] * units + np.arange(sizes[1])])
    cycle = began = took = 0
    found: list[int] = []
    expected: list[int] = []

    async def host(ctx: Any) -> None:
        nonlocal began, took

        async def bus(address: int, value: int = 0, write: int = 1) -> int:
            for port, given in ((board.adr, address), (board.dat_w, value), (board.we, write), (board.stb, 1)):
                ctx.set(port, given)
            while not ctx.get(board.ack):
                await ctx.tick()
            ctx.set(board.stb, 0)
            answer = int(ctx.get(board.dat_r))
            await ctx.tick()
            return answer

        async def give(name: str, value: int, bits: int) -> None:
            for at in range(0, bits, 32):
                await bus(0, value >> at & 0xFFFFFFFF)
            await bus(1 + board.inputs.index(name))

        for _ in range(2):
            query = random.integers(-(1 << 15), 1 << 15, dim)
            scores = rows.astype(np.int64) @ query >> max(0, ENTRY + 9 + levels(dim) - keys.score)
            expected.extend(
                sorted((keys.of(int(s), int(r)) for s, r in zip(scores, places, strict=True)), reverse=True)[:5]
            )
            await give("ceiling", (1 << keys.width) - 1, keys.width)
            for beat in query.astype("<i2").reshape(-1, lanes):
                await give("query", int.from_bytes(beat.tobytes(), "little"), 16 * lanes)
            for number in range(2):
                command = int(image.first[number]) | int(image.groups[number]) << ADDRESS | number << 2 * ADDRESS
                await give("commands", command, 2 * ADDRESS + 1)
            last, began = False, cycle
            while not last:
                words = [await bus(at, write=0) for at in range(board.result_words)]
                answer = sum(word << 32 * at for at, word in enumerate(words))
                if words[-1] >> 31:
                    took = took or cycle - began
                    found.append(answer & (1 << keys.width) - 1)
                    last = bool(answer >> 2 * keys.width & 1)

    async def storage(ctx: Any) -> None:
        nonlocal cycle
        asked: list[int] = []
        while True:
            stall = int(not steady and random.random() < 0.3)
            ctx.set(board.mem_stall, stall)
            if ctx.get(board.mem_stb) and not stall:
                asked.append(ctx.get(board.mem_adr))
            answers = len(asked) > 3 or (bool(asked) and (steady or random.random() < 0.2))
            ctx.set(board.mem_ack, int(answers))
            if answers:
                ctx.set(board.mem_dat_r, memory[asked.pop(0)])
            cycle += 1
            await ctx.tick()

    simulator = Simulator(board)
    simulator.add_clock(1e-6)
    simulator.add_testbench(host)
    simulator.add_testbench(storage, background=True)
    simulator.run()
    return found, expected, took


@pytest.mark.parametrize(("dim", "units", "lanes"), [(12, 2, 4), (16, 4, 8)])
def test_queries_and_results_pass_the_host_bus_and_codes_the_memory_bus(dim: int, units: int, lanes: int) -> None:
    shape = Shape("bytes", dim, 0, units=units, results=5, kept=5, lanes=lanes)
    found, expected, _ = answered(shape, (30, 15), steady=False)
    assert found == expected


def test_words_wider_than_the_bus_take_the_cycles_that_the_model_says() -> None:
    shape = Shape("bytes", 16, 0, units=4, results=5, kept=5, lanes=8)
    found, expected, took = answered(shape, (40, 760), steady=True)
    assert found == expected
    own = stages(shape, [800], BUS)
    assert own.scan == 200 * 2 * 3, "two words of 260 bits a row of each unit"
    assert took == pytest.approx(own.scan + own.emptying + own.results, rel=0.05)
