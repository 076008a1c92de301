"""Folders that commands make for the user's own data, settings and caches are for that user alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edge.apps.console import reports_dir

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders lie elsewhere there")

_CHECKPOINT = Path(__file__).parents[1] / "golden" / "bert-reranker"
_EDGE = (sys.executable, "-c", "import os; os.umask(0o022); from edge.apps.cli import main; main()")


def test_folders_of_every_kind(tmp_path: Path) -> None:
    kinds = ("DATA", "CONFIG", "STATE", "CACHE")
    own = {f"XDG_{kind}_HOME": str(tmp_path / "new" / kind.lower()) for kind in kinds}
    for arguments in (
        ("collections", "add", "work"),
        ("models", "pack", str(_CHECKPOINT), "new/data/edge-rag/models/tiny"),
    ):
        done = subprocess.run(
            [*_EDGE, *arguments], cwd=tmp_path, env={**os.environ, **own}, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
    made = [path for path in (tmp_path / "new").rglob("*") if path.is_dir()]
    assert {path.name for path in made} >= {"data", "edge-rag", "models"}
    assert {path.stat().st_mode & 0o777 for path in made if path.name != "tiny"} == {0o700}


def test_reports_that_tests_provoke_belong_to_no_user() -> None:
    assert reports_dir().is_relative_to(tempfile.gettempdir())
