"""Operations on packed models: packing over a model that is there, pulling, calibrating."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from campaign.operations.base import After, Operation
from campaign.program import Finished, Home

SHAPE = "tiny-bert"
MODEL = ("edge.json", "model.safetensors", "tokenizer.json")
WORDS = ("mill", "bridge", "boat", "Hamlet", "näive ☃", "ice", "bread", "time", "cell", "flood", "blue", "sugar")


def write_texts(home: Home) -> None:
    """Puts queries to calibrate on where commands run."""
    texts = [f"the {word} of {1800 + 7 * n} beside the river{', and more' * (n % 3)}" for n, word in enumerate(WORDS)]
    queries = [json.dumps({"query": f"which {word}", "docs": texts * 2}) for word in WORDS]
    (home.work / "queries").write_text("\n".join(queries), encoding="utf-8")


def calibrate(home: Home, model: str, k: int = 2) -> Finished:
    """Calibrates a model for `k` results, with a lens."""
    return home.look("models", "calibrate", model, "--queries", "queries", "-k", str(k), "--target", "0.5")


def show(home: Home, model: str) -> tuple[str | None, str | None]:
    """A model's fingerprint and calibration as `edge models show --verify` tells them, or the fault."""
    done = home.look("models", "show", model, "--verify", "--json")
    if done.code != 0:
        return None, done.fault() or str(done)
    facts = json.loads(done.out)
    if facts["calibration_damage"]:
        return None, f"the calibration of {model} is damaged: {facts['calibration_damage']}"
    return json.dumps([facts["fingerprint"], facts["calibration"]]), None


class PackByPath(Operation):
    """`edge models pack` over an older pack; the model is addressed by its path."""

    name = "models pack, by path"
    named = "own"
    """What the newer model is called."""

    def target(self, home: Home) -> str:
        return str(home.path / "packs" / "own")

    def prepare(self, home: Home) -> None:
        from making.synth import synth_checkpoint

        from edge.models.pack import pack

        for seed in (0, 1):
            synth_checkpoint(SHAPE, home.path / f"checkpoint-{seed}", seed)
        folder = self.folder(home)
        folder.parent.mkdir(parents=True, exist_ok=True)
        pack(home.path / "checkpoint-1", folder, name=self.named).close()
        self.new = self.known(home)
        shutil.rmtree(folder)
        pack(home.path / "checkpoint-0", folder, name="own").close()
        self.old = self.known(home)
        assert self.old != self.new

    def folder(self, home: Home) -> Path:
        return home.path / "packs" / "own"

    def known(self, home: Home) -> str:
        state, problem = show(home, self.target(home))
        assert state is not None, problem
        return state

    def arguments(self, home: Home) -> list[str]:
        return ["models", "pack", str(home.path / "checkpoint-1"), str(self.folder(home)), "--name", "own"]

    def watched(self, home: Home) -> tuple[Path, ...]:
        return (self.folder(home).parent,)

    def judge(self, home: Home, after: After) -> str | None:
        state, problem = show(home, self.target(home))
        if state is None:
            return problem
        if after.acknowledged and state != self.new:
            return "the command succeeded, and the older model is there"
        if state not in (self.old, self.new):
            return "the model is neither the older nor the newer one"
        again = self.again(home)
        if again.code != 0:
            return f"repeated: {again}"
        state, problem = show(home, self.target(home))
        if state != self.new:
            return f"repeated, it is not the newer model: {problem}"
        left = [path.name for path in self.folder(home).parent.iterdir() if path.name != "own"]
        return f"repeated, it leaves {', '.join(left)} behind" if left else None


class PackByName(PackByPath):
    """The same; the model is addressed by its name."""

    name = "models pack, by name"

    def target(self, home: Home) -> str:
        return "own"

    def folder(self, home: Home) -> Path:
        return home.models / "own"


class Pull(PackByPath):
    """`edge models pull` of a folder, over an older pack."""

    name = "models pull"
    named = "checkpoint-1"

    def arguments(self, home: Home) -> list[str]:
        return ["models", "pull", str(home.path / "checkpoint-1"), "--dest", str(self.folder(home))]


class Calibrate(Operation):
    """`edge models calibrate` over an older calibration."""

    name = "models calibrate"

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        write_texts(home)
        assert calibrate(home, "tiny", k=2).code == 0
        self.old, problem = show(home, "tiny")
        assert problem is None
        assert self._results(self.old) == {2}

    def arguments(self, home: Home) -> list[str]:
        return ["models", "calibrate", "tiny", "--queries", "queries", "-k", "3", "--target", "0.5"]

    def watched(self, home: Home) -> tuple[Path, ...]:
        return (home.models,)

    def judge(self, home: Home, after: After) -> str | None:
        state, problem = show(home, "tiny")
        if problem is not None:
            return problem
        if self._results(state) != {3} and (after.acknowledged or state != self.old):
            return "the calibration is neither the older nor the newer one"
        again = self.again(home)
        state, problem = show(home, "tiny")
        if again.code != 0 or problem is not None or self._results(state) != {3}:
            return f"repeated: {again}; {problem}"
        left = {path.name for path in (home.models / "tiny").iterdir()} - {*MODEL, "calibration.json"}
        return f"repeated, it leaves {', '.join(sorted(left))} behind" if left else None

    def _results(self, state: str | None) -> set[int]:
        """The effect of a calibration. Its thresholds may differ from run to run in the last bit."""
        return {point["k"] for point in json.loads(state or "")[1]["points"]}
