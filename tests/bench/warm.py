"""`warm`: how long `edge search` takes, from its start to its end, with and without a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import click

from bench.figures import lower, tabulate
from bench.options import ARGUMENT, Count, Output, benchmark, stated
from bench.process import drop_page_cache, processor, timed
from edge.apps.collection.registry import locate
from edge.errors import EdgeError
from edge.models.registry import models_dir

_START_S = 60.0
_KINDS = ("alone_cold", "alone_warm", "server_first", "server_warm")


@benchmark
def warm(
    *,
    folders: Annotated[tuple[Path, ...], click.Path(exists=True, path_type=Path), ARGUMENT] = (),
    collection: Annotated[
        str | None, "-c", "--collection", "Collection to search, if none is made from FOLDERS."
    ] = None,
    query: str = "how does the memory limit hold",
    runs: Annotated[Count, "Of each measurement."] = 20,
    output: Output,
) -> None:
    """Time whole `edge search` processes with and without a server, cold and warm.

    Cold: the pages of the collection and of pulled models are forgotten before each run. With a server, the first
    search after its start opens the models. The programs and libraries themselves stay in the page cache.
    """
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        runtime = base / "run"
        runtime.mkdir(mode=0o700)
        searching = Searching(collection or "", query, dict(os.environ, XDG_RUNTIME_DIR=str(runtime)))
        if folders:
            searching.collection = str(base / "collection")
            searching.edge("index", *map(str, folders), "-c", searching.collection)
        rows = [searching.measured(runs, reranked) for reranked in (False, True)]
    report = {"processor": processor(), "runs": runs, "rows": rows}
    shown = {"reranked" if row["reranked"] else "not reranked": row for row in rows}
    columns = {kind: lower(kind.replace("_", ", "), "s") for kind in _KINDS}
    output.put(report, tabulate(shown, columns), stated(report))


class Searching:
    """Searches in processes of their own."""

    def __init__(self, collection: str, query: str, environment: dict[str, str]) -> None:
        self.collection = collection
        self._query = query
        self._environment = environment
        script = Path(sys.executable).with_name("edge.exe" if os.name == "nt" else "edge")
        self._program = (
            [str(script)] if script.exists() else [sys.executable, "-c", "from edge.apps.cli import main; main()"]
        )

    def edge(self, *arguments: str) -> str:
        """Runs a command and returns its output.

        Raises:
            EdgeError: it failed.
        """
        done = subprocess.run(
            [*self._program, *arguments], env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise EdgeError(f"`edge {' '.join(arguments[:2])}` failed: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout

    def measured(self, runs: int, reranked: bool) -> dict[str, Any]:
        """Times in seconds, of each kind of run.

        Raises:
            EdgeError: a search fails, the server was not used, or results differ.
        """
        alone: list[Any] = []
        served: list[Any] = []
        cold = [self._timed(alone, reranked, cold=True) for _ in range(runs)]
        warm = [self._timed(alone, reranked) for _ in range(runs)]
        first: list[float] = []
        for _ in range(max(1, runs // 5)):
            with self._server():
                first.append(self._timed(served, reranked))
        with self._server():
            self._timed(served, reranked)
            kept = [self._timed(served, reranked) for _ in range(runs)]
        if any(not found["stats"]["server"].startswith("used") for found in served):
            raise EdgeError(f"the server was {served[0]['stats']['server']}")
        if any(found["results"] != alone[0]["results"] for found in (*alone, *served)):
            raise EdgeError("the server found something else than the command alone")
        return {
            "reranked": reranked, "alone_cold": cold, "alone_warm": warm, "server_first": first, "server_warm": kept,
        }  # fmt: skip

    def _timed(self, found: list[Any], reranked: bool, *, cold: bool = False) -> float:
        if cold:
            for folder in (locate(self.collection or None), models_dir()):
                if folder.exists():
                    drop_page_cache(folder)
        place = ("-c", self.collection) if self.collection else ()
        rerank = () if reranked else ("--no-rerank",)
        (printed,), (seconds,) = timed(
            lambda query: self.edge("search", query, *place, *rerank, "--json"), [self._query]
        )
        found.append(json.loads(printed))
        return seconds

    @contextmanager
    def _server(self) -> Iterator[None]:
        place = ("-c", self.collection) if self.collection else ()
        process = subprocess.Popen(
            [*self._program, "serve", "--port", "0", *place], env=self._environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            if "http://" not in process.stdout.readline():
                process.wait(_START_S)
                raise EdgeError(f"the server did not start: {process.stderr.read() if process.stderr else ''}")
            ends = time.monotonic() + _START_S
            while True:
                with suppress(EdgeError):
                    self.edge("serve", "--status")
                    break
                if time.monotonic() > ends:
                    raise EdgeError("the server does not answer")
            yield
        finally:
            process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
            process.communicate(timeout=_START_S)
