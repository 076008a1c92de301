"""Documents on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.models.training.documents import Document, read, write

DOCUMENTS = [
    Document("lakes", "Deep — water", (("Tiefe", "Grün & blue.\nA second line."), ("", "No heading."))),
    Document("words", "lamp", (("", "A thing that gives light."),), entry=True),
]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
def test_documents_are_read_as_they_were_written(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"texts{suffix}"
    assert write(path, iter(DOCUMENTS)) == 2
    assert list(read(path)) == DOCUMENTS
    magic = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ"}.get(path.suffix, b"{")
    assert path.read_bytes().startswith(magic)
