"""The accelerator behind its two buses finds what the scores say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.devices.fpga.searching import Image
from edge.devices.fpga.shape import ADDRESS, BUS, ENTRY, Shape, levels
from edge.devices.fpga.simulation import missing, unpacked

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.mark.parametrize(("dim", "units", "lanes"), [(12, 2, 4), (16, 4, 8)])
def test_queries_and_results_pass_the_host_bus_and_codes_the_memory_bus(dim: int, units: int, lanes: int) -> None:
    from amaranth.sim import Simulator

    from bench.board import Board

    shape = Shape("bytes", dim, 0, units=units, results=5, kept=5, lanes=lanes)
    random = np.random.default_rng(1)
    rows = random.integers(0, 256, (45, dim)).astype(np.uint8)
    image = Image.of([(rows[:30], None), (rows[30:], None)], units, lanes, shape.row_words)
    board, keys = Board(shape), shape.keys
    memory = [word >> BUS * beat & (1 << BUS) - 1 for word in unpacked(image.words) for beat in range(board.beats)]
    assert board.beats == (1 if units == 2 else 3)
    places = np.concatenate([np.arange(30), image.first[1] * units + np.arange(15)])
    found: list[int] = []
    expected: list[int] = []

    async def host(ctx: Any) -> None:
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
            last = False
            while not last:
                words = [await bus(at, write=0) for at in range(board.result_words)]
                answer = sum(word << 32 * at for at, word in enumerate(words))
                if words[-1] >> 31:
                    found.append(answer & (1 << keys.width) - 1)
                    last = bool(answer >> 2 * keys.width & 1)

    async def storage(ctx: Any) -> None:
        """A memory that answers late, and sometimes not at once."""
        asked: list[int] = []
        while True:
            stall = int(random.random() < 0.3)
            ctx.set(board.mem_stall, stall)
            if ctx.get(board.mem_stb) and not stall:
                asked.append(ctx.get(board.mem_adr))
            answers = len(asked) > 3 or (bool(asked) and random.random() < 0.2)
            ctx.set(board.mem_ack, int(answers))
            if answers:
                ctx.set(board.mem_dat_r, memory[asked.pop(0)])
            await ctx.tick()

    simulator = Simulator(board)
    simulator.add_clock(1e-6)
    simulator.add_testbench(host)
    simulator.add_testbench(storage, background=True)
    simulator.run()
    assert found == expected
