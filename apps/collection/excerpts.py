"""Reads indexed text: passages by number, lines of a file, and the files that match a pattern; suggests other names."""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from operator import itemgetter

from edge.apps.collection.catalog import (
    TEXT_ROOT,
    Catalog,
    FileRow,
    description_of,
    files_below,
    read_descriptions,
    read_roots,
)
from edge.apps.collection.filters import Filters
from edge.apps.collection.paths import absolute, checked, contains, resolved
from edge.apps.collection.searching import read_hits
from edge.apps.store.database import Database
from edge.apps.store.rows import held
from edge.errors import InputError
from edge.ivf.base import Connection

_PASSAGE = re.compile(r"#([0-9]{1,18})")
_PLACE = re.compile(r"(.+?):([0-9]{1,9})(?:-([0-9]{1,9}))?")
_PATTERN = re.compile(r"[*?[]")

_LIKENESS = 0.7  # As `difflib` computes it. `leese.md` and `lease.md` have 0.88.
_SHOWN = 3

_COMPARED = 50_000  # Paths, in about a second.

MOST_BYTES = 64_000


class NotIndexed(InputError):
    """The collection has no such file or passage."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Consecutive lines of an indexed document, with a blank line where some are left out. A further call continues at
    `continues_at`, if there is more; `cut` if the last line is longer than the bytes that were wanted."""

    path: str
    title: str
    kind: str
    description: str
    text: str
    line_start: int
    line_end: int
    page: int | None
    continues_at: int | None
    cut: bool


def read_excerpts(
    database: Database, targets: Sequence[str], *, lines: int | None = None, max_bytes: int = MOST_BYTES
) -> list[Excerpt]:
    """Reads the targets in order, until `max_bytes` (UTF-8) is reached: `#12` (a passage), `PATH`, `PATH:LINE`,
    `PATH:FIRST-LAST`, or a pattern. A path may lack its first folders if only one file matches."""
    if max_bytes < 1 or (lines is not None and lines < 1):
        raise InputError("the number of lines and of bytes must be at least 1")
    catalog = Catalog()
    found: list[Excerpt] = []
    left = max_bytes
    with database.read() as db:
        described = read_descriptions(db)
        for target in targets:
            checked(target, "the name")
            for file, first, last, passage in _meant(db, catalog, target):
                description = description_of(file.path, described)
                excerpt = _read(db, catalog, file, first, last, passage, lines, left, description)
                if excerpt is None:
                    continue
                found.append(excerpt)
                left -= len(excerpt.text.encode())
                if left <= 0:
                    return found
    return found


_Meant = tuple[FileRow, int, int | None, int | None]


def _meant(db: Connection, catalog: Catalog, target: str) -> Iterator[_Meant]:
    if match := _PASSAGE.fullmatch(target):
        hit = read_hits(db, [int(match[1])]).get(int(match[1]))
        file = None if hit is None else catalog.find(db, hit.path)
        if file is None:
            raise NotIndexed(f"there is no passage {target} in the collection; a search result has its number")
        yield file, 1, None, int(match[1])
        return
    if (file := _file(db, catalog, target)) is not None:
        yield file, 1, None, None
        return
    match, name = _PLACE.fullmatch(target), target
    if match is not None and (file := _file(db, catalog, name := match[1])) is not None:
        first, last = int(match[2]), int(match[3]) if match[3] else None
        if first < 1 or (last is not None and last < first):
            raise InputError(f"{target} names no lines: they count from 1, and the last is not before the first")
        yield file, first, last, None
        return
    if _PATTERN.search(target):
        clause, params = Filters(paths=(target,)).where(db)
        rows = db.execute(f"SELECT path FROM files WHERE status = 'indexed' AND {clause} ORDER BY path", params)
        paths = held(db, rows, itemgetter(0))
        for path in paths:
            file = catalog.find(db, path)
            assert file is not None
            yield file, 1, None, None
        if paths:
            return
    raise NotIndexed(not_held(db, name))


def _file(db: Connection, catalog: Catalog, name: str) -> FileRow | None:
    """The file with this path; otherwise the only one whose path ends with it."""
    known = catalog.find(db, name)
    if known is None and "\0" not in name:  # which no path has
        known = catalog.find(db, os.path.realpath(os.path.expanduser(name)))
    if known is None and name.strip(os.sep):
        tail = os.sep + name.removeprefix("." + os.sep).lstrip(os.sep)
        sql = "SELECT path FROM files WHERE status = 'indexed' AND substr(path, -length(?)) = ? ORDER BY path LIMIT 4"
        paths = [row[0] for row in db.execute(sql, (tail, tail))]
        if len(paths) > 1:
            raise InputError(f"{name} may be {', '.join(paths[:3])}{' or others' if len(paths) > 3 else ''}: name one")
        known = catalog.find(db, paths[0]) if paths else None
    if known is not None and known.status != "indexed":
        raise InputError(f"{known.path} is not indexed: {known.reason or 'it waits for the next `edge index`'}")
    return known


