"""The KV states that are kept on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from campaign import kv_writer
from campaign.operations.knowledge import states
from campaign.program import Home
from campaign.stored.base import Stored


class KVStates(Stored):
    """A damaged state is gone, and never read as another one."""

    name = "KV state"
    share = 2

    def prepare(self, home: Home) -> None:
        subprocess.run([sys.executable, kv_writer.__file__, str(home.path / "states")], check=True, capture_output=True)
        found, problem = states(home.path / "states")
        assert problem is None
        self.whole = found.keys()

    def files(self, home: Home) -> list[Path]:
        return sorted((home.path / "states").rglob("*.kv"))

    def judge(self, home: Home, path: Path) -> str | None:
        before = len(self.files(home))
        found, problem = states(home.path / "states")
        if problem is not None:
            return problem
        missing = self.whole - found.keys()
        if len(missing) > 1:
            return f"states {sorted(missing)} are gone"
        left = len(self.files(home))
        return "the damaged file is still there" if missing and left != before - 1 else None
