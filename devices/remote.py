"""A device in another process, which runs this module. A message is a JSON header, and arrays as in memory."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.config import format_size, parse_size
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodec, FaissCodecs
from edge.errors import BudgetExceeded, CapabilityError, DeviceLost, EdgeError
from edge.interpreter import python
from edge.ivf.base import Bytes, Codec, CodecSpec
from edge.ivf.device import Candidates, ListScan, SearchRequest
from edge.link import Lane
from edge.resident import anonymous_resident, share_heap, small_pages
from edge.trace import Trace

Array = npt.NDArray[Any]

_LONGEST_HEADER = 64 << 20


def send(stream: IO[bytes], header: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
    """Writes one message. OSError or ValueError if the other side has closed the stream."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    described = header | {"arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
    data = json.dumps(described).encode()
    stream.write(struct.pack("<I", len(data)) + data)
    for array in arrays:
        if array.nbytes:
            stream.write(array.view(np.uint8).reshape(-1).data)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], list[Array]]:
    """Reads one message. EOFError if the other side has closed the stream, OSError or ValueError if it is broken."""
    (length,) = struct.unpack("<I", _exactly(stream, 4))
    if length > _LONGEST_HEADER:
        raise ValueError(f"a header of {length:,} bytes is no header")
    header: dict[str, Any] = json.loads(_exactly(stream, length))
    arrays = []
    for dtype, shape in header.pop("arrays"):
        array = np.empty(shape, np.dtype(dtype))
        if array.nbytes:
            _fill(stream, array.view(np.uint8).reshape(-1).data)
        arrays.append(array)
    return header, arrays


def _exactly(stream: IO[bytes], nbytes: int) -> bytearray:
    data = bytearray(nbytes)
    _fill(stream, memoryview(data))
    return data


def _fill(stream: IO[bytes], into: memoryview) -> None:
    done = 0
    while done < len(into):
        count = stream.readinto(into[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count


class RemoteServer:
    def __init__(self) -> None:
        self._codecs: dict[int, FaissCodec] = {}
        self._buffers: dict[int, Bytes] = {}
        self._codes: dict[int, Bytes] = {}  # the filled part of each buffer, [rows, code_size]
        self._next = 0
        self._memory = MemoryBudget(1, part=True)
        self._device = CpuDevice(self._memory, link=Lane("unused"))

    def answer(self, header: dict[str, Any], arrays: list[Array]) -> tuple[dict[str, Any], list[Array]]:
        for buffer in header["freed"]:
            self._buffers.pop(buffer, None)
            self._codes.pop(buffer, None)
        match header["op"]:
            case "hello":
                self._memory = MemoryBudget(header["cap"], part=True)
                return {"held": anonymous_resident()}, []
            case "allocate":
                held = sum(buffer.nbytes for buffer in self._buffers.values())
                self._memory.reserve("lists", held + header["nbytes"]).release()
                self._next += 1
                self._buffers[self._next] = self._device.allocate(header["nbytes"])
                return {"buffer": self._next}, []
            case "write":
                codes = arrays[0]
                own = self._buffers[header["buffer"]][: codes.nbytes]
                own[:] = codes.reshape(-1)
                self._codes[header["buffer"]] = own.reshape(codes.shape)
                return {}, []
            case "codec":
                spec = CodecSpec(header["name"], header["dim"], header["code_size"], arrays[0].tobytes())
                self._codecs[header["codec"]] = FaissCodecs(threads=1).open(spec)
                return {}, []
            case "search":
                return {}, self._search(header, arrays)
        return {"error": f"there is no request {header['op']!r}"}, []

    def _search(self, header: dict[str, Any], arrays: list[Array]) -> list[Array]:
        """The number of rows found for each query, and their scores and labels, query after query."""
        queries, rows = arrays[0], iter(arrays[1:])
        lists, numbers, end = [], [], 0
        for buffer, first, count, own, filtered in header["lists"]:
            lists.append(ListScan(self._codes[buffer], end, count, next(rows) if filtered else None, own))
            numbers.append(np.arange(first, first + count))
            end += count
        seen = Candidates.empty(len(queries), header["width"])
        codec = self._codecs[header["codec"]]
        seen = self._device.search(SearchRequest(codec, queries, lists, np.concatenate(numbers), seen))
        counts, scores, labels = [], [], []
        for query, floor in enumerate(header["floors"]):
            kept = (seen.labels[query] >= 0) & (seen.scores[query] > floor)
            counts.append(int(kept.sum()))
            scores.append(seen.scores[query][kept])
            labels.append(seen.labels[query][kept])
        return [np.array(counts), np.concatenate(scores), np.concatenate(labels)]


def main() -> None:
    share_heap()
    small_pages()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    requests = sys.stdin.buffer
    server = RemoteServer()
    while True:
        try:
            header, arrays = receive(requests)
        except EOFError:
            return
        try:
            answer, found = server.answer(header, arrays)
        except (EdgeError, KeyError, ValueError) as error:  # the error is the answer, and the next request is read
            answer, found = {"error": str(error)}, []
        send(answers, answer, found)


_PROCESS_NBYTES = 96 << 20
"""Bytes leased for the process itself while it starts. Afterwards the lease has the size that the process reports."""

_WORKING_NBYTES = 16 << 20
"""Bytes for the queries, filters and results of one request in the process."""

_GRACE_S = 5.0


class RemoteDevice:
    """Runs `main` in another process. One lease covers all memory that it may hold."""

    in_host_memory = False

    def __init__(self, memory: MemoryBudget, *, cap: int | str = 64 << 20, trace: Trace | None = None) -> None:
        """Starts the process. Both processes stay within this budget; `cap` bounds the bytes of lists on the device."""
        cap = parse_size(cap)
        self.name = "remote"
        self._lock = threading.Lock()
        self._freed: deque[int] = deque()
        self._codecs: dict[int, Codec] = {}
        self._lost = ""
        self._lease = memory.reserve("remote device", cap + _PROCESS_NBYTES + _WORKING_NBYTES)
        try:
            self._process = subprocess.Popen(
                python("from edge.devices.remote import main; main()"),
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