def _read(
    db: Connection,
    catalog: Catalog,
    file: FileRow,
    first: int,
    last: int | None,
    passage: int | None,
    lines: int | None,
    max_bytes: int,
    description: str,
) -> Excerpt | None:
    """None if there are no such lines. A first line that is too long is cut."""
    taken: list[tuple[int, str]] = []
    page: int | None = None
    left = max_bytes
    following: int | None = None
    cut = False
    for chunk in catalog.chunks(db, file.id):
        if passage not in (None, chunk.id) or chunk.line_end < first or (last is not None and chunk.line_start > last):
            continue
        if cut and chunk.line_end == taken[-1][0]:  # of the same line, which may be long
            continue
        hit = read_hits(db, [chunk.id])[chunk.id]
        if taken and hit.line_start > taken[-1][0] + 1:
            taken.append((taken[-1][0], ""))
        for number, line in zip(hit.numbers, hit.text.split("\n"), strict=False):
            if passage is None and (number < first or (last is not None and number > last)):
                continue
            data = line.encode()
            is_new = not taken or number > taken[-1][0]
            is_full = bool(taken) and (cut or len(data) >= left)
            if is_new and (is_full or (lines is not None and taken and number >= taken[0][0] + lines)):
                following = number
                break
            if is_full:  # one line in several pieces; a call that goes on with it would read it from its beginning
                cut = cut or bool(line.strip())
                continue
            if not taken:
                page = hit.page
                cut = len(data) > max_bytes
            taken.append((number, data[:max_bytes].decode("utf-8", "ignore")))
            left -= len(data) + 1
        if following is not None:
            break
    if not taken:
        return None
    text = "\n".join(line for _, line in taken).rstrip("\n")
    return Excerpt(
        file.path, file.title, file.kind, description, text, taken[0][0], max(number for number, _ in taken), page,
        following, cut,
    )  # fmt: skip


def not_held(db: Connection, name: str) -> str:
    paths = near(db, name)
    return f"{name} is not in the collection; " + (
        f"did you mean {' or '.join(paths)}?" if paths else "`edge list` shows what is"
    )


def near(db: Connection, name: str) -> list[str]:
    """Indexed paths whose last name contains that of `name`, or is similar to it; the most similar first."""
    wanted = os.path.basename(name.rstrip(os.sep)).lower()
    if not wanted:
        return []
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(_stem(wanted))

    def compared() -> Iterator[tuple[float, str]]:
        for (path,) in db.execute("SELECT path FROM files WHERE status = 'indexed' LIMIT ?", (_COMPARED,)):
            last = os.path.basename(path).lower()
            likeness = _likeness(matcher, _stem(last))
            if wanted in last:
                yield 1 + likeness, path
            elif likeness:
                yield likeness, path

    best = heapq.nsmallest(_SHOWN, ((-likeness, path) for likeness, path in compared()))
    return [path for _, path in best]


def _stem(name: str) -> str:
    """An extension would make all files of a type alike."""
    return os.path.splitext(name)[0]


def _likeness(matcher: SequenceMatcher[str], name: str) -> float:
    """0 if it is too low. The quick bounds come first."""
    matcher.set_seq1(name)
    for measure in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio):
        likeness = measure()
        if likeness < _LIKENESS:
            return 0.0
    return likeness


def absent(database: Database, items: Sequence[str]) -> dict[str, str]:
    """Those of `items` that `Collection.delete` would not find, each with a sentence that says so."""
    means = {item: {absolute(item), resolved(item)} for item in items}
    with database.read() as db:
        roots = read_roots(db)
        return {item: not_held(db, item) for item, paths in means.items() if not _holds(db, item, paths, roots)}


def _holds(db: Connection, item: str, paths: set[str], roots: list[str]) -> bool:
    text = Catalog().find(db, item)
    if text is not None and text.root == TEXT_ROOT:
        return True
    if any(contains(path, root) for path in paths for root in roots):
        return True
    conditions = (files_below(path) for path in paths)
    return any(
        db.execute(f"SELECT 1 FROM files WHERE {condition} LIMIT 1", params).fetchone() is not None
        for condition, params in conditions
    )
