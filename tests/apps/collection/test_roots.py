from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from edge.apps.collection.roots import contains, outermost, root_of, with_nested

paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda parts: os.sep + os.sep.join(parts))


def naive_contains(outer: str, path: str) -> bool:
    return path.split(os.sep)[: len(outer.split(os.sep))] == outer.split(os.sep)


@given(st.lists(paths, max_size=8), paths)
def test_which_root_has_the_say(roots: list[str], path: str) -> None:
    holding = [root for root in roots if naive_contains(root, path)]
    found = root_of(path, roots)
    assert (found is None) == (not holding)
    assert found is None or len(found) == max(map(len, holding))


@given(st.lists(paths, max_size=8))
def test_outermost_paths_hold_all_and_not_each_other(some: list[str]) -> None:
    chosen = outermost(some)
    assert set(chosen) <= set(some)
    for path in some:
        assert sum(naive_contains(outer, path) for outer in chosen) == 1


@given(st.lists(paths, max_size=4), st.lists(paths, max_size=6))
def test_roots_below_what_is_indexed_are_indexed_too(given_roots: list[str], roots: list[str]) -> None:
    chosen = with_nested(given_roots, roots)
    assert set(given_roots) <= set(chosen) <= {*given_roots, *roots}
    for root in roots:
        assert (root in chosen) == any(naive_contains(outer, root) for outer in given_roots)


def test_a_name_that_begins_alike_is_not_below() -> None:
    assert not contains("/a/b", "/a/bc")
    assert contains("/", "/a")
