"""Python source: the module, its classes and functions, as Python's own parser reports them.

Every line belongs to exactly one block; comments and decorators above a definition belong to it. Source that does not
parse (another version's syntax, a template) is split like source code of other languages.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence

from edge.apps.documents.base import Block, Document
from edge.apps.documents.code import code_blocks, whole_lines
from edge.apps.documents.opened import OpenedFile

_COOKIE = re.compile(rb"^[ \t\f]*#[^\n]{0,200}?coding[:=][ \t]*([-\w.]+)", re.MULTILINE)
_WHOLE_CLASS_LINES = 40
"""A class with no more lines stays one block."""


def extract(file: OpenedFile) -> Document:
    """Reads a Python file."""
    cookie = _COOKIE.search(b"\n".join(file.head.split(b"\n", 2)[:2]))
    decoded = file.text(declared=cookie[1].decode("ascii") if cookie else None)
    lines = decoded.text.split("\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in the file
            tree = ast.parse(decoded.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Document("", list(code_blocks(lines, 0, len(lines), ())), decoded.encoding)
    return Document("", list(_blocks(lines, tree.body, 0, len(lines), ())), decoded.encoding)


def _blocks(
    lines: Sequence[str], body: Sequence[ast.stmt], first: int, end: int, path: tuple[str, ...]
) -> Iterator[Block]:
    """Blocks of lines `first` up to `end` (counted from 0), which contain the statements of `body`."""
    done = first
    for statement in body:
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        start = _start(lines, statement, done)
        stop = min(end, statement.end_lineno or end)
        if start < done or stop <= start:
            continue  # several statements on one line
        yield from whole_lines(lines, done, start, path)
        name = (*path, statement.name)
        if isinstance(statement, ast.ClassDef) and stop - start > _WHOLE_CLASS_LINES:
            yield from _blocks(lines, statement.body, start, stop, name)
        else:
            yield from whole_lines(lines, start, stop, name)
        done = stop
    yield from whole_lines(lines, done, end, path)


def _start(lines: Sequence[str], statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, done: int) -> int:
    """The first line of a definition (counted from 0), including decorators and comments directly above."""
    start = min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)]) - 1
    while start > done and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return start
