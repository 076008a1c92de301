"""`growth`: throughput of 1 to 8 shards on throttled places, predicted and measured; and tables for shards that this
machine does not have, by the scale-out model of Jiang's thesis (section 6.6.3: LogGP, the maximum of N draws)."""

from __future__ import annotations

import heapq
import math
import random
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import click

from bench.figures import lower, neither, tabulate
from bench.options import Count, Output, benchmark, numbers, stated
from edge.apps.cluster.calling import Latencies, Reading
from edge.apps.cluster.catalogue import Replica

LATENCY_S, MESSAGE_S, BYTE_S, MERGE_S = 6.0e-6, 4.7e-6, 0.73e-9, 1.0e-6
"""The network of the thesis: latency L, overhead o of a message, seconds G per byte, and of a merge."""

REPLY_NBYTES = 40_000
"""Bytes of a shard's answer: 200 rows with their places, and 30 hits."""

SECONDS_PER_BYTE = 1 / 5e9
"""Of a scan of codes from memory by one core, assumed."""

PROBED = 0.02
"""Share of the lists that a search probes, assumed."""

VECTOR_NBYTES = 384 + 12
"""Of a passage in an index of codec sq8: its code, id and checksum."""

TEXT_NBYTES = 2_600
"""Of a passage on disk: its text, its full text, and its exact vector of 384 components; assumed."""

_SAMPLE = 400


class Throttle:
    """One server that works on one request after the other. It knows no clock: times are given."""

    def __init__(self) -> None:
        self._free = -math.inf
        self._lock = threading.Lock()

    def end(self, now: float, seconds: float) -> float:
        """The time at which a request of some seconds ends that arrives now."""
        with self._lock:
            self._free = max(self._free, now) + seconds
            return self._free


@dataclass(frozen=True, slots=True)
class Load:
    """Questions, and the seconds that each shard needs for each [questions][shards]; clients that ask one after the
    other."""

    seconds: Sequence[Sequence[float]]
    clients: int

    @staticmethod
    def drawn(questions: int, shards: int, whole: float, clients: int, seed: int = 0) -> Load:
        """Each shard holds its share of the work of `whole` seconds, half of which varies by question and shard."""
        chance = random.Random(seed)
        draws = [[0.5 + chance.expovariate(2.0) for _ in range(shards)] for _ in range(questions)]
        return Load([[whole / shards * draw for draw in row] for row in draws], clients)


def predicted(load: Load) -> float:
    """Questions per second, by events and without waiting."""
    throttles = [Throttle() for _ in load.seconds[0]]
    clients = [0.0] * load.clients
    for row in load.seconds:
        now = heapq.heappop(clients)
        heapq.heappush(clients, max(one.end(now, seconds) for one, seconds in zip(throttles, row, strict=True)))
    return len(load.seconds) / max(clients)


