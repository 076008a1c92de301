"""The process behind `edge.devices.remote`. It holds codes, and searches them as the host's processor does.

It reads requests from its standard input and answers on its standard output, until the input ends. A message is a JSON
header, and arrays as in memory.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodec, FaissCodecs
from edge.errors import EdgeError
from edge.ivf.base import Bytes, CodecSpec
from edge.ivf.device import Candidates, ListScan, SearchRequest
from edge.link import Lane
from edge.resident import anonymous_resident, share_heap, small_pages

Array = npt.NDArray[Any]

_LONGEST_HEADER = 64 << 20


def send(stream: IO[bytes], header: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
    """Writes one message.

    Raises:
        OSError, ValueError: the other side has closed the stream.
    """
    arrays = [np.ascontiguousarray(array) for array in arrays]
    described = header | {"arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
    data = json.dumps(described).encode()
    stream.write(struct.pack("<I", len(data)) + data)
    for array in arrays:
        if array.nbytes:
            stream.write(array.view(np.uint8).reshape(-1).data)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], list[Array]]:
    """Reads one message.

    Raises:
        EOFError: the other side has closed the stream.
        OSError, ValueError: the message is broken.
    """
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
    """The state of one device process."""

    def __init__(self) -> None:
        self._codecs: dict[int, FaissCodec] = {}
        self._buffers: dict[int, Bytes] = {}
        self._codes: dict[int, Bytes] = {}  # the filled part of each buffer, [rows, code_size]
        self._next = 0
        self._memory = MemoryBudget(1, part=True)
        self._device = CpuDevice(self._memory, link=Lane("unused"))

    def answer(self, header: dict[str, Any], arrays: list[Array]) -> tuple[dict[str, Any], list[Array]]:
        """Carries out a request.

        Raises:
            EdgeError: the request cannot be carried out.
        """
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
        lists, starts, firsts, end = [], [], [], 0
        for buffer, first, count, own, filtered in header["lists"]:
            lists.append(ListScan(self._codes[buffer], end, count, next(rows) if filtered else None, own))
            starts.append(end)
            firsts.append(first)
            end += count
        seen = Candidates.empty(len(queries), header["width"])
        codec = self._codecs[header["codec"]]
        seen = self._device.search(SearchRequest(codec, queries, lists, np.arange(end), seen))
        counts, scores, labels = [], [], []
        for query, floor in enumerate(header["floors"]):
            kept = (seen.labels[query] >= 0) & (seen.scores[query] > floor)
            own = seen.labels[query][kept]
            place = np.searchsorted(starts, own, side="right") - 1
            counts.append(len(own))
            scores.append(seen.scores[query][kept])
            labels.append(own - np.array(starts)[place] + np.array(firsts)[place])
        return [np.array(counts), np.concatenate(scores), np.concatenate(labels)]


def main() -> None:
    """Answers requests until the input ends."""
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


if __name__ == "__main__":
    main()
