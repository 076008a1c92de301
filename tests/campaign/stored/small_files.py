"""Small files that a model brings, as the code that reads them sees them: fitted evidence and a vocabulary's tables."""

from __future__ import annotations

import json
import shutil
from abc import abstractmethod
from pathlib import Path
from typing import Any

from campaign.program import Home
from campaign.stored.base import Stored


class SmallFile(Stored):
    """Damage is refused with a sentence that names the way out, or changes nothing that is read."""

    share = 2

    def prepare(self, home: Home) -> None:
        (home.models / "tiny").mkdir(parents=True)
        self.make(self.files(home)[0])
        self.right = self.read(self.files(home)[0])
        assert self.right

    @abstractmethod
    def make(self, path: Path) -> None:
        """Writes the file."""

    @abstractmethod
    def read(self, path: Path) -> Any:
        """What the file holds, in a form that can be compared; raises `CorruptBlock` where it is damaged."""

    def judge(self, home: Home, path: Path) -> str | None:
        from edge.errors import CorruptBlock

        try:
            found = self.read(path)
        except CorruptBlock as error:
            return None if "`edge models p" in str(error) and path.name in str(error) else f"no way out: {error}"
        return None if found == self.right else "other values in silence"


class EvidenceFile(SmallFile):
    """What tells whether passages answer a question."""

    name = "fitted evidence"

    def files(self, home: Home) -> list[Path]:
        return [home.models / "tiny" / "evidence.json"]

    def make(self, path: Path) -> None:
        from edge.models.manifest import BUNDLED

        shutil.copyfile(BUNDLED / "edge-reranker-minilm-l6" / path.name, path)
        document = json.loads(path.read_bytes())
        self.fingerprint = document["fingerprint"]
        self.signals = {name: tuple(entry["signals"]) for name, entry in document["models"].items()}

    def read(self, path: Path) -> Any:
        from edge.models.evidence import load

        found = {name: load(path.parent, name, self.fingerprint, signals) for name, signals in self.signals.items()}
        return {name: None if each is None else repr(each) for name, each in found.items()}


class VocabularyFile(SmallFile):
    """The tables of a large vocabulary, of which a process reads the pieces it needs."""

    name = "vocabulary"

    def files(self, home: Home) -> list[Path]:
        return [home.models / "tiny" / "vocabulary.npz"]

    def make(self, path: Path) -> None:
        from tokenizers import Tokenizer, models

        from edge.models.partial import build

        pieces = [("<unk>", 0.0), *((f"piece{n}", -1.0 - n / 7) for n in range(400))]
        source = path.with_name("tokenizer.json")
        Tokenizer(models.Unigram(pieces, unk_id=0)).save(str(source))
        assert build(source, path, smallest=1)

    def read(self, path: Path) -> Any:
        from edge.models.partial import read_tables

        return {name: (str(table.dtype), table.shape, table.tobytes()) for name, table in read_tables(path).items()}
