from __future__ import annotations

import os

import pytest
from apsw import Connection
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.collection.paths import below, contains, nearest, outermost

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
