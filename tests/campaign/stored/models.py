"""The files of a packed model."""

from __future__ import annotations

import json
from pathlib import Path

from campaign.program import Finished, Home
from campaign.stored.base import Stored

TEXTS = "\n".join(
    f"{word} lies beside the river in {year}"
    for word, year in (("a mill", 1801), ("a bridge", 1890), ("a boat", 1922), ("Hamlet", 1603), ("näive ☃", 7))
)
MODEL = ("edge.json", "model.safetensors", "tokenizer.json")


def rank(home: Home, model: str) -> Finished:
    """Ranks some texts with a model, at full depth and as it is calibrated."""
    return home.look("rerank", "where is the bridge", "--docs", "texts", "--json", "-k", "2", "--model", model)


def results(done: Finished) -> object:
    """What a ranking says, without the figures that differ from run to run."""
    document = json.loads(done.out)
    return [[row.get("index"), row.get("score"), row.get("text")] for row in document["results"]]


class PackedFiles(Stored):
    """Weights, description and tokenizer: damage is always said."""

    name = "packed model"
    share = 2

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        (home.work / "texts").write_text(TEXTS, encoding="utf-8")
        done = rank(home, "tiny")
        assert done.code == 0, done
        self.right = results(done)

    def files(self, home: Home) -> list[Path]:
        return [home.models / "tiny" / name for name in MODEL]

    def judge(self, home: Home, path: Path) -> str | None:
        verified = home.look("models", "show", "tiny", "--verify")
        done = rank(home, "tiny")
        for each in (verified, done):
            if problem := each.fault():
                return problem
        if verified.code != 2:
            return f"`edge models show --verify` finds nothing in {path.name}"
        if done.code == 0 and results(done) != self.right:
            return f"another ranking in silence: {results(done)}"
        return None if done.code in (0, 2) else str(done)
