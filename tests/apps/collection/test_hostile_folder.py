"""A folder that came with somebody else's project. With anything in the place of the small files, no command waits or
reads without end, and nothing outside the folder is changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.config import Config
from edge.errors import ConfigError
from edge.files.named_file import SMALL
from tests.apps.collection.conftest import Make

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices are files there alone")


def lay(kind: str, place: Path, victim: Path) -> None:
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "huge":
        with place.open("wb") as file:
            file.truncate(SMALL + 1)
    else:
        place.symlink_to({"zeros": Path("/dev/zero"), "another file": victim, "itself": place}[kind])


@pytest.mark.parametrize("kind", ["pipe", "huge", "zeros", "itself"])
def test_settings(tmp_path: Path, kind: str) -> None:
    lay(kind, tmp_path / "config.toml", tmp_path)
    with pytest.raises(ConfigError, match=r"config\.toml"):
        Config.load(user=tmp_path / "config.toml")


def test_settings_that_an_editor_has_marked(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b'\xef\xbb\xbfmemory = "300MB"\n')
    assert Config.load(user=tmp_path / "config.toml").memory == 300_000_000


def test_only_own_segments_are_removed(make: Make, tmp_path: Path) -> None:
    collection = make()
    collection.add([f"The river {n} floods." for n in range(20)], ids=[f"t{n}" for n in range(20)])
    index = collection.vectors
    assert index is not None
    segments = collection.path / "segments"
    theirs = ("notes.tmp", "thesis.blk", "data.tmp.gz", "0123.tmp")
    ours = ("0123456789abcdef.tmp", "0123456789abcdef.blk", "0123456789abcdef.blk.tmp", "0123456789abcdef.run.tmp")
    for name in theirs + ours:
        (segments / name).write_text("x")
    collection.compact()
    left = {path.name for path in segments.iterdir()}
    assert left >= set(theirs)
    assert not left & set(ours)
