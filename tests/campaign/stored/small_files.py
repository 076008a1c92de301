"""Small files that a model brings: fitted evidence and a vocabulary's tables."""

from __future__ import annotations

import json
from pathlib import Path

from campaign.operations.collections import paragraphs, write
from campaign.program import Finished, Home
from campaign.stored.base import Stored
from campaign.stored.models import rank, results, write_texts


def said(home: Home, path: Path) -> str | None:
    """Looks whether a verification finds damage and names the way out; None if it does."""
    verified = home.look("models", "show", "tiny", "--verify")
    if problem := verified.fault():
        return problem
    if verified.code != 2:
        return f"`edge models show --verify` finds nothing in {path.name}"
    return None if "edge models p" in verified.err else f"no way out is named: {verified.err}"


class EvidenceFile(Stored):
    """The model that tells whether passages answer a question: damage is said."""

    name = "fitted evidence"
    share = 2

    def prepare(self, home: Home) -> None:
        from edge.files.sealed import read_sealed, write_sealed
        from edge.models.manifest import BUNDLED
        from edge.models.packed import PackedModel

        home.with_tiny_models()
        for number in range(4):
            write(home, f"{number}.md", paragraphs(number))
        done = home.look("index", "docs", "--collection", "col")
        assert done.code == 0, done
        fitted = read_sealed(BUNDLED / "edge-reranker-minilm-l6" / "evidence.json")
        assert fitted is not None
        with PackedModel.open(home.models / "tiny") as model:
            write_sealed(self.files(home)[0], {**fitted, "fingerprint": model.fingerprint})
        asked = self._ask(home)
        assert asked.code == 0, asked
        self.right = self._answer(asked)

    def files(self, home: Home) -> list[Path]:
        return [home.models / "tiny" / "evidence.json"]

    def judge(self, home: Home, path: Path) -> str | None:
        asked = self._ask(home)
        if problem := asked.fault():
            return problem
        if asked.code == 2:
            if "edge models p" not in asked.err or path.name not in asked.err:
                return f"no way out is named: {asked.err}"
        elif self._answer(asked) != self.right:
            return "another answer in silence"
        return said(home, path)

    def _ask(self, home: Home) -> Finished:
        return home.look("ask", "when did the river flood", "--collection", "col", "--json")

    def _answer(self, asked: Finished) -> object:
        document = json.loads(asked.out)
        return document["text"], [(each["path"], each["line"]) for each in document["citations"]]


class VocabularyFile(Stored):
    """The tables of a large vocabulary, of which a process reads the pieces it needs."""

    name = "vocabulary"
    share = 2

    def prepare(self, home: Home) -> None:
        from making.synth import synth

        from edge.models.tables import build

        synth("tiny-xlm-roberta", home.models / "tiny").close()
        synth("tiny-bert-embedder", home.models / "tiny-embedder").close()
        (table,) = self.files(home)
        assert build(table.with_name("tokenizer.json"), table, smallest=1)
        write_texts(home)
        done = rank(home, "tiny")
        assert done.code == 0, done
        self.right = results(done)

    def files(self, home: Home) -> list[Path]:
        return [home.models / "tiny" / "vocabulary.npz"]

    def judge(self, home: Home, path: Path) -> str | None:
        done = rank(home, "tiny")
        if problem := done.fault():
            return problem
        if done.code == 2:
            return said(home, path) if "edge models p" in done.err else f"no way out is named: {done.err}"
        return None if results(done) == self.right else "another ranking in silence"
