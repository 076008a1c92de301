"""Indexed paths whose names are near to one that the collection does not hold."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from edge.apps.collection.catalog import TEXT_ROOT, Catalog, files_below
from edge.apps.collection.collection import Collection
from edge.apps.collection.paths import absolute, contains, resolved
from edge.apps.collection.roots import read_roots
from edge.ivf.storage.connection import Connection

_LIKENESS = 0.7
"""The least similarity of a suggested name, as `difflib` computes it. `leese.md` and `lease.md` have 0.88."""

_SHOWN = 3

_COMPARED = 50_000
"""The most paths that are compared with a name. They take about a second."""


def not_held(db: Connection, name: str) -> str:
    """A sentence for a name that the collection does not hold. It suggests paths that may be meant."""
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
    """A name without its extension, which would make all files of a type alike."""
    return os.path.splitext(name)[0]


def _likeness(matcher: SequenceMatcher[str], name: str) -> float:
    """The similarity of two names; 0 if it is too low. The quick bounds come first."""
    matcher.set_seq1(name)
    for measure in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio):
        likeness = measure()
        if likeness < _LIKENESS:
            return 0.0
    return likeness


def absent(collection: Collection, items: Sequence[str]) -> dict[str, str]:
    """Those of `items` that `Collection.delete` would not find, each with a sentence that says so.

    Raises:
        InputError: a path is empty, or not valid Unicode.
    """
    means = {item: {absolute(item), resolved(item)} for item in items}
    with collection.database.read() as db:
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
