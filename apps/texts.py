"""`read_documents`: the texts a verb works on, read line by line, one copy of each, within the memory limit."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from typing import TextIO

from edge.config import format_size
from edge.errors import BudgetExceeded, InputError
from edge.input_file import open_input
from edge.resident import anonymous_resident

_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""What `surrogateescape` puts in the place of bytes that are not UTF-8."""

_COPIES = 3
"""Of a line while it is read: the pieces that it comes in, put together, and without the space around it."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text to rank or embed, with the id it came with."""

    text: str
    id: str | None

    @property
    def nbytes(self) -> int:
        """Bytes of memory it takes."""
        return sum(sys.getsizeof(part) for part in (self, self.text, self.id))


def read_documents(source: str, limit: int) -> list[Document]:
    """Texts from a file, or from stdin for `-`: one per line, or JSON Lines with `text` and optional `id`.

    Args:
        limit: bytes that the whole process may hold.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or a JSON line has no text; the message has the line.
        BudgetExceeded: the texts alone pass what the limit leaves beside the process.
    """
    name = "stdin" if source == "-" else source
    try:
        with (
            open(sys.stdin.fileno(), "rb", closefd=False) if source == "-" else open_input(source) as opened,
            # With surrogates the message can say which line is not UTF-8.
            io.TextIOWrapper(opened, encoding="utf-8", errors="surrogateescape") as file,
        ):
            documents = _documents(file, name, limit)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from error
    if not documents:
        raise InputError(f"{name} holds no text")
    return documents


def _documents(file: TextIO, name: str, limit: int) -> list[Document]:
    held = anonymous_resident()
    # A process above its limit is refused when the model is opened: there the smallest limit that works is known.
    room = limit - held if held < limit else limit
    documents: list[Document] = []
    taken, number = 0, 0
    records: bool | None = None
    while line := file.readline((longest := max(0, room - taken) // _COPIES) + 1):
        number += 1
        if len(line) > longest:
            raise _too_much(name, number, taken + _COPIES * len(line), held, limit)
        if number == 1:
            line = line.removeprefix("\ufeff")
        if bad := _NOT_UTF8.search(line):
            byte = len(line[: bad.start()].encode("utf-8"))
            raise InputError(f"{name}, line {number}: not valid UTF-8 (byte {byte})")
        line = line.strip()
        if not line:
            continue
        if records is None:  # the first line tells which of the two formats it is
            records = _is_record(line)
        documents.append(_record(line, name, number) if records else Document(line, None))
        taken += documents[-1].nbytes
    return documents


def _too_much(name: str, number: int, taken: int, held: int, limit: int) -> BudgetExceeded:
    return BudgetExceeded(
        f"{name}: its texts up to line {number} need {format_size(taken)} beside the {format_size(held)} that the "
        f"process holds, and the memory limit is {format_size(limit)}; give fewer or shorter texts, or a higher limit",
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


def _record(line: str, name: str, number: int) -> Document:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}, line {number}: not valid JSON ({error})") from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise InputError(f'{name}, line {number}: a JSON line needs a "text" that is a string')
    found = value.get("id", value.get("_id"))
    return Document(value["text"], None if found is None else str(found))
