"""The files of a packed model."""

from __future__ import annotations

import json
from pathlib import Path

from campaign.program import Finished, Home
from campaign.stored.base import Stored

WORDS = ("mill", "bridge", "boat", "Hamlet", "näive ☃", "ice", "bread", "time", "cell", "flood", "blue", "sugar")
TEXTS = [f"the {word} of {1800 + 7 * n} beside the river{', and more' * (n % 3)}" for n, word in enumerate(WORDS)]
QUERIES = [{"query": f"which {word}", "docs": TEXTS * 2} for word in WORDS]
QUESTION = "where is the bridge"
MODEL = ("edge.json", "model.safetensors", "tokenizer.json")


def rank(home: Home, model: str, *options: str) -> Finished:
    """Ranks the texts with a model."""
    return home.look("rerank", QUESTION, "--docs", "texts", "--json", "-k", "2", "--model", model, *options)


def results(done: Finished) -> object:
    """The results of a ranking, without the figures that differ from run to run."""
    document = json.loads(done.out)
    return [[row.get("index"), row.get("score"), row.get("text")] for row in document["results"]]


def write_texts(home: Home) -> None:
    """Puts the texts to rank, and queries to calibrate on, where commands run."""
    (home.work / "texts").write_text("\n".join(TEXTS), encoding="utf-8")
    (home.work / "queries").write_text("\n".join(map(json.dumps, QUERIES)), encoding="utf-8")


def calibrate(home: Home, model: str, k: int = 2) -> Finished:
    """Calibrates a model for `k` results, with a lens."""
    return home.look("models", "calibrate", model, "--queries", "queries", "-k", str(k), "--target", "0.5")


class PackedFiles(Stored):
    """Weights, description and tokenizer: damage is always said, with the way out."""

    name = "packed model"
    share = 2

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        write_texts(home)
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
            if each.code == 2 and "edge models p" not in each.err:
                return f"no way out is named: {each.err}"
        if verified.code != 2:
            return f"`edge models show --verify` finds nothing in {path.name}"
        if done.code == 0 and results(done) != self.right:
            return f"another ranking in silence: {results(done)}"
        return None if done.code in (0, 2) else str(done)


class CalibrationFile(Stored):
    """Thresholds and lens: damage is said, and calibrating again is the way out."""

    name = "calibration"
    share = 2

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        write_texts(home)
        done = calibrate(home, "tiny")
        assert done.code == 0, done
        content = json.loads(self.files(home)[0].read_text("utf-8"))
        assert content["lens"] is not None
        assert content["points"]

    def files(self, home: Home) -> list[Path]:
        return [home.models / "tiny" / "calibration.json"]

    def judge(self, home: Home, path: Path) -> str | None:
        done = rank(home, "tiny")
        if problem := done.fault():
            return problem
        if done.code != 2 or "edge models calibrate" not in done.err:
            return f"it is not said, or no way out is named: {done}"
        shown = json.loads(home.look("models", "show", "tiny", "--json").out)
        if not shown["calibration_damage"]:
            return "`edge models show` does not say it"
        whole = rank(home, "tiny", "--threshold", "inf")
        if whole.code != 0:
            return f"without pruning: {whole}"
        again = calibrate(home, "tiny")
        return None if again.code == 0 and rank(home, "tiny").code == 0 else f"calibrated again: {again}"
