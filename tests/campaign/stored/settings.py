"""Settings: a person writes them, so they carry no checksum. Values that cannot be meant are refused."""

from __future__ import annotations

import json
from pathlib import Path

from campaign.program import Home
from campaign.stored.base import Stored
from campaign.stored.models import rank, write_texts

SETTINGS = """# what I like
memory = "400MB"
threads = 1
reranker = "tiny"
embedder = "tiny-embedder"
mode = "ranked"
threshold = "auto"
context = 2048
"""


class Settings(Stored):
    """The user's file and a project's."""

    name = "settings"

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        write_texts(home)
        for path in self.files(home):
            path.parent.mkdir(parents=True)
            path.write_text(SETTINGS if ".config" in path.parts else 'memory = "300MB"\nthreads = 1\n', "utf-8")
        shown = home.look("config", "show", "--json")
        assert shown.code == 0, shown
        assert json.loads(shown.out)["memory"] == 300_000_000
        assert rank(home, "tiny").code == 0

    def files(self, home: Home) -> list[Path]:
        return [home.path / ".config" / "edge-rag" / "config.toml", home.work / ".edge" / "config.toml"]

    def judge(self, home: Home, path: Path) -> str | None:
        shown = home.look("config", "show", "--json")
        for done in (shown, rank(home, "tiny"), home.look("config", "show", "--resolved")):
            if problem := done.fault():
                return problem
            if done.code == 2 and "config.toml" not in done.err and shown.code == 2:
                return f"it is not said which file is meant: {done.err}"
        return None


class Names(Stored):
    """The names of collections."""

    name = "collection names"

    def prepare(self, home: Home) -> None:
        for name in ("notes", "work", "a-third-one"):
            done = home.look("collections", "add", name, str(home.path / "collections" / name))
            assert done.code == 0, done

    def files(self, home: Home) -> list[Path]:
        return [home.path / ".local" / "share" / "edge-rag" / "collections.json"]

    def judge(self, home: Home, path: Path) -> str | None:
        listed = home.look("collections", "list", "--json")
        if problem := listed.fault():
            return problem
        if listed.code != 2 or "collections.json is damaged" not in listed.err or "collections add" not in listed.err:
            return f"it is not said, or no way out is named: {listed}"
        return None
