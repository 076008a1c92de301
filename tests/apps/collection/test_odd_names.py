"""Names of files that are no UTF-8: written down, never read, and never taken for those of others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.collection.collection import Collection
from edge.apps.collection.paths import ancestors, storable, written

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
    assert (report.indexed, report.skipped) == (3, 4)
    assert {Path(file.path).name for file in collection.files()} == {"a\\xff.txt", "\\xff\\xfe.txt", "plain.txt"}
    assert {file.reason for file in collection.status().skipped} == {"its name is not valid Unicode"}
    for name in ODD:
        os.utime(odd / os.fsdecode(name), ns=(10**18, 10**18))
    assert collection.index(odd).removed == 0
    again = collection.index(odd)
    assert (again.indexed, again.skipped, again.removed) == (0, 4, 0)
    os.remove(odd / os.fsdecode(ODD[0]))
    assert collection.index(odd).removed == 1
    assert {Path(file.path).name for file in collection.files()} == {"a\\xff.txt", "\\xff\\xfe.txt", "plain.txt"}
    consistent(collection)


def test_a_name_that_an_earlier_version_wrote_gives_way(collection: Collection, odd: Path) -> None:
    """It stood where a file may have its real name."""
    collection.index(odd / "plain.txt")
    with collection.database.write() as db:
        for name in ("a\\xff.txt", "d\\xff/b.txt"):
            path = str(odd / name)
            db.execute(
                "INSERT INTO files(path, root, size, mtime_ns, status, reason) VALUES (?, ?, 7, 7, 'skipped', ?)",
                (path, str(odd), "its name is not valid Unicode"),
            )
    assert collection.index(odd).indexed == 2
    assert "a\\xff.txt" in {Path(file.path).name for file in collection.files()}
    assert len(collection.status().skipped) == 4


@given(st.lists(paths, max_size=8, unique=True))
def test_different_paths_are_written_differently(some: list[Path]) -> None:
    texts = [written(path) for path in some]
    assert len(set(texts)) == len(some)
    for path, text in zip(some, texts, strict=True):
        assert storable(text)
        assert (text == str(path)) == storable(str(path))
        assert written(path.parent) in ancestors(text)
