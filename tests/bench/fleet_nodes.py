"""The processes of `fleet`: nodes that look rows up, and one that computes dense layers. It needs numpy alone."""

from __future__ import annotations

import itertools
import math
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LAYERS = (1024, 512, 256, 1)
"""Outputs of the dense layers of both models (tables 8.1 and 9.2)."""

ROWS = 200
"""Rows of a table in a process. The rows read do not depend on their number."""

TIMEOUT_S = 60.0


def send(link: socket.socket, number: int, array: npt.NDArray[Any]) -> None:
    """Sends a message: two numbers (of a batch: its own and its size) and an array."""
    link.sendall(np.array([number, len(array)], "<i8").tobytes() + array.tobytes())


def receive(link: socket.socket, width: int, kind: str) -> tuple[int, npt.NDArray[Any]] | None:
    """The number and the array [size, width] of a message; None at the end."""
    head = receive_exactly(link, 16)
    if head is None:
        return None
    number, count = np.frombuffer(head, "<i8")
    data = receive_exactly(link, int(count) * width * np.dtype(kind).itemsize) or b""
    return int(number), np.frombuffer(data, kind).reshape(int(count), width)


def receive_exactly(link: socket.socket, nbytes: int) -> bytes | None:
    """So many bytes; None at the end."""
    got = bytearray()
    while len(got) < nbytes:
        part = link.recv(nbytes - len(got))
        if not part:
            return None
        got += part
    return bytes(got)


def lookups(link: socket.socket, onward: socket.socket, dims: Sequence[int], seconds: float) -> None:
    """A look-up node: rows of all tables for each item, as wide as they are together, sent to the network node. The
    banks need `seconds` for an item."""
    tables = [np.random.default_rng(i).standard_normal((ROWS, dim)).astype(np.float32) for i, dim in enumerate(dims)]
    while (message := receive(link, len(dims), "<i4")) is not None:
        number, indices = message
        ready = time.perf_counter() + seconds * len(indices)
        rows = np.concatenate([table[indices[:, i]] for i, table in enumerate(tables)], axis=1)
        time.sleep(max(0.0, ready - time.perf_counter()))
        send(onward, number, rows)


def network(links: Sequence[socket.socket], back: socket.socket, widths: Sequence[int]) -> None:
    """The network node: concatenates the rows of all look-up nodes, and computes the dense layers."""
    sizes = [sum(widths), *LAYERS]
    layers = [
        (np.random.default_rng(i).standard_normal((a, b)) / math.sqrt(a)).astype(np.float32)
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]
    while True:
        parts = [receive(link, width, "<f4") for link, width in zip(links, widths, strict=True)]
        if any(part is None for part in parts):
            return
        number = parts[0][0]  # type: ignore[index]
        values = np.concatenate([part[1] for part in parts if part is not None], axis=1)
        for layer in layers[:-1]:
            values = np.maximum(values @ layer, 0)
        send(back, number, 1 / (1 + np.exp(-(values @ layers[-1]))))


def _node(port: int, inner: int, task: str) -> None:
    kind, _, rest = task.partition(":")
    link = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    link.settimeout(None)
    if kind == "network":
        widths = [int(width) for width in rest.split(",")]
        with socket.create_server(("127.0.0.1", 0)) as door:
            link.sendall(np.array([door.getsockname()[1]], "<i8").tobytes())
            found = {}
            for _ in widths:  # a look-up node begins with its number
                part = door.accept()[0]
                found[np.frombuffer(receive_exactly(part, 8) or b"", "<i8")[0]] = part
            links = [found[number] for number in sorted(found)]
        network(links, link, widths)
    else:
        number, seconds, dims = rest.split(":")
        with socket.create_connection(("127.0.0.1", inner), TIMEOUT_S) as onward:
            onward.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            onward.sendall(np.array([int(number)], "<i8").tobytes())
            lookups(link, onward, [int(dim) for dim in dims.split(",")], float(seconds))


if __name__ == "__main__":
    _node(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
