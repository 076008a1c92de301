"""JSON, JSON Lines and Jupyter notebooks. Each value of JSON becomes a line `path.to[3].it: value`, grouped by its
record. A notebook becomes the source of its cells, without its outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from edge.apps.documents.base import Block, DocumentBlocks, Outline, first_heading
from edge.apps.documents.chats import kind_of_json
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.plain import text_blocks
from edge.errors import InputError

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n|"')
_MOST_DEPTH = 1000

Key = str | int


class NotJson(ValueError):
    """The text is not JSON; the message names the line."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A string, a number, true, false or null.

    Attributes:
        path: the keys from the top to the value.
        value: strings without quotes and escapes; other values as written.
        line: its line number.
    """

    path: tuple[Key, ...]
    value: str
    line: int


def leaves(text: str, *, first_line: int = 1) -> Iterator[Leaf]:
    """Values of a JSON text with their paths and line numbers; empty objects and arrays yield none. It is iterative, so
    that deep nesting needs no stack, and linear in the length of the text."""
    line = first_line
    path: list[Key] = []
    inside: list[str] = []  # the open brackets: "{" or "["
    expected = "value"
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            line += 1
        elif token in ("{", "["):
            if expected not in ("value", "value or end"):
                raise NotJson(f"line {line}: {token} where {expected} should be")
            if len(inside) == _MOST_DEPTH:
                raise NotJson(f"line {line}: nested deeper than {_MOST_DEPTH:,} levels")
            inside.append(token)
            path.append("" if token == "{" else 0)
            expected = "name or end" if token == "{" else "value or end"
        elif token in ("}", "]"):
            ends = ("name or end", "more or end") if token == "}" else ("value or end", "more or end")
            if not inside or inside[-1] != ("{" if token == "}" else "[") or expected not in ends:
                raise NotJson(f"line {line}: {token} where {expected} should be")
            inside.pop()
            path.pop()
            expected = "more or end" if inside else "nothing"
        elif token == ",":
            if expected != "more or end":
                raise NotJson(f"line {line}: a comma where {expected} should be")
            last = path[-1]
            if isinstance(last, int):
                path[-1] = last + 1
            expected = "value" if inside[-1] == "[" else "name"
        elif token == ":":
            if expected != "colon":
                raise NotJson(f"line {line}: a colon where {expected} should be")
            expected = "value"
        elif expected in ("name", "name or end"):
            path[-1] = _string(token, line)
            expected = "colon"
        elif expected in ("value", "value or end"):
            value = _string(token, line) if token[0] == '"' else _word(token, line)
            yield Leaf(tuple(path), value, line)
            expected = "more or end" if inside else "nothing"
        else:
            raise NotJson(f"line {line}: {token[:20]} where {expected} should be")
    if expected != "nothing":
        raise NotJson(f"line {line}: the text ends where {expected} should be")


def _string(token: str, line: int) -> str:
    if token[0] != '"' or len(token) < 2:
        raise NotJson(f"line {line}: {token[:20]} where a string should be")
    try:
        return clean(json.loads(token, strict=False))
    except ValueError:
        raise NotJson(f"line {line}: a string with an unknown escape") from None


def _word(token: str, line: int) -> str:
    try:
        json.loads(token, parse_int=str)  # an int of very many digits would be refused
    except ValueError:
        raise NotJson(f"line {line}: {token[:20]} is no value") from None
    return token


_LONGEST_PATH = 120


def extract(file: OpenedFile) -> DocumentBlocks:
    """The elements of a top-level array become records, and the members of a top-level object sections. A file that is
    not valid JSON (with comments, or truncated) is read as plain text."""
    text = file.text()
    try:
        if (reader := kind_of_json(text)) is not None:
            return reader(leaves(text))
        blocks = [
            _block(
                list(group),
                tuple(str(name) for name in key[:-1]),
                "row" if key and isinstance(key[-1], int) else "fields",
            )
            for key, group in groupby(leaves(text), lambda leaf: _record(leaf.path))
        ]
    except NotJson:
        blocks = text_blocks(text)
    return DocumentBlocks("", blocks)


def extract_lines(file: OpenedFile) -> DocumentBlocks:
    text = file.text()
    blocks: list[Block] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = list(leaves(line, first_line=number))
        except NotJson:
            blocks.append(Block(line.strip(), number, number, kind="lines"))
            continue
        if record:
            blocks.append(_block(record, (), "row"))
    return DocumentBlocks("", blocks)


def _record(path: tuple[Key, ...]) -> tuple[Key, ...]:
    """Values are grouped by their index in a top-level array, or their first two keys in an object."""
    return path[:2] if path and isinstance(path[0], str) else path[:1]


def _block(record: Sequence[Leaf], path: tuple[str, ...], kind: str) -> Block:
    """All keys are named, because a passage of several blocks has only the path they share."""
    lines = []
    for leaf in record:
        name = _path(leaf.path)
        value = " ".join(leaf.value.split())
        lines.append((f"{name}: {value}" if name else value, leaf.line))
    block = Block.of(lines, kind, path)
    return replace(block, text=block.text.rstrip())


def _path(keys: Sequence[Key]) -> str:
    parts: list[str] = []
    for key in keys:
        if isinstance(key, int):
            parts.append(f"[{key}]")
        else:
            parts.append(f".{' '.join(key.split())}" if parts else " ".join(key.split()))
    text = "".join(parts)
    return text if len(text) <= _LONGEST_PATH else "…" + text[-_LONGEST_PATH:]


@dataclass(slots=True)
class _Cell:
    kind: str = ""
    lines: list[str] = field(default_factory=lambda: [""])
    numbers: list[int] = field(default_factory=list)


def extract_notebook(file: OpenedFile) -> DocumentBlocks:
    text = file.text()
    cells: dict[int, _Cell] = {}
    try:
        for leaf in leaves(text):
            # Format 4 has `cells`, format 3 `worksheets[0].cells` with the code under `input`.
            path = leaf.path[2:] if leaf.path[:1] == ("worksheets",) else leaf.path
            if len(path) < 3 or path[0] != "cells" or not isinstance(path[1], int):
                continue
            cell = cells.setdefault(path[1], _Cell())
            if path[2] == "cell_type":
                cell.kind = leaf.value
            elif path[2] in ("source", "input") and len(path) <= 4:
                _append(cell, leaf.value, leaf.line)
    except NotJson as error:
        raise InputError(f"not a notebook: {error}") from error
    if not cells:
        raise InputError("not a notebook: it has no cells")
    outline = Outline()
    blocks = [block for cell in cells.values() for block in _cell_blocks(cell, outline)]
    return DocumentBlocks(first_heading(blocks), blocks)


def _append(cell: _Cell, source: str, number: int) -> None:
    """Appends a string from the file's line `number`: several lines, or the rest of one."""
    first, *rest = source.split("\n")
    cell.lines[-1] += first
    cell.lines += rest
    begun = len(cell.lines) if cell.lines[-1] else len(cell.lines) - 1
    cell.numbers += [number] * (begun - len(cell.numbers))


def _cell_blocks(cell: _Cell, outline: Outline) -> Iterator[Block]:
    cell.numbers += cell.numbers[-1:] * (len(cell.lines) - len(cell.numbers))
    if cell.kind == "code":
        from edge.apps.documents.code import code_blocks

        found = code_blocks(cell.lines, 0, len(cell.lines), outline.path)
    else:
        from edge.apps.documents.markdown import markdown_blocks

        found = markdown_blocks(cell.lines, outline)
    for block in found:
        lines = tuple(cell.numbers[block.line_start - 1 : block.line_end])
        yield replace(block, line_start=lines[0], line_end=lines[-1], lines=lines)
