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

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n', re.DOTALL)
_MOST_DEPTH = 1000

Key = str | int


class NotJson(ValueError):
    """The text is not JSON."""


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
    try:  # nothing of what it parses is kept
        json.loads(text, strict=False, object_pairs_hook=_nothing, parse_int=_nothing, parse_float=_nothing)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None
    line = first_line
    path: list[Key] = []
    is_name = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "{[":
            if len(path) == _MOST_DEPTH:
                raise NotJson(f"line {line}: nested deeper than {_MOST_DEPTH:,} levels")
            path.append("" if token == "{" else 0)
            is_name = token == "{"
        elif token in "}]":
            path.pop()
        elif token == ",":
            last = path[-1]
            is_name = isinstance(last, str)
            path[-1] = last if isinstance(last, str) else last + 1
        elif token not in ":\n":
            value = clean(json.loads(token, strict=False)) if token[0] == '"' else token
            if is_name:
                path[-1], is_name = value, False
            else:
                yield Leaf(tuple(path), value, line)
        line += token.count("\n")


def _nothing(_: object) -> None:
    """Stands for a value while a text is checked."""


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
    texts = []
    for leaf in record:
        name = _path(leaf.path)
        value = " ".join(leaf.value.split())
        texts.append(f"{name}: {value}" if name else value)
    numbers = tuple(leaf.line for leaf in record)
    return Block("\n".join(texts).rstrip(), numbers[0], numbers[-1], kind=kind, path=path, lines=numbers)


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
