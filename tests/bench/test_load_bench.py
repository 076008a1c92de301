"""`load`: arrivals, what becomes of requests at a naive server, and the measures."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from naive.program import EDGE

from bench.altered import alter
from bench.load import Arrival, Sample, World, attained, drawn, opened, program_of, sent, summed
from edge.errors import InputError

WORLD = World(topics=3, each=2, length=5)


def test_arrivals_are_those_of_a_poisson_process() -> None:
    found = drawn(20.0, 200.0, {"ask": 3, "search": 1}, topics=4, seed=1)
    gaps = [b.at - a.at for a, b in itertools.pairwise(found)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.05)
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(mean, rel=0.1)
    assert sum(one.kind == "ask" for one in found) / len(found) == pytest.approx(0.75, abs=0.03)
    counts = [sum(one.topic == topic for one in found) / len(found) for topic in range(4)]
    assert counts == pytest.approx([share / (25 / 12) for share in (1, 1 / 2, 1 / 3, 1 / 4)], abs=0.03), "Zipf's law"
    assert found == drawn(20.0, 200.0, {"ask": 3, "search": 1}, topics=4, seed=1)


class _Naive(BaseHTTPRequestHandler):
    """Answers a question with two pieces 50 ms apart, refuses each second search, and breaks off orders."""

    searches = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/rerank":
            self.connection.close()
            return
        if self.path == "/v1/search":
            _Naive.searches += 1
            self.send_response(200 if _Naive.searches % 2 else 429)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        for data in ({"text": "a"}, {"text": "b"}, {"text": "ab", "citations": []}):
            time.sleep(0.05)
            self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def log_message(self, *values: object) -> None:
        """Says nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Naive) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_an_open_load_does_not_wait_for_answers(port: int) -> None:
    arrivals = [Arrival(0.01 * n, "ask", 0, n) for n in range(10)]
    began = time.perf_counter()
    samples = opened(port, arrivals, WORLD, 2, 10)
    assert time.perf_counter() - began < 10 * 0.15, "ten answers in turn take longer"
    assert [sample.pieces for sample in samples] == [2] * 10, "the whole text at the end is no piece"
    assert all(0.05 <= (sample.first or 0) < sample.whole for sample in samples)


def test_refused_and_lost_requests_have_missed_their_deadline(port: int) -> None:
    kinds = ["search", "search", "rerank", "ask"]
    samples = [sent(port, Arrival(0, kind, 0, n), WORLD, 2, None, 10) for n, kind in enumerate(kinds)]
    sums = summed(samples, 2.0, deadline=5.0)
    assert [sample.status for sample in samples] == [200, 429, 0, 200]
    assert (sums["within"], sums["refused"], sums["lost"], sums["requests_per_s"]) == (0.5, 0.25, 0.25, 1.0)


def test_measures_of_known_samples() -> None:
    samples = [Sample("ask", first=n / 10, whole=n / 10 + 0.9, pieces=10, status=200) for n in range(1, 21)]
    sums = summed(samples, 10.0, deadline=1.5)
    assert sums["first_p50"] == 1.0
    assert sums["first_p95"] == 1.9
    assert sums["token_p50"] == pytest.approx(0.1)
    assert sums["within"] == 15 / 20
    assert sums["tokens_per_s"] == 20.0


@pytest.mark.parametrize(
    ("kept", "rate"), [((1, 0.95, 0.9, 0.4), 3.0), ((1, 1, 0.8, 0), 2.5), ((0.8, 0.95, 1, 1), 0.0), ((1,) * 4, 4.0)]
)
def test_the_rate_up_to_which_the_deadline_is_kept(kept: tuple[float, ...], rate: float) -> None:
    assert attained([1, 2, 3, 4], kept) == pytest.approx(rate)


def test_a_system_may_leave_parts_out() -> None:
    assert program_of("--answers 2") == list(EDGE)
    *_, script, changes = program_of("--answers 2 @tree,queue @slow=25MB")
    assert changes == "tree,queue,slow=25MB"
    code = f"import runpy, sys; sys.argv = ['altered', {changes!r}, '--version']; runpy.run_path({script!r}, "
    code += "run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "edge" in done.stdout
    with pytest.raises(InputError, match="none of tree"):
        alter("everything")
