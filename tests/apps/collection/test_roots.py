from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.collection.paths import absence, with_nested

paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda parts: os.sep + os.sep.join(parts))


def naive_contains(outer: str, path: str) -> bool:
    return path.split(os.sep)[: len(outer.split(os.sep))] == outer.split(os.sep)


@given(st.lists(paths, max_size=4), st.lists(paths, max_size=6))
def test_roots_below_what_is_indexed_are_indexed_too(given_roots: list[str], roots: list[str]) -> None:
    chosen = with_nested(given_roots, roots)
    assert set(given_roots) <= set(chosen) <= {*given_roots, *roots}
    for root in roots:
        assert (root in chosen) == any(naive_contains(outer, root) for outer in given_roots)


def test_why_a_root_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path / "root")
    assert absence(root, lambda path: True) == "is not there"
    os.mkdir(root)
    assert absence(root, lambda path: path == root) == "is empty now"
    assert absence(root, lambda path: False) is None
    (tmp_path / "root" / "file").write_text("text")
    assert absence(root, lambda path: True) is None
    assert absence(os.path.join(root, "file"), lambda path: True) is None

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert absence(root, lambda path: False) == "cannot be read (Permission denied)"
