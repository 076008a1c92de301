"""Reads reStructuredText by its lines: sections, paragraphs, literal blocks.

Directives are not executed, so nothing is included, fetched or run, and every line keeps its number. The section titles
agree with those of docutils, as a test verifies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edge.apps.documents.base import Block, Document
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.plain import text_blocks

_LITERAL = re.compile(
    r"\s*\.\. (?:[\w.+-]+:)?(?:code|code-block|sourcecode|math|parsed-literal|productionlist|graphviz)::"
)


def extract(file: OpenedFile) -> Document:
    """Reads a reStructuredText file."""
    decoded = file.text()
    blocks = list(_with_literals(text_blocks(decoded.text, short=True)))
    title = next((block.path[-1] for block in blocks if block.kind == "heading"), "")
    return Document(title, blocks, decoded.encoding)


def _with_literals(blocks: Sequence[Block]) -> Iterator[Block]:
    """Marks blocks as `lines` instead of prose if they are indented under `::` or a code directive."""
    margin: int | None = None
    for block in blocks:
        indent = len(block.text) - len(block.text.lstrip())
        if margin is not None and (block.kind == "heading" or indent <= margin):
            margin = None
        if block.kind == "heading":
            yield block
            continue
        marked = block.text.lstrip().startswith((".. ", ":", "+--", "=="))
        yield replace(block, kind="lines") if marked or margin is not None else block
        if margin is None and (_LITERAL.match(block.text) or (block.text.endswith("::") and not marked)):
            margin = indent
