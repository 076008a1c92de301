"""`fleet`: look-up processes and a network process that work together over TCP (FleetRec; Jiang's thesis, chapter 9).

Look-up nodes hold embedding tables and send concatenated rows; the network node computes the dense layers. The thesis
predicts the throughput as the minimum of both. Here a look-up node waits as long as banks of a stated speed would need,
so that the law can be checked with look-ups slower and faster than the layers of this machine.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from bench.banks import Banks
from bench.figures import Column, Figure, tabulate
from bench.options import Output, benchmark, stated
from bench.process import MAIN

LAYERS = (1024, 512, 256, 1)
"""Outputs of the dense layers of both models (tables 8.1 and 9.2)."""

ROWS = 200
"""Rows of a table in a process. The rows read do not depend on their number."""

_HERE = ("127.0.0.1", 0)


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


def lookups(address: Any, onward: Any, number: int, dims: Sequence[int], seconds: float) -> None:
    """A look-up node: rows of all tables for each item, as wide as they are together, sent to the network node. The
    banks need `seconds` for an item."""
    tables = [np.random.default_rng(i).standard_normal((ROWS, dim)).astype(np.float32) for i, dim in enumerate(dims)]
    with Client(tuple(address)) as link, quick(Client(tuple(onward))) as network:
        network.send(number)
        for batch, indices in _messages(link):
            ready = time.perf_counter() + seconds * len(indices)
            rows = np.concatenate([table[indices[:, i]] for i, table in enumerate(tables)], axis=1)
            time.sleep(max(0.0, ready - time.perf_counter()))
            network.send((batch, rows))


def network(address: Any, widths: Sequence[int]) -> None:
    """The network node: concatenates the rows of all look-up nodes, and computes the dense layers."""
    layers = [
        (np.random.default_rng(i).standard_normal((a, b)) / math.sqrt(a)).astype(np.float32)
        for i, (a, b) in enumerate(itertools.pairwise([sum(widths), *LAYERS]))
    ]
    with quick(Client(tuple(address))) as back, Listener(_HERE) as door:
        back.send(door.address)
        links = [door.accept() for _ in widths]
        for parts in zip(*(_messages(link) for link in sorted(links, key=Connection.recv)), strict=False):
            values = np.concatenate([rows for _, rows in parts], axis=1)
            for layer in layers[:-1]:
                values = np.maximum(values @ layer, 0)
            back.send((parts[0][0], 1 / (1 + np.exp(-(values @ layers[-1])))))


def node(task: dict[str, Any]) -> dict[str, Any]:
    """The work of one process."""
    {"lookups": lookups, "network": network}[task["kind"]](*task["given"])
    return {}


def quick(link: Connection) -> Connection:
    """A connection that waits for no further message before it sends one."""
    with socket.socket(fileno=os.dup(link.fileno())) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def _messages(link: Connection) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The numbers and the arrays of batches, until the other end is closed."""
    try:
        while True:
            yield link.recv()
    except EOFError:
        return


class Fleet:
    """Nodes in processes of their own: `nodes` for look-ups, which share the tables, and one for the network."""

    def __init__(self, dims: Sequence[int], nodes: int, seconds: float) -> None:
        self.dims = [list(dims[i::nodes]) for i in range(nodes)]
        self._processes: list[subprocess.Popen[bytes]] = []
        with Listener(_HERE) as door:

            def begun(kind: str, *given: Any) -> Connection:
                command = [sys.executable, str(MAIN), "--worker", f"{node.__module__}:{node.__name__}"]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
                self._processes.append(process)
                with process.stdin as task:  # type: ignore[union-attr]
                    task.write(json.dumps({"kind": kind, "given": [door.address, *given]}).encode())
                return quick(door.accept())

            self._back = begun("network", [sum(own) for own in self.dims])
            inner = self._back.recv()
            self._nodes = [begun("lookups", inner, number, own, seconds) for number, own in enumerate(self.dims)]

    def run(self, batches: Sequence[npt.NDArray[np.int32]], flying: int) -> tuple[float, list[npt.NDArray[np.float32]]]:
        """Seconds of all batches with so many under way, and their clicks."""
        room = threading.Semaphore(flying)
        columns = [list(range(i, sum(map(len, self.dims)), len(self._nodes))) for i in range(len(self._nodes))]

        def feed() -> None:
            for number, batch in enumerate(batches):
                room.acquire()
                for node, own in zip(self._nodes, columns, strict=True):
                    node.send((number, batch[:, own]))

        started = time.perf_counter()
        feeder = threading.Thread(target=feed)
        feeder.start()
        found = []
        for number in range(len(batches)):
            batch, clicks = self._back.recv()
            assert batch == number, "batches keep their order"
            found.append(clicks)
            room.release()
        feeder.join()
        return time.perf_counter() - started, found

    def close(self) -> None:
        for link in (*self._nodes, self._back):
            link.close()
        for process in self._processes:
            process.wait(60.0)


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
        "rounds": Column("rounds, published"), "predicted": Column("look-ups, predicted", "/s"),
        "published": Column("published", "/s"), "minimum": Column("minimum, predicted", "/s"),
        "measured": Column("measured", "/s"),
    }  # fmt: skip
    yield from tabulate(law, names, "law of the minimum")
    columns = {f"{limit:g}": Column(f"{limit:g} ms, measured", "/s") for limit in DEADLINES_MS}
    columns |= {f"cpu {limit:g}": Column(f"{limit:g} ms, published CPU", "/s") for limit in DEADLINES_MS}
    yield from tabulate(sweep, columns, "within a deadline")
