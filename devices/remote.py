"""A device in another process. Lists are sent to it over a pipe, and searched there."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import deque
from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.config import format_size, parse_size
from edge.devices.remote_process import Array, receive, send
from edge.errors import BudgetExceeded, CapabilityError, DeviceLost
from edge.ivf.base import Bytes, Codec
from edge.ivf.device import Candidates, SearchRequest
from edge.link import Lane
from edge.trace import Trace

_PROCESS_NBYTES = 96 << 20
"""Bytes leased for the process itself while it starts. Afterwards the lease has the size that the process reports."""

_WORKING_NBYTES = 16 << 20
"""Bytes for the queries, filters and results of one request in the process."""

_GRACE_S = 5.0


class RemoteDevice:
    """Runs `edge.devices.remote_process`, which searches as the host's processor does. One lease in this process's
    budget covers all memory that the other process may hold."""

    in_host_memory = False

    def __init__(self, memory: MemoryBudget, *, cap: int | str = 64 << 20, trace: Trace | None = None) -> None:
        """Starts the process.

        Args:
            memory: the memory budget of this process. Both processes together stay within it.
            cap: largest number of bytes of lists on the device, or a size such as `64MB`.

        Raises:
            BudgetExceeded: the cap and the process do not fit.
            DeviceLost: the process does not start.
        """
        cap = parse_size(cap)
        self.name = "remote"
        self._lock = threading.Lock()
        self._freed: deque[int] = deque()
        self._codecs: dict[int, Codec] = {}
        self._lost = ""
        self._lease = memory.reserve("remote device", cap + _PROCESS_NBYTES + _WORKING_NBYTES)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edge.devices.remote_process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            self._lease.release()
            raise DeviceLost(f"the process of device remote cannot be started: {error.strerror}") from error
        self.memory = MemoryBudget(cap, part=True)
        self.link = Lane("remote link", trace=trace)
        try:
            held = int(self._ask({"op": "hello", "cap": cap})[0]["held"])
            self._lease.resize(cap + held + _WORKING_NBYTES)
        except (DeviceLost, BudgetExceeded):
            self.close()
            raise

    def allocate(self, nbytes: int) -> int:
        """The number of a new buffer in the process. The caller holds a lease of `memory` for it."""
        return int(self._ask({"op": "allocate", "nbytes": nbytes})[0]["buffer"])

    def write(self, buffer: int, data: Bytes) -> None:
        """Sends codes [rows, code_size]."""
        self._ask({"op": "write", "buffer": buffer}, [data])

    def free(self, buffer: int) -> None:
        """Frees a buffer with the next request. The garbage collector may call this in the middle of a request."""
        self._freed.append(buffer)

    def search(self, request: SearchRequest) -> Candidates:
        """Scans in the process. Only rows that can be among the best are returned."""
        if not request.lists:
            return request.seen
        queries, width = request.seen.scores.shape
        header = {
            "op": "search",
            "width": width,
            "floors": [max(-1e38, request.seen.floor(query)) for query in range(queries)],
            "lists": [[s.codes, s.first, s.count, list(s.queries), s.rows is not None] for s in request.lists],
        }
        rows = [s.rows for s in request.lists if s.rows is not None]
        header["codec"] = self._codec(request.codec)
        _, (counts, scores, labels) = self._ask(header, [request.queries, *rows])
        start = 0
        for query, count in enumerate(counts.tolist()):
            request.seen.offer(query, scores[start : start + count], labels[start : start + count])
            start += count
        return request.seen

    def close(self) -> None:
        """Ends the process and frees its memory."""
        self.link.close()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # the process ends when its input ends
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._lease.release()

    def _codec(self, codec: Codec) -> int:
        """The number of a codec in the process. The codec's description is sent once."""
        number = id(codec)
        if self._codecs.get(number) is not codec:
            spec = codec.spec
            state = np.frombuffer(spec.state, np.uint8)
            header = {"op": "codec", "codec": number, "name": spec.name, "dim": spec.dim, "code_size": spec.code_size}
            self._ask(header, [state])
            self._codecs[number] = codec
        return number

    def _ask(self, header: dict[str, Any], arrays: list[Array] | None = None) -> tuple[dict[str, Any], list[Array]]:
        """Sends one request and returns its answer.

        Raises:
            DeviceLost: the process has ended.
            CapabilityError: the process refused the request.
        """
        with self._lock:
            if self._lost:
                raise DeviceLost(self._lost)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            freed = []
            while self._freed:
                freed.append(self._freed.popleft())
            try:
                send(self._process.stdin, header | {"freed": freed}, arrays or [])
                answer, found = receive(self._process.stdout)
            except (EOFError, OSError, ValueError) as error:
                code = self._process.poll()
                end = "does not answer" if code is None else f"ended with code {code}"
                self._lost = (
                    f"device remote is lost: its process {self._process.pid} {end}; the "
                    f"{format_size(self.memory.limit)} of lists that it could hold are searched elsewhere"
                )
                raise DeviceLost(self._lost) from error
        if "error" in answer:
            raise CapabilityError(f"device remote: {answer['error']}")
        return answer, found
