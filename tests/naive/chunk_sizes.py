"""Measured chunk sizes of the tiny models, for machines without the native runtime, which measures none. While tests
run, no measurement is steady enough to be stored, so every program would measure: a third of a short command's time."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from making.synth import synth

from edge.config import Config
from edge.files.sealed import recall, remember
from edge.runtimes import needs
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker


def write_chunk_sizes(cache: Path) -> None:
    """Writes the sizes into a folder of caches (`XDG_CACHE_HOME`), unless it holds some."""
    table = cache / "edge-rag" / "saturation.json"
    if not table.exists():
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_bytes(_measured())


@cache
def _measured() -> bytes:
    """The table, for one thread and for as many as a command takes by itself."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        with (
            patch.object(needs.platformdirs, "user_cache_dir", lambda *_, **__: name),
            patch.object(needs, "_STEADY", math.inf),
            patch.object(needs, "_WORKING", 0.0),
        ):
            for threads in (0, 1):
                config = Config(memory=10**11, threads=threads, scratch_dir=str(folder / "scratch"))
                for kind, shape in ((Reranker, "tiny-bert"), (Embedder, "tiny-bert-embedder")):
                    if not (folder / shape).exists():
                        synth(shape, folder / shape).close()
                    kind(folder / shape, config=config).close()
        remember(folder / "saturation.json", recall(folder / "saturation.json", "the chunk sizes"))
        return (folder / "saturation.json").read_bytes()
