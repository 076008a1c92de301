"""Names of files that are no UTF-8: written down so that the files are found again, and never taken for those of
others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.collection.catalog import Catalog
from edge.apps.collection.collection import Collection
from edge.apps.collection.paths import ancestors, on_disk, storable, written

ODD = [b"a\xff.txt", b"a\\xff.txt", b"\xff\\xfe.txt", b"\\xff\xfe.txt", b"\\xff\\xfe.txt"]
"""Some hold a byte that is no UTF-8, some the four characters that would stand for one."""

part = st.lists(st.sampled_from([b"\xff", b"\\xff", b"\\", b"x", b"f", "é".encode()]), min_size=1, max_size=4).map(
    b"".join
)
paths = st.lists(part, min_size=1, max_size=3).map(lambda parts: Path(os.fsdecode(b"/" + b"/".join(parts))))


@pytest.fixture
def odd(folder: Any) -> Path:
    try:
        for name in ODD:
            Path(folder.path, os.fsdecode(name)).write_text(f"A text named {name!r}.")
        below = Path(folder.path, os.fsdecode(b"d\xff"))
        below.mkdir()
        (below / "b.txt").write_text("A text below.")
    except OSError:
        pytest.skip("names here are Unicode")
    folder.write("plain.txt", "A plain text.")
    found: Path = folder.path
    return found


def test_every_file_is_known_by_a_name_of_its_own(
    collection: Collection, odd: Path, consistent: Callable[[Collection], None]
) -> None:
    report = collection.index(odd)
    assert (report.indexed, report.skipped) == (7, 0)
    for name in ODD:
        found = {os.fsencode(on_disk(hit.path)) for hit in collection.search("text", 50, rerank=False)}
        assert os.fsencode(odd) + b"/" + name in found
    assert os.fsencode(odd) + b"/d\xff/b.txt" in found
    for name in ODD:
        os.utime(odd / os.fsdecode(name), ns=(10**18, 10**18))
    assert collection.index(odd).removed == 0
    again = collection.index(odd)
    assert (again.indexed, again.skipped, again.removed, again.unchanged) == (0, 0, 0, 7)
    os.remove(odd / os.fsdecode(ODD[0]))
    assert collection.index(odd).removed == 1
    assert len(collection.files()) == 6
    consistent(collection)


def test_files_that_an_earlier_version_left_out_are_read(make: Callable[..., Collection], odd: Path) -> None:
    for path in odd.rglob("*.txt"):
        os.utime(path, ns=(10**18, 10**18))
    collection = make()
    collection.index(odd)
    with collection.database.write() as db:
        for (file,) in db.execute("SELECT id FROM files WHERE path LIKE '%/./%'").fetchall():
            Catalog().empty(db, file, collection.vectors)
            db.execute(
                "UPDATE files SET status = 'skipped', hash = NULL, reason = ? WHERE id = ?",
                ("its name is not valid Unicode", file),
            )
        version = db.execute("PRAGMA user_version").fetchall()[0][0] - 1
        db.execute(f"PRAGMA user_version = {version}").fetchall()
    assert collection.index(odd).indexed == 0
    collection.close()
    assert make().index(odd).indexed == 4


@given(st.lists(paths, max_size=8, unique=True))
def test_different_paths_are_written_differently(some: list[Path]) -> None:
    texts = [written(path) for path in some]
    assert len(set(texts)) == len(some)
    for path, text in zip(some, texts, strict=True):
        assert storable(text)
        assert on_disk(text) == str(path)
        assert (text == str(path)) == storable(str(path))
        assert written(path.parent) in ancestors(text)
