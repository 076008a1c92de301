"""`Envelope`: finds the id of a JSON-RPC message piece by piece, without keeping or parsing the message.

A message that is too long is skipped, not read. Its sender still waits for an answer, and an answer needs the message's
id. Clients write the id before or after the long part.
"""

from __future__ import annotations

import json
import re

_MARKS = re.compile(rb'["\\\[\]{}:,]')
_QUOTES = re.compile(rb'["\\]')
_LONGEST = 200
"""Longest id or key, in bytes. Longer ones are ignored."""

_ASCII, _WIDE, _PER_MARK = 8, 24, 260
"""Memory of a parsed message: per byte of ASCII text, per byte if wider characters make Python's strings wide, and per
mark of its structure. Measured with pydantic 2 and one more copy of the arguments, which a tool may make."""

Id = str | int | None


def parsed_nbytes(length: int, structure: int, *, wide: bool) -> int:
    """The most memory, in bytes, that a JSON text takes while it is parsed or written.

    Args:
        length: length of the text in bytes.
        structure: number of marks that begin a value or separate two values.
        wide: whether the text contains characters beyond ASCII.
    """
    return length * (_WIDE if wide else _ASCII) + structure * _PER_MARK


class Envelope:
    """Reads the bytes of one JSON object as they arrive, and finds the value of the object's own `id`.

    Attributes:
        structure: number of marks outside strings that begin a value or separate two values. Each costs an object when
            parsed.
        wide: whether a non-ASCII byte was read, or an escape that may stand for a non-ASCII character.
    """

    def __init__(self) -> None:
        self.structure = 0
        self.wide = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._token = bytearray()
        self._key = b""
        self._id: Id = None

    @property
    def id(self) -> Id:
        """The id that was found so far; None if none was."""
        return self._id

    def feed(self, data: bytes) -> None:
        """Reads the next bytes."""
        self.wide = self.wide or not data.isascii() or b"\\u" in data
        at = 0
        if self._escaped and data:
            self._keep(data[:1])
            self._escaped, at = False, 1
        while at < len(data):
            if self._in_string:
                at = self._through_string(data, at)
                continue
            found = _MARKS.search(data, at)
            end = len(data) if found is None else found.start()
            self._keep(data[at:end])
            if found is None:
                return
            self._mark(found[0])
            at = end + 1

    def _through_string(self, data: bytes, at: int) -> int:
        found = _QUOTES.search(data, at)
        end = len(data) if found is None else found.start()
        self._keep(data[at:end])
        if found is None:
            return end
        self._keep(found[0])
        if found[0] == b'"':
            self._in_string = False
            return end + 1
        if end + 1 == len(data):
            self._escaped = True
            return end + 1
        self._keep(data[end + 1 : end + 2])
        return end + 2

    def _mark(self, mark: bytes) -> None:
        if mark == b'"':
            self._keep(mark)
            self._in_string = True
            return
        if mark in b"[{,:":
            self.structure += 1
        if self._depth == 1 and mark == b":":
            self._key = bytes(self._token).strip()
        elif self._depth == 1 and mark in b",}":
            self._value()
        if mark in b"[{":
            self._depth += 1
        elif mark in b"]}":
            self._depth -= 1
        self._token.clear()

    def _keep(self, data: bytes) -> None:
        if self._depth == 1 and len(self._token) <= _LONGEST:
            self._token += data[: _LONGEST + 1]

    def _value(self) -> None:
        if self._key == b'"id"' and len(self._token) <= _LONGEST:
            try:
                value = json.loads(bytes(self._token))
            except ValueError:
                return
            if isinstance(value, str | int) and not isinstance(value, bool):
                self._id = value
        self._key = b""
