"""Runs a unit of the design in Amaranth's simulator, with streams that pause at random."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.sim import Simulator


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
