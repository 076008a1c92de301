"""No file stops a run because of its times, and every command can show a file of any time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.collection.damage import CollectionCare
from edge.apps.documents.base import Stamp
from edge.apps.store.care import check

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
    make: Callable[..., Collection], tiny_config: Any, tmp_path: Path, time: int, monkeypatch: pytest.MonkeyPatch
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
