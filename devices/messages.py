"""Messages between a device in another process and its user: a JSON header, and arrays as in memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

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
