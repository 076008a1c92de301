"""`serve`: sends concurrent requests to a running server, with and without shared passes, and to a peer."""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from naive.program import EDGE

from bench.figures import Figure, higher, lower, tabulate
from bench.options import Names, Output, Precision, Rounds, Threads, WorkDir, benchmark, numbers, stated
from bench.process import TreeWatch, drop_page_cache, in_turn, processor, timed
from bench.rerank_memory import made
from bench.texts import documents
from edge.config import parse_size
from edge.errors import EdgeError
from edge.models.packed import PackedModel
from edge.models.registry import DEFAULT_RERANKER, resolve
from edge.models.tokenizer import PairTokenizer

_QUERY = "how does a device answer a query within its memory budget"
_SYSTEMS = ("shared", "alone", "infinity")
_PEERS = ("infinity",)
_START_S = 180.0
_FORGET_S = 0.05
_ANSWER_S = 3600.0
"""The seconds that an answer may take. A peer on few cores may need many minutes for the requests of several clients at
once."""


@benchmark
def serve(
    *,
    model: Annotated[str, "Name or path of our server's reranker."] = DEFAULT_RERANKER,
    shape: Annotated[str, "Published shape with random weights, instead of that model."] = "",
    precision: Precision = "int8",
    candidates: int = 60,
    tokens: Annotated[int, "Of each query + document pair."] = 150,
    top_k: Annotated[
        int | None, "-k", "--top-k", "Results of each request; all if not given, and then nothing is pruned."
    ] = None,
    memory: Annotated[str, "Limit of our server."] = "300MB",
    threads: Threads = 2,
    counts: Annotated[Sequence[int], "--at-once", numbers(), "Numbers of clients."] = (1, 4, 16),
    requests: Annotated[int, "Of each measurement, over all clients."] = 16,
    rounds: Rounds = 2,
    systems: Annotated[Sequence[str], Names(_SYSTEMS)] = _SYSTEMS[:2],
    peer_python: Annotated[str, "Interpreter that has infinity-emb."] = sys.executable,
    peer_model: Annotated[
        Path | None, click.Path(exists=True, path_type=Path), "Checkpoint that the peer serves."
    ] = None,
    cold: Annotated[bool, "Forget the model's cached pages all the time, as where memory has no room."] = False,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Rerank by a server at several numbers of clients; every request has a query and candidates of its own."""
    if "infinity" in systems and peer_model is None:
        raise click.BadParameter("--peer-model names the checkpoint that infinity-emb serves")
    if shape:
        model = str(made(shape, precision, work_dir))
    with resolve(model, kind="reranker") as packed:
        bodies = _bodies(packed, requests, candidates, tokens, top_k)
    commands = {
        "shared": _edge(model, memory, threads, sharing=True),
        "alone": _edge(model, memory, threads, sharing=False),
        "infinity": _infinity(peer_python, peer_model),
    }

    def run(name: str) -> dict[str, Any]:
        with running(commands[name], name) as (port, watch), _forgotten(Path(model) if cold else None):
            _post(port, name, bodies[0])  # warms up: the server opens the model and reads its file
            at_once = {count: _measured(port, name, bodies, count) for count in counts}
        return {"at_once": at_once, "peak": watch.high_water}

    reports, _ = in_turn(rounds, systems, run)
    found = {name: {n: [run["at_once"][n] for run in runs] for n in counts} for name, runs in reports.items()}
    peaks = {name: max(run["peak"] for run in runs) for name, runs in reports.items()}
    conditions = {
        "model": Path(model).name, "precision": precision, "candidates": candidates, "tokens": tokens, "top_k": top_k,
        "limit": parse_size(memory), "threads": threads, "requests": requests, "rounds": rounds,
        "cold": cold, "processor": processor(), "peer_model": None if peer_model is None else peer_model.name,
    }  # fmt: skip
    rows = {
        name: {
            "peak_anonymous": peaks[name],
            "at_once": {
                str(n): {key: statistics.median(run[key] for run in runs) for key in runs[0]}
                for n, runs in measured.items()
            },
        }
        for name, measured in found.items()
    }
    result = {"conditions": conditions, "systems": rows}
    held = max((peaks[name] for name in systems if name not in _PEERS), default=0)
    output.put(result, figures(found, peaks), stated(conditions), held=held, limit=parse_size(memory))


def figures(found: dict[str, dict[int, list[dict[str, float]]]], peaks: dict[str, int]) -> Iterator[Figure]:
    columns = {
        "requests_per_s": higher("requests", "/s"), "median_s": lower("median", "s"), "p95_s": lower("p95", "s"),
        "peak": lower("peak", "B"),
    }  # fmt: skip
    for name, measured in found.items():
        rows = {
            f"{name}, {count} clients": {key: [run[key] for run in runs] for key in runs[0]} | {"peak": peaks[name]}
            for count, runs in measured.items()
        }
        yield from tabulate(rows, columns, peers=rows if name in _PEERS else ())


def _bodies(model: PackedModel, requests: int, candidates: int, tokens: int, top_k: int | None) -> list[bytes]:
    tokenizer = PairTokenizer(model.tokenizer_path, model.spec)
    found = []
    for number in range(requests):
        query = f"{_QUERY} {number}"
        body: dict[str, Any] = {"query": query, "documents": documents(tokenizer, query, candidates, tokens, number)}
        found.append(json.dumps(body if top_k is None else body | {"top_n": top_k}).encode())
    return found


def _infinity(python: str, model: Path | None) -> list[str]:
    start = "from infinity_emb.cli import cli; cli()"
    return [
        python, "-c", start, "v2", "--model-id", str(model), "--device", "cpu", "--port", "{port}",
        "--no-bettertransformer", "--engine", "torch",
    ]  # fmt: skip


def _edge(model: str, memory: str, threads: int, sharing: bool) -> list[str]:
    command = [*EDGE, "serve", "--port", "{port}", "--memory", memory, "--threads", str(threads)]
    return [*command, "--reranker", model, *([] if sharing else ["--no-sharing"])]


@contextmanager
def running(command: Sequence[str], name: str, path: str = "/health") -> Iterator[tuple[int, TreeWatch]]:
    """Runs a server, and gives its port and a watch of its memory when it answers a GET of the path.

    In the command, `{port}` stands for a free port, and `{folder}` for a folder that ends with the server.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        filled = [part.replace("{port}", str(port)).replace("{folder}", folder) for part in command]
        environment = dict(os.environ, XDG_RUNTIME_DIR=folder, EDGE_SCRATCH_DIR=folder)
        process = subprocess.Popen(
            filled, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
        watch = TreeWatch(process.pid)
        try:
            _wait(port, process, name, path)
            yield port, watch
        finally:
            watch.close()
            process.terminate()
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@contextmanager
def _forgotten(model: Path | None) -> Iterator[None]:
    """A context in which the cached pages of the model's files are dropped again and again."""
    stop = threading.Event()

    def forget(path: Path) -> None:
        while not stop.wait(_FORGET_S):
            drop_page_cache(path)

    thread = None if model is None else threading.Thread(target=forget, args=(model,), daemon=True)
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if thread is not None:
            thread.join()


def _wait(port: int, process: subprocess.Popen[str], name: str, path: str) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            said = (process.stderr.read() if process.stderr else "").strip().splitlines() or ["no output"]
            raise EdgeError(f"{name} did not start: {said[-1]}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:  # not while a server is still loading its model
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise EdgeError(f"{name} does not answer")


def _post(port: int, name: str, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        connection.request("POST", "/rerank", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise EdgeError(f"{name} answered {answer.status}: {text[:300].decode('utf-8', 'replace')}")


def _measured(port: int, name: str, bodies: Sequence[bytes], clients: int) -> dict[str, float]:
    """Sends all requests with a number of clients. Each client sends its next request after the answer to the last."""
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        seconds = sorted(pool.map(lambda body: timed(partial(_post, port, name), [body])[1][0], bodies))
    whole = time.perf_counter() - started
    return {
        "requests_per_s": len(bodies) / whole,
        "median_s": statistics.median(seconds),
        "p95_s": seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))],
    }
