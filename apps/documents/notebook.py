"""Jupyter notebooks: the source of their cells, with the lines of the file. Outputs are left out: as numbers and
pictures, they repeat the results of the cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from edge.apps.documents.base import Block, Document
from edge.apps.documents.code import code_blocks
from edge.apps.documents.json_paths import NotJson, leaves
from edge.apps.documents.markdown import markdown_blocks
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.outline import Outline
from edge.errors import InputError


@dataclass(slots=True)
class _Cell:
    """A cell: its lines, and the line number in the file of each."""

    kind: str = ""
    lines: list[str] = field(default_factory=lambda: [""])
    numbers: list[int] = field(default_factory=list)


def extract(file: OpenedFile) -> Document:
    """Reads a notebook.

    Raises:
        InputError: the file is not JSON, or has no cells.
    """
    decoded = file.text()
    cells: dict[int, _Cell] = {}
    try:
        for leaf in leaves(decoded.text):
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
    blocks = [block for cell in cells.values() for block in _blocks(cell, outline)]
    title = next((block.path[-1] for block in blocks if block.kind == "heading"), "")
    return Document(title, blocks, decoded.encoding)


def _append(cell: _Cell, source: str, number: int) -> None:
    """Appends a string from the file's line `number` to a cell's source: several lines, or the rest of one."""
    first, *rest = source.split("\n")
    cell.lines[-1] += first
    cell.lines += rest
    begun = len(cell.lines) if cell.lines[-1] else len(cell.lines) - 1
    cell.numbers += [number] * (begun - len(cell.numbers))


def _blocks(cell: _Cell, outline: Outline) -> Iterator[Block]:
    cell.numbers += cell.numbers[-1:] * (len(cell.lines) - len(cell.numbers))
    if cell.kind == "code":
        found = code_blocks(cell.lines, 0, len(cell.lines), outline.path)
    else:
        found = markdown_blocks(cell.lines, outline)
    for block in found:
        lines = tuple(cell.numbers[block.line_start - 1 : block.line_end])
        yield replace(block, line_start=lines[0], line_end=lines[-1], lines=lines)
