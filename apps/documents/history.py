"""A browser's history and bookmarks: Firefox's `places.sqlite`, Chrome's `History` and `Bookmarks`. Each page that was
visited or marked becomes its title, address and date; a line is its place in the order of time. They are read only
where a person names the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from edge.apps.documents.base import Block, DocumentBlocks, Reason, Skipped
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import OpenedFile
from edge.errors import InputError

_SQLITE = b"SQLite format 3\0"
_BOOKMARKS = re.compile(rb'\s*\{\s*"checksum": *"[0-9a-f]*",\s*"(?:checksum_sha256|roots)"')
_QUERIES = {
    "moz_places": (
        1970,
        "SELECT coalesce(max(b.title), p.title), url, coalesce(last_visit_date, max(dateAdded)) FROM moz_places AS p "
        "LEFT JOIN moz_bookmarks AS b ON b.fk = p.id WHERE url LIKE 'http%' GROUP BY p.id ORDER BY 3, p.id LIMIT ?",
    ),
    "urls": (1601, "SELECT title, url, last_visit_time FROM urls WHERE url LIKE 'http%' ORDER BY 3, id LIMIT ?"),
}
"""The year from which a browser counts microseconds, and its pages with their dates, by the table's name."""

_MOST, _LONGEST = 200_000, 500

_Page = tuple[Any, Any, Any]


def is_history(name: str, head: bytes) -> bool:
    if head.startswith(_SQLITE):
        return name in ("places.sqlite", "History")
    return _BOOKMARKS.match(head) is not None


def extract(file: OpenedFile) -> DocumentBlocks:
    if file.depth:
        raise Skipped(Reason.UNSUPPORTED, "a browser's history inside another file is not read")
    if file.head.startswith(_SQLITE):
        title, (year, pages) = "Browser history", _stored(file.read())
    else:
        title, (year, pages) = "Bookmarks", (1601, sorted(_marked(file.text()), key=lambda page: _micros(page[2])))
    return DocumentBlocks(title, _blocks(pages, year))


def _stored(data: bytes) -> tuple[int, list[_Page]]:
    """The pages of a database, which is opened in memory: the file may be in use, and the sandbox opens no other."""
    import sqlite3  # a search never needs it

    with closing(sqlite3.connect(":memory:")) as db:
        if not hasattr(db, "deserialize"):
            raise Skipped(Reason.UNSUPPORTED, "a browser's history needs Python 3.11 or newer")
        try:
            db.deserialize(data[:18] + b"\1\1" + data[20:])  # as without a write-ahead log, which is another file
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA temp_store = MEMORY")  # the sandbox writes no file
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for name, (year, query) in _QUERIES.items():
                if name in tables:
                    return year, db.execute(query, (_MOST,)).fetchall()
        except sqlite3.Error as error:
            raise InputError(f"a damaged browser history ({error})") from error
    raise InputError("a database without the pages of a browser")


def _marked(text: str) -> Iterator[_Page]:
    try:
        waiting: list[Any] = list(json.loads(text)["roots"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError("damaged bookmarks") from error
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node.get("name"), node.get("url"), node.get("date_added")
            children = node.get("children")
            waiting += children if isinstance(children, list) else []


def _blocks(pages: list[_Page], year: int) -> Iterator[Block]:
    for number, (title, address, micros) in enumerate(pages, 1):
        if not isinstance(title, str) or not isinstance(address, str) or not title.strip():
            continue
        name = " ".join(clean(title).split())[:_LONGEST]
        day = ""
        with suppress(OverflowError):
            moment = datetime(year, 1, 1, tzinfo=UTC) + timedelta(microseconds=_micros(micros))
            day = f"{moment:%Y-%m-%d}, " if _micros(micros) > 0 else ""
        yield Block.of([(f"{name} ({day}{clean(address)[:_LONGEST]})", number)], "row")


def _micros(value: Any) -> int:
    return int(value) if str(value).isdecimal() and len(str(value)) < 19 else 0
