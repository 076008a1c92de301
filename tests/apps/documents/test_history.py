"""Histories and bookmarks of browsers: their pages, and that they are read only where a person names the file."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from edge.apps.documents.base import FoundFile, Reason, SkippedFile
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.scanner import scan
from edge.budget import MemoryBudget
from edge.errors import InputError

SAILING = "Bowline and sheet bend (2026-03-01, https://knots.example/bowline)"
MICROS_1970, MICROS_1601 = 1_772_323_200_000_000, 13_416_796_800_000_000


def firefox(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url, title, last_visit_date)")
    db.execute("CREATE TABLE moz_bookmarks (fk, title, dateAdded)")
    rows = [("https://knots.example/bowline", "Bowline", MICROS_1970), ("place:sort=8", "Recent", 1)]
    rows += [("https://a.example/", None, 5), ("https://b.example/", "Marked only", None), (b"x", 7, "late")]
    db.executemany("INSERT INTO moz_places (url, title, last_visit_date) VALUES (?, ?, ?)", rows)
    db.execute("INSERT INTO moz_bookmarks VALUES (1, 'Bowline and sheet bend', 7)")
    db.commit()
    db.close()


def chrome(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, last_visit_time)")
    row = ("https://knots.example/bowline", "Bowline and sheet bend", MICROS_1601)
    db.execute("INSERT INTO urls (url, title, last_visit_time) VALUES (?, ?, ?)", row)
    db.commit()
    db.close()


def bookmarks(path: Path) -> None:
    page = {"type": "url", "name": "Bowline and sheet bend", "url": "https://knots.example/bowline"}
    folder = {"children": [{"name": "Sailing", "children": [{**page, "date_added": str(MICROS_1601)}]}, 7, None]}
    path.write_text(json.dumps({"checksum": "0a", "roots": {"bookmark_bar": folder, "synced": "x"}}, indent=3))


FILES = {"places.sqlite": firefox, "History": chrome, "Bookmarks": bookmarks}


@pytest.mark.parametrize("name", FILES)
def test_pages_have_their_title_date_and_address(tmp_path: Path, name: str) -> None:
    FILES[name](tmp_path / name)
    with Extractor(budget=MemoryBudget(10**11)) as extractor:
        found = extractor.extract(tmp_path / name)
    assert found.kind == "history"
    lines = "\n".join(chunk.text for chunk in found.chunks).split("\n")
    assert SAILING in lines
    assert lines == [SAILING] if name != "places.sqlite" else ["Marked only (https://b.example/)", SAILING]


@pytest.mark.parametrize("name", FILES)
def test_only_a_person_that_names_the_file_has_it_read(tmp_path: Path, name: str) -> None:
    FILES[name](tmp_path / name)
    (left,) = [found for found in scan([tmp_path]) if found.path.name == name]
    assert isinstance(left, SkippedFile)
    assert left.reason == Reason.SECRET
    (named,) = scan([tmp_path / name])
    assert isinstance(named, FoundFile)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("History", b"SQLite format 3\0" + b"\xff" * 5000, "a damaged browser history"),
        ("Bookmarks", b'{"checksum": "0a", "roots": [', "damaged bookmarks"),
        ("Bookmarks", b'{"checksum": "0a", "roots": {}}', "it holds no page with a title"),
    ],
)
def test_a_damaged_one_is_refused_in_a_sentence(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with Extractor(budget=MemoryBudget(10**11)) as extractor, pytest.raises(InputError, match=said):
        extractor.extract(tmp_path / name)
