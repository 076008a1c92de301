"""Writes a file again and again, as tests of damage do."""

from __future__ import annotations

from pathlib import Path


def rewrite(path: Path, data: bytes) -> None:
    """Replaces the content of a file. Not by `write_bytes`, which empties the file first: ext4 takes that for the
    replacement of a whole file, and flushes it."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
