"""A stored artefact: files, and commands that read them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from campaign.program import Home


class Stored(ABC):
    """A kind of stored file.

    Attributes:
        name: how it is called in the report.
        share: how often it is damaged, beside the others.
    """

    name: ClassVar[str]
    share: ClassVar[int] = 1

    @abstractmethod
    def prepare(self, home: Home) -> None:
        """Makes the files, and keeps the output of undamaged commands. The home is empty, and is put back to this
        state before every case."""

    @abstractmethod
    def files(self, home: Home) -> list[Path]:
        """The files to damage, one at a time."""

    @abstractmethod
    def judge(self, home: Home, path: Path) -> str | None:
        """Reads the damaged file with the program's commands.

        Returns:
            None when every result was right, or the damage was said; else one sentence.
        """
