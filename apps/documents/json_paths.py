"""JSON and JSON Lines: each value becomes a line `path.to[3].it: value`, grouped by its record."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from edge.apps.documents.base import Block, Document
from edge.apps.documents.json_tokens import Key, Leaf, NotJson, leaves
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.plain import text_blocks

_LONGEST_PATH = 120


def extract(file: OpenedFile) -> Document:
    """Reads a JSON file. The elements of a top-level array become records, and the members of a top-level object become
    sections. A file that is not valid JSON (with comments, or truncated) is read as plain text."""
    decoded = file.text()
    try:
        blocks = [
            _block(list(group), max(0, len(key) - 1), tuple(str(name) for name in key[:-1]))
            for key, group in groupby(leaves(decoded.text), lambda leaf: _record(leaf.path))
        ]
    except NotJson:
        blocks = text_blocks(decoded.text)
    return Document("", blocks, decoded.encoding)


def extract_lines(file: OpenedFile) -> Document:
    """Reads JSON Lines: each line is a record. A line that is not valid JSON is kept unchanged."""
    decoded = file.text()
    blocks: list[Block] = []
    for number, line in enumerate(decoded.text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = list(leaves(line, first_line=number))
        except NotJson:
            blocks.append(Block(line.strip(), number, number, kind="lines"))
            continue
        if record:
            blocks.append(_block(record, 0, ()))
    return Document("", blocks, decoded.encoding)


def _record(path: tuple[Key, ...]) -> tuple[Key, ...]:
    """The key by which values are grouped: their index in a top-level array, or their first two keys in an object."""
    return path[:2] if path and isinstance(path[0], str) else path[:1]


def _block(record: Sequence[Leaf], depth: int, path: tuple[str, ...]) -> Block:
    """A record as lines. Their paths omit the first `depth` keys, which are in the block's path."""
    texts = []
    for leaf in record:
        name = _path(leaf.path[depth:])
        value = " ".join(leaf.value.split())
        texts.append(f"{name}: {value}" if name else value)
    numbers = tuple(leaf.line for leaf in record)
    text = "\n".join(texts).rstrip()
    return Block(text, numbers[0], numbers[-1], kind="lines", path=path, lines=numbers)


def _path(keys: Sequence[Key]) -> str:
    """A path such as `authors[0].name`; only the end of a very long path is kept."""
    parts: list[str] = []
    for key in keys:
        if isinstance(key, int):
            parts.append(f"[{key}]")
        else:
            parts.append(f".{' '.join(key.split())}" if parts else " ".join(key.split()))
    text = "".join(parts)
    return text if len(text) <= _LONGEST_PATH else "…" + text[-_LONGEST_PATH:]