class ThrottledPlaces:
    """Answers requests after the time that a throttle tells."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._throttles = [Throttle() for _ in load.seconds[0]]

    def send(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
        answer: Future[tuple[bytes, bytes]] = Future()
        seconds = self._load.seconds[int(head)][int(replica.shard)]
        end = self._throttles[int(replica.shard)].end(time.perf_counter(), seconds)
        timer = threading.Timer(max(0.0, end - time.perf_counter()), answer.set_result, [(b"{}", b"")])
        timer.daemon = True
        timer.start()
        return answer

    def close(self) -> None:
        pass


def measured(load: Load) -> float:
    """Questions per second of the code that asks shards, whose answers take the throttled time."""
    places = ThrottledPlaces(load)
    shards = range(len(load.seconds[0]))
    replicas = [Replica(str(shard), 0, "", "", 0) for shard in shards]
    latencies = [Latencies() for _ in shards]
    with ThreadPoolExecutor(load.clients) as clients, ThreadPoolExecutor(load.clients * len(replicas)) as fan:

        def ask(number: int) -> None:
            calls = [
                Reading(places, [one], 1, {}, latencies[int(one.shard)], 600.0)  # type: ignore[arg-type]
                for one in replicas
            ]
            list(fan.map(lambda call: call("gather", str(number).encode(), b""), calls))

        began = time.perf_counter()
        list(clients.map(ask, range(len(load.seconds))))
        return len(load.seconds) / (time.perf_counter() - began)


def network_s(shards: int) -> float:
    """Seconds for a question to reach all shards and for the answers to come back, along a binary tree."""
    levels = math.ceil(math.log2(shards)) if shards > 1 else 0
    message = LATENCY_S + 2 * MESSAGE_S
    return levels * (2 * message + BYTE_S * REPLY_NBYTES + MERGE_S)


def table(rows: int, limit: int, chance: random.Random) -> dict[str, Any]:
    """Shards, memory and latencies for a number of vectors, each shard within a limit of memory."""
    shards = math.ceil(rows * VECTOR_NBYTES / (0.8 * limit))
    scan = rows / shards * PROBED * VECTOR_NBYTES * SECONDS_PER_BYTE
    history = [scan * (0.5 + chance.expovariate(2.0)) for _ in range(_SAMPLE)]  # of one shard
    draws = sorted(max(chance.choices(history, k=shards)) + network_s(shards) for _ in range(_SAMPLE))
    gathered = shards * REPLY_NBYTES
    return {
        "shards": shards, "memory": shards * limit, "disk": rows * TEXT_NBYTES, "median": statistics.median(draws),
        "p99": draws[int(0.99 * len(draws))], "network": network_s(shards), "cpu": shards * scan,
        "gathered": gathered, "per_core": 1 / scan,
        "first": "the coordinator's merge" if gathered * BYTE_S > scan else "scans of a shard",
    }  # fmt: skip


@benchmark
def growth(
    *,
    counts: Annotated[Sequence[int], numbers(), "Numbers of shards."] = (1, 2, 4, 8),
    questions: Annotated[Count, "Questions in a run."] = 60,
    clients: Annotated[Count, "That ask at once."] = 8,
    whole: Annotated[float, click.FloatRange(0, min_open=True), "Seconds of a question on one place."] = 0.4,
    limit_gb: Annotated[Count, "Memory of a shard in the tables, in GB."] = 16,
    output: Output,
) -> None:
    """Predict the throughput of shards on throttled places, and measure it; then derive tables for more vectors."""
    rows: dict[str, dict[str, Any]] = {}
    for count in counts:
        load = Load.drawn(questions, count, whole, clients)
        expected, found = predicted(load), measured(load)
        rows[f"{count} shards"] = {"predicted": expected, "measured": found, "error": expected / found - 1}
    chance = random.Random(0)
    tables = {f"10^{power} vectors": table(10**power, limit_gb * 10**9, chance) for power in (7, 8, 9)}
    conditions = {
        "places": "throttled in this process, no other machine", "questions": questions, "clients": clients,
        "seconds_of_a_question": whole, "tables": "derived, by LogGP and the maximum of N draws; nothing was measured",
        "limit": limit_gb * 10**9, "share_probed": PROBED,
    }  # fmt: skip
    columns = {
        "predicted": neither("predicted", "/s"), "measured": neither("measured", "/s"), "error": neither("error", "%"),
    }  # fmt: skip
    derived = {
        "shards": neither("shards"), "memory": neither("memory of all", "B"), "disk": neither("disk of all", "B"),
        "median": lower("median of the vectors", "s"), "p99": lower("p99", "s"), "network": lower("network", "s"),
        "cpu": neither("processor time", "s"), "per_core": neither("questions per core", "/s"),
    }  # fmt: skip
    figures = [*tabulate(rows, columns, "throttled places"), *tabulate(tables, derived, "derived, not measured")]
    output.put({"conditions": conditions, "rows": rows, "tables": tables}, figures, stated(conditions))
