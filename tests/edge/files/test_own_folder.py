from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.files.named_file import make_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, place in (("DATA", "data"), ("CONFIG", "config"), ("STATE", "state"), ("CACHE", "cache")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "new" / place))
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.skipif(sys.platform == "darwin", reason="the folders lie elsewhere there")
@pytest.mark.parametrize("place", ["data", "config", "state", "cache"])
def test_folders_among_the_users_own_are_for_one(home: Path, place: str) -> None:
    make_folder(home / "new" / place / "edge-rag" / "a" / "b")
    for folder in ("new", f"new/{place}", f"new/{place}/edge-rag", f"new/{place}/edge-rag/a/b"):
        assert mode(home / folder) == 0o700, folder
    make_folder(home / "new" / place / "other")
    assert mode(home / "new" / place / "other") == 0o755


def test_folders_elsewhere_follow_the_users_mask(home: Path) -> None:
    make_folder(home / "project" / ".edge")
    assert mode(home / "project") == mode(home / "project" / ".edge") == 0o755
    make_folder(home / "project" / ".edge")
    (home / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(OSError, match="irectory"):
            make_folder(home / place)
