"""Compaction gives space back: it never ends larger, even while others read."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge.apps.collection.collection import Collection


def nbytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def fill(collection: Collection, rounds: int = 3) -> None:
    """Several segments, as a collection has that grew by flushes."""
    for number in range(rounds):
        collection.add([f"text {number} {i} about rivers and bread" for i in range(150)])
        index = collection.vectors
        assert index is not None
        index.options = replace(index.options, pending_limit=1)
        index.maintain(collection.database.write)


def test_it_never_ends_larger(make: Any) -> None:
    collection = make()
    fill(collection)
    path, everything = collection.path, 450
    collection.close()
    before = nbytes(path)
    collection = make()
    assert collection.compact()
    collection.close()
    once = nbytes(path)
    assert once <= before
    collection = make()
    with collection.database.read() as db:
        assert collection.vectors is not None
        assert collection.vectors.status(db).segments == 1
        assert collection.vectors.status(db).rows == everything
    named = {file.name for file in (path / "segments").iterdir() if not file.name.endswith(".lock")}
    assert len(named) == 1  # the merged files are gone at once
    assert collection.compact()
    collection.close()
    assert nbytes(path) <= once


def test_what_another_reads_stays_until_it_ends(make: Any, tmp_path: Path) -> None:
    """The reader is another process, because this one's own are waited for."""
    collection = make()
    fill(collection)
    segments = collection.path / "segments"
    before = {file.name for file in segments.iterdir()}
    code = (
        "import sys, time; from edge.apps.collection.collection import Collection\n"
        "with Collection(sys.argv[1], read_only=True, memory='4GB') as c, c.database.read() as db:\n"
        "    ids = [row[0] for row in db.execute('SELECT id FROM chunks')]\n"
        "    print('reading', flush=True); sys.stdin.readline()\n"
        "    import numpy as np; print(len(c.vectors.vectors(db, np.array(ids, np.int64))), flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(collection.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        assert not collection.compact()
        assert before <= {file.name for file in segments.iterdir()}
        reader.stdin.write("go on\n")
        assert reader.stdout.readline() == "450\n"
    assert collection.compact()
    assert len([file for file in segments.iterdir() if not file.name.endswith(".lock")]) == 1
