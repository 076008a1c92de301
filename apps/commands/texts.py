"""`read_texts` and `Lines`: read texts line by line, with one copy of each in memory, within the memory limit."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, TextIO

from edge.budget import import_nbytes
from edge.config import format_size
from edge.errors import BudgetExceeded, InputError
from edge.files.input_file import open_input
from edge.resident import anonymous_resident

_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""The characters to which `surrogateescape` decodes bytes that are not UTF-8."""

_COPIES = 3
"""The number of copies of a line while it is read: its pieces, the joined line, and the line without white space."""

_MEASURED = 128 << 10
"""The process's memory is measured after so many bytes of lines."""

_LEAST = 4 << 20
"""Bytes that may be read even if the limit leaves less. No model fits beside so little, so the command is refused when
the model is opened, where the smallest limit that works is known."""

_SLOT = 16
"""Bytes of an element in a list that grows."""

_UNIT = 16
"""Python's memory is given out in units of so many bytes."""


@dataclass(frozen=True, slots=True)
class InputText:
    """A text to rank or embed, with its id in the input, if it has one."""

    text: str
    id: str | None

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the document takes."""
        return _SLOT + sum(_held(part) for part in (self, self.text, self.id))


def read_texts(source: str, limit: int, libraries: Iterable[str] = ()) -> list[InputText]:
    """Reads texts from a file, or from stdin for `-`: one per line, or JSON Lines with `text` and an optional `id`.

    Args:
        source: the path of the file, or `-`.
        limit: the bytes that the whole process may hold.
        libraries: modules that are imported while the texts are in memory.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or a JSON line has no text. The message names the line.
        BudgetExceeded: the texts alone need more memory than the limit leaves.
    """
    name = "stdin" if source == "-" else source
    try:
        with open(sys.stdin.fileno(), "rb", closefd=False) if source == "-" else open_input(source) as file:
            documents = _documents(Lines(file, name, limit, libraries))
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from error
    if not documents:
        raise InputError(f"{name} holds no text")
    return documents


def _documents(lines: Lines) -> list[InputText]:
    documents: list[InputText] = []
    records: bool | None = None
    for number, line in lines:
        if records is None:  # the first line tells which of the two formats it is
            records = _is_record(line)
        documents.append(_record(line, lines.name, number) if records else InputText(line, None))
        lines.taken += documents[-1].nbytes - _held(line) - _SLOT
    return documents


class Lines:
    """Lines of UTF-8 with their numbers, without white space around them, and without empty lines.

    Attributes:
        name: of the file, for error messages.
        taken: the bytes that the caller holds of the lines until now. The caller corrects it if it holds more or less
            than the line itself.
    """

    def __init__(self, file: BinaryIO, name: str, limit: int, libraries: Iterable[str] = ()) -> None:
        """
        Args:
            limit: the bytes that the whole process may hold.
            libraries: modules that are imported while the lines are in memory.
        """
        self.name = name
        self.taken = 0
        self._file = file
        self._limit = limit
        self._libraries = libraries

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Reads to the end of the file.

        Raises:
            InputError: a line is not UTF-8.
            BudgetExceeded: the next line does not fit beside `taken`.
        """
        # With surrogates the message can name the line that is not UTF-8.
        file = io.TextIOWrapper(self._file, encoding="utf-8", errors="surrogateescape")
        try:
            yield from self._lines(file)
        finally:
            file.detach()  # otherwise the end of the wrapper would close the caller's file

    def _lines(self, file: TextIO) -> Iterator[tuple[int, str]]:
        limit, imported = self._limit, import_nbytes(self._libraries)
        held = anonymous_resident() + imported
        room = max(_LEAST, limit - held)
        number = measured = 0
        while line := file.readline((longest := max(0, room - self.taken) // _COPIES) + 1):
            number += 1
            if self.taken >= measured + _MEASURED:  # lines leave buffers and gaps in memory
                measured = self.taken
                room = min(room, max(_LEAST, limit - max(held, anonymous_resident() + imported - measured)))
            if len(line) > longest:
                raise _too_much(self.name, number, self.taken + _COPIES * len(line), held, limit)
            if number == 1:
                line = line.removeprefix("\ufeff")
            if bad := _NOT_UTF8.search(line):
                byte = len(line[: bad.start()].encode("utf-8"))
                raise InputError(f"{self.name}, line {number}: not valid UTF-8 (byte {byte})")
            line = line.strip()
            if line:
                self.taken += _held(line) + _SLOT
                yield number, line


def _held(value: object) -> int:
    """The bytes that an object takes from the allocator."""
    return -(-sys.getsizeof(value) // _UNIT) * _UNIT


def _too_much(name: str, number: int, taken: int, held: int, limit: int) -> BudgetExceeded:
    return BudgetExceeded(
        f"{name}: its texts up to line {number} need {format_size(taken)} beside the {format_size(held)} that the "
        f"process and its libraries hold, and the memory limit is {format_size(limit)}; give fewer or shorter texts, "
        "or a higher limit",
        owner="texts",
        asked=taken,
        free=max(0, limit - held),
        needed=held + taken,
    )


def _is_record(line: str) -> bool:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "text" in value


def _record(line: str, name: str, number: int) -> InputText:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}, line {number}: not valid JSON ({error})") from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise InputError(f'{name}, line {number}: a JSON line needs a "text" that is a string')
    found = value.get("id", value.get("_id"))
    return InputText(value["text"], None if found is None else str(found))
