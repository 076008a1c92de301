"""The hash of a large file, computed once and remembered as long as its size and time of change stay the same."""

from __future__ import annotations

from pathlib import Path

from edge.remembered import recall, remember
from edge.runtimes.generation.gguf_file import GGUFFile

_NAME = "gguf-hashes.json"
_MOST = 64
"""Files remembered; the latest ones."""


def file_sha256(file: GGUFFile, directory: Path) -> str:
    """SHA-256 of a model file.

    Args:
        directory: where hashes are remembered. Nothing depends on it but time: what cannot be read there is computed,
            and what cannot be written is computed again next time.

    Raises:
        ModelError: the file cannot be read.
    """
    name, stat = str(file.path.resolve()), file.path.stat()
    state = [stat.st_size, stat.st_mtime_ns]
    known = recall(directory / _NAME, "the hashes of model files")
    entry = known.pop(name, None)
    if isinstance(entry, list) and entry[:2] == state and len(entry) == 3:
        return str(entry[2])
    digest = file.sha256()
    known[name] = [*state, digest]
    remember(directory / _NAME, dict(list(known.items())[-_MOST:]))
    return digest
