"""`AutomaticDevice`: the device that the setting `device = "auto"` takes, by what `edge doctor` has measured here."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs

from edge.files.sealed import recall, remember

CARD = "cuda"


@dataclass(frozen=True, slots=True)
class AutomaticDevice:
    """`name` is the device's, or empty for the host; `reason` is a clause."""

    name: str
    reason: str

    @classmethod
    def stored(cls) -> AutomaticDevice:
        """As measured last. It loads nothing, so that it costs nothing where there is no card."""
        try:
            torch = version("torch")
        except PackageNotFoundError:
            return cls("", "torch is not installed")
        known = recall(_file(), "the times of host and card")
        if known.get("torch") == torch:
            return cls(str(known["name"]), str(known["reason"]))
        return cls("", "`edge doctor` has compared no card with it yet")

    def store(self) -> None:
        """Keeps it for later processes, until torch changes; does nothing where there is no torch or no folder."""
        with suppress(PackageNotFoundError):
            remember(_file(), {"torch": version("torch"), "name": self.name, "reason": self.reason})

    def __str__(self) -> str:
        return f"auto takes {self.name or 'the host'}, because {self.reason}"


def _file() -> Path:
    return platformdirs.user_cache_path("edge-rag", appauthor=False) / "device.json"
