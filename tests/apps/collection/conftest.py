"""Collections of tiny folders with tiny random models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from making.synth import synth
from naive.program import config_of, write_tiny_models

from edge.apps.collection.collection import Collection
from edge.config import Config

Make = Callable[..., Collection]
Check = Callable[[Collection], None]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models directory with an embedder, another one, and a reranker of random weights."""
    folder = write_tiny_models(tmp_path_factory.mktemp("models"))
    synth("tiny-bert-embedder", folder / "other-embedder", seed=7).close()
    return folder


@pytest.fixture
def tiny_config(model_folder: Path, tmp_path: Path) -> Config:
    return config_of(model_folder, tmp_path / "scratch", threads=1)


@pytest.fixture
def make(tiny_config: Config, tmp_path: Path) -> Iterator[Make]:
    """Opens collections, by default always the same one, and closes them."""
    opened: list[Collection] = []

    def open_one(name: str = "collection", **options: object) -> Collection:
        options.setdefault("config", tiny_config)
        opened.append(Collection(tmp_path / name, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def collection(make: Make) -> Collection:
    return make()


class Folder:
    """A folder of files to index; a written file counts as old enough to be believed unchanged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat().st_mtime_ns if path.exists() else 0
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        moment = max(path.stat().st_mtime_ns - 10**10, before + 1)
        os.utime(path, ns=(moment, moment))
        return path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path.resolve() / "files")


def names(collection: Collection) -> list[str]:
    """The names of its files, in the order of their paths."""
    return [Path(file.path).name for file in collection.files()]


RIVER = "# Rivers\n\nThe river floods in spring, when the snow melts in the mountains.\n"
BREAD = "# Bread\n\nBread needs time, flour, water and salt.\n"
ICE = "Old ice looks blue because it holds no air.\n"


@pytest.fixture
def small(folder: Folder) -> Folder:
    """Three files and one that is left out."""
    folder.write("rivers.md", RIVER)
    folder.write("kitchen/bread.md", BREAD)
    folder.write("ice.txt", ICE)
    folder.write("picture.bin", bytes(range(256)) * 8)
    return folder


@pytest.fixture
def consistent() -> Check:
    """Asserts that files, chunks, full text and vectors of a collection tell the same."""
    return _consistent


def _consistent(collection: Collection) -> None:
    with collection.database.read() as db:
        ids = [row[0] for row in db.execute("SELECT id FROM chunks ORDER BY id")]
        assert ids == [row[0] for row in db.execute("SELECT id FROM chunks_text_docsize ORDER BY id")]
        orphans = db.execute("SELECT count(*) FROM chunks WHERE file NOT IN (SELECT id FROM files)").fetchone()
        assert orphans == (0,)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        if collection.vectors is None:
            assert not ids
            return
        # Passages whose vectors are still to be made have none, and all others have theirs.
        last = db.execute("SELECT value FROM settings WHERE name = 'rebuilding'").fetchone()
        ids = [each for each in ids if last is None or each <= int(last[0])]
        assert collection.vectors.status(db).rows == len(ids)
        vectors = collection.vectors.vectors(db, np.array(ids, np.int64))
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    with collection.database.write() as db:
        db.execute("INSERT INTO chunks_text(chunks_text) VALUES ('integrity-check')")
