"""`JsonSize`: the memory of a JSON text once it is parsed, counted while its bytes arrive."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ASCII, _WIDE, _PER_MARK = 8, 24, 260
"""Memory of a text parsed by pydantic or Python's `json`, with one more copy of the arguments, which a tool may make:
per byte of ASCII text, per byte if wider characters make Python's strings wide, and per mark of its structure."""

_TYPED_ASCII, _TYPED_WIDE, _TYPED_MARK = 2, 8, 180
"""Likewise for a text parsed by msgspec, with one more copy of its texts. Measured without the copy: 1 and 4 bytes per
byte of a text, and 83 bytes per mark for objects of one field, no two of which have the same name."""

_QUOTE = ord('"')
_MARKS: npt.NDArray[np.bool_] = np.isin(np.arange(256), list(b"[{,:"))


class JsonSize:
    """Counts the marks of a JSON text piece by piece, without keeping or parsing it.

    Attributes:
        length: bytes so far.
        structure: number of marks outside strings that begin a value or separate two values. Each costs an object when
            parsed.
        wide: whether a non-ASCII byte was read, or an escape that may stand for a non-ASCII character.
    """

    def __init__(self) -> None:
        self.length = 0
        self.structure = 0
        self.wide = False
        self._in_string = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Reads the next bytes."""
        self.length += len(data)
        # An escaped quote ends no string. Blanks take the places of such pairs; half a pair waits for the next piece.
        plain = (self._rest + data).replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        self.wide = self.wide or not data.isascii() or b"\\u" in plain
        self._rest = b"\\" if plain.endswith(b"\\") else b""
        octets = np.frombuffer(plain, np.uint8, len(plain) - len(self._rest))
        if octets.size:
            inside = (np.cumsum(octets == _QUOTE, dtype=np.int32) + self._in_string) & 1
            self.structure += int(np.count_nonzero(_MARKS[octets] & (inside == 0)))
            self._in_string = int(inside[-1])

    def nbytes(self, *, typed: bool = False) -> int:
        """The most memory, in bytes, that the text so far takes while it is parsed or written."""
        if typed:
            return self.length * (_TYPED_WIDE if self.wide else _TYPED_ASCII) + self.structure * _TYPED_MARK
        return self.length * (_WIDE if self.wide else _ASCII) + self.structure * _PER_MARK
