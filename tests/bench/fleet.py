"""`fleet`: look-up processes and a network process that work together over TCP (FleetRec; Jiang's thesis, chapter 9).

Look-up nodes hold embedding tables and send concatenated rows; the network node computes the dense layers. The thesis
predicts the throughput as the minimum of both. Here a look-up node waits as long as banks of a stated speed would need,
so that the law can be checked with look-ups slower and faster than the layers of this machine.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from bench.banks import Banks
from bench.figures import Figure, higher, neither, tabulate
from bench.fleet_nodes import ROWS, TIMEOUT_S, receive, receive_exactly, send
from bench.options import Output, benchmark, stated

_NODE = Path(__file__).with_name("fleet_nodes.py")


@dataclass(frozen=True, slots=True)
class Model:
    """A model of MicroRec: its tables (table 8.1), accesses to the fullest bank (`rounds`, table 8.3), and the items a
    second of FleetRec and of the CPU at a deadline of 5, 10 and 20 ms (table 9.3); None where the CPU keeps no
    deadline."""

    name: str
    tables: int
    width: int
    rounds: int
    published: float
    cpu: tuple[float | None, ...]

    @property
    def dims(self) -> list[int]:
        """Components of each table's rows, as even as possible: the source prints only their sum."""
        return [self.width // self.tables + (i < self.width % self.tables) for i in range(self.tables)]


MODELS = (
    Model("47 tables", 47, 352, 1, 2.92e6, (7.30e3, 3.14e4, 5.96e4)),
    Model("98 tables", 98, 876, 2, 1.44e6, (None, 3.72e3, 1.64e4)),
)
DEADLINES_MS = (5.0, 10.0, 20.0)


def predicted(model: Model) -> float:
    """Items a second of the look-ups, one after the other, by MicroRec's model of a bank for rows of mean width."""
    return 1 / (model.rounds * Banks().seconds(model.width / model.tables))


def largest_within(latency: dict[int, float], deadline: float) -> float:
    """Items a second of the largest batch whose latency keeps the deadline; 0 if none does."""
    kept = [batch for batch, seconds in latency.items() if seconds <= deadline]
    return max(kept) / latency[max(kept)] if kept else 0.0


class Fleet:
    """Nodes in processes of their own: `nodes` for look-ups, which share the tables, and one for the network."""

    def __init__(self, dims: Sequence[int], nodes: int, seconds: float) -> None:
        self.dims = [list(dims[i::nodes]) for i in range(nodes)]
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = door.getsockname()[1]
            tasks = [f"network:{','.join(str(sum(own)) for own in self.dims)}"]
            tasks += [f"lookups:{i}:{seconds}:{','.join(map(str, own))}" for i, own in enumerate(self.dims)]
            self._processes: list[subprocess.Popen[bytes]] = []
            door.settimeout(TIMEOUT_S)
            inner = 0
            self._links: list[socket.socket] = []
            for number, task in enumerate(tasks):
                command = [sys.executable, str(_NODE), str(port), str(inner), task]
                self._processes.append(subprocess.Popen(command))
                link = door.accept()[0]
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._links.append(link)
                if not number:  # the network node says where it takes rows
                    inner = int(np.frombuffer(receive_exactly(link, 8) or b"\0" * 8, "<i8")[0])

    def run(self, batches: Sequence[npt.NDArray[np.int32]], flying: int) -> tuple[float, list[npt.NDArray[np.float32]]]:
        """Seconds of all batches with so many under way, and their clicks."""
        back, nodes = self._links[0], self._links[1:]
        room = threading.Semaphore(flying)
        columns = [list(range(i, sum(map(len, self.dims)), len(nodes))) for i in range(len(nodes))]

        def feed() -> None:
            for number, batch in enumerate(batches):
                room.acquire()
                for node, own in zip(nodes, columns, strict=True):
                    send(node, number, np.ascontiguousarray(batch[:, own]))

        started = time.perf_counter()
        feeder = threading.Thread(target=feed)
        feeder.start()
        found = []
        for number in range(len(batches)):
            message = receive(back, 1, "<f4")
            assert message is not None, "a node ended"
            assert message[0] == number, "batches keep their order"
            found.append(message[1])
            room.release()
        feeder.join()
        return time.perf_counter() - started, found

    def close(self) -> None:
        for link in self._links[::-1]:
            link.close()
        for process in self._processes:
            process.wait(TIMEOUT_S)


def items(tables: int, count: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """Indices of made-up items, [count, tables]."""
    return np.random.default_rng(seed).integers(0, ROWS, (count, tables)).astype(np.int32)


def rates(dims: Sequence[int], nodes: int, seconds: float, batch: int, batches: int) -> float:
    """Items a second with four batches under way."""
    fleet = Fleet(dims, nodes, seconds)
    try:
        some = [items(len(dims), batch, i) for i in range(batches)]
        fleet.run(some[:2], 2)
        return batch * batches / fleet.run(some, 4)[0]
    finally:
        fleet.close()


@benchmark
def fleet(
    *,
    nodes: Annotated[int, "Look-up processes."] = 2,
    batch: Annotated[int, "Items of a batch."] = 64,
    batches: int = 30,
    rounds: Annotated[int, "Turns of each measurement."] = 3,
    output: Output,
) -> None:
    """Look-ups and dense layers in separate processes: the law of the minimum, and items a second within deadlines."""
    law: dict[str, dict[str, Any]] = {}
    sweep: dict[str, dict[str, Any]] = {}
    for model in MODELS:
        law[f"{model.name}, as published"] = {
            "rounds": model.rounds, "predicted": predicted(model), "published": model.published,
        }  # fmt: skip
        layers = [rates(model.dims, nodes, 0.0, batch, batches) for _ in range(rounds)]
        alone = statistics.median(layers)
        for share in (0.25, 0.5, 2.0):
            joint = [rates(model.dims, nodes, 1 / (share * alone), batch, batches) for _ in range(rounds)]
            law[f"{model.name}, look-ups at {share:g} of the layers' rate"] = {
                "minimum": min(share, 1.0) * alone, "measured": joint,
            }  # fmt: skip
        sweep[model.name] = _deadlines(model, nodes, rounds)
    result = {"nodes": nodes, "batch": batch, "batches": batches, "rounds": rounds}
    output.put(result | {"law": law, "deadlines": sweep}, list(figures(law, sweep)), stated(result))


def _deadlines(model: Model, nodes: int, rounds: int) -> dict[str, Any]:
    """The largest batch within each deadline. Look-ups take a negligible time."""
    fleet = Fleet(model.dims, nodes, 0.0)
    try:
        latency = {}
        for size in (1, 4, 16, 32, 64, 128, 256, 512):
            times = [fleet.run([items(model.tables, size)], 1)[0] for _ in range(rounds + 1)]
            latency[size] = statistics.median(times[1:])
    finally:
        fleet.close()
    found = {f"{limit:g}": largest_within(latency, limit / 1e3) for limit in DEADLINES_MS}
    cpu = {f"cpu {limit:g}": rate for limit, rate in zip(DEADLINES_MS, model.cpu, strict=True)}
    return found | cpu


def figures(law: dict[str, dict[str, Any]], sweep: dict[str, dict[str, Any]]) -> Iterator[Figure]:
    names = {
        "rounds": neither("rounds, published"), "predicted": neither("look-ups, predicted", "/s"),
        "published": neither("published", "/s"), "minimum": neither("minimum, predicted", "/s"),
        "measured": higher("measured", "/s"),
    }  # fmt: skip
    yield from tabulate(law, names, "law of the minimum")
    columns = {f"{limit:g}": higher(f"{limit:g} ms, measured", "/s") for limit in DEADLINES_MS}
    columns |= {f"cpu {limit:g}": neither(f"{limit:g} ms, published CPU", "/s") for limit in DEADLINES_MS}
    yield from tabulate(sweep, columns, "within a deadline")
