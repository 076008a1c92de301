"""Paths of any form, and values that no file should have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from apsw import Connection
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.collection.care import CollectionCare
from edge.apps.collection.collection import Collection
from edge.apps.collection.paths import (
    absence,
    ancestors,
    below,
    contains,
    nearest,
    on_disk,
    outermost,
    storable,
    with_nested,
    written,
)
from edge.apps.documents.base import Stamp
from edge.apps.store.care import check
from tests.apps.collection.conftest import Check, Make

paths = st.lists(st.sampled_from(["a", "b", "ab", "a.b"]), min_size=1, max_size=4).map(
    lambda parts: os.sep + os.sep.join(parts)
)


def naive_contains(outer: str, path: str) -> bool:
    return path.split(os.sep)[: len(outer.split(os.sep))] == outer.split(os.sep)


@given(st.lists(paths, max_size=8), paths)
def test_which_scope_has_the_say(scopes: list[str], path: str) -> None:
    holding = [scope for scope in scopes if naive_contains(scope, path)]
    found = nearest(path, frozenset(scopes))
    assert (found is None) == (not holding)
    assert found is None or len(found) == max(map(len, holding))


@given(st.lists(paths, max_size=8))
def test_outermost_paths_hold_all_and_not_each_other(some: list[str]) -> None:
    chosen = outermost(some)
    assert set(chosen) <= set(some)
    for path in some:
        assert sum(naive_contains(outer, path) for outer in chosen) == 1


@given(st.lists(paths, max_size=8), paths)
def test_sql_and_python_agree_on_what_is_below(some: list[str], scope: str) -> None:
    condition, params = below(scope)
    db = Connection(":memory:")
    db.execute("CREATE TABLE files(path TEXT)")
    db.executemany("INSERT INTO files VALUES (?)", [(path,) for path in some])
    found = [row[0] for row in db.execute(f"SELECT path FROM files WHERE {condition} ORDER BY rowid", params)]
    db.close()
    assert found == [path for path in some if contains(scope, path)] == [p for p in some if naive_contains(scope, p)]


def test_a_name_that_begins_alike_is_not_below() -> None:
    assert not contains("/a/b", "/a/bc")
    assert contains("/", "/a")
    assert nearest("/a", {"/"}) == "/"


@pytest.mark.parametrize("path", ["", "notes", "doc/1", "."])
def test_nothing_lies_below_what_is_not_absolute(path: str) -> None:
    with pytest.raises(ValueError, match="not absolute"):
        below(path)


@given(st.lists(paths, max_size=4), st.lists(paths, max_size=6))
def test_roots_below_what_is_indexed_are_indexed_too(given_roots: list[str], roots: list[str]) -> None:
    chosen = with_nested(given_roots, roots)
    assert set(given_roots) <= set(chosen) <= {*given_roots, *roots}
    for root in roots:
        assert (root in chosen) == any(naive_contains(outer, root) for outer in given_roots)


def test_an_empty_root_of_which_nothing_is_known_is_not_missing(tmp_path: Path) -> None:
    assert absence(str(tmp_path), lambda path: False) is None


ODD = [b"a\xff.txt", b"a\\xff.txt", b"\xff\\xfe.txt", b"\\xff\xfe.txt", b"\\xff\\xfe.txt"]
"""Some hold a byte that is no UTF-8, some the four characters that would stand for one."""

part = st.lists(st.sampled_from([b"\xff", b"\\xff", b"\\", b"x", b"f", "é".encode()]), min_size=1, max_size=4).map(
    b"".join
)
odd_paths = st.lists(part, min_size=1, max_size=3).map(lambda parts: Path(os.fsdecode(b"/" + b"/".join(parts))))


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


def test_every_file_is_known_by_a_name_of_its_own(collection: Collection, odd: Path, consistent: Check) -> None:
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


@given(st.lists(odd_paths, max_size=8, unique=True))
def test_different_paths_are_written_differently(some: list[Path]) -> None:
    texts = [written(path) for path in some]
    assert len(set(texts)) == len(some)
    for path, text in zip(some, texts, strict=True):
        assert storable(text)
        assert on_disk(text) == str(path)
        assert (text == str(path)) == storable(str(path))
        assert written(path.parent) in ancestors(text)


TIMES = (-(2**62), -1, 0, 2**33, 10_413_792_000, 2**62)
"""Seconds since 1970; 10,413,792,000 is the year 2300. A file system stores the nearest time that it knows."""

NAMES = ("note.txt", "server.pem", "empty.txt", "picture.bin", ".hidden", "mail.eml", "page.html")


def dated(folder: Path, time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of every fate, all with this time, which `os.stat` tells even where the file system cannot store it."""
    for name in NAMES:
        text = "" if name == "empty.txt" else f"From: a@b\n\nThe river rises in spring. {name}"
        (folder / name).write_bytes(b"\x00\x01\x02" if name == "picture.bin" else text.encode())
        os.utime(folder / name, (time, time))

    class Told:
        def __init__(self, status: os.stat_result) -> None:
            self.st_size, self.st_ino = status.st_size, status.st_ino
            self.st_mtime_ns = self.st_ctime_ns = time * 10**9

    real = Stamp.of
    monkeypatch.setattr(Stamp, "of", staticmethod(lambda status: real(Told(status))))  # type: ignore[arg-type]


@pytest.mark.parametrize("time", TIMES)
def test_files_of_any_time_are_indexed_found_filtered_listed_and_checked(
    make: Make, tiny_config: Any, tmp_path: Path, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.resolve() / "files"
    folder.mkdir()
    (folder / "good.txt").write_text("Bread needs time.")
    dated(folder, time, monkeypatch)
    collection = make()
    report = collection.index([folder])
    assert (report.indexed, report.skipped, report.failed) == (4, 4, 0)
    assert len(collection.search("river", 10, rerank=False)) == 4
    assert len(collection.search("river", 10, rerank=False, where=["after:2261-12-31"])) == 4 * (time > 2**33)
    assert len(collection.search("river", 10, rerank=False, where=["before:1679-01-01"])) == 4 * (time < -(2**33))
    assert len(collection.files()) == 4
    assert all(type(hit.modified) is str for hit in collection.search("river", 10, rerank=False))
    assert collection.index().indexed <= 4, "what cannot be told apart is read again"
    collection.status()
    collection.close()
    care = CollectionCare(tmp_path / "collection", tiny_config, make("other").budget)
    assert check(care, read_data=True).findings == []
