"""Operations on packed models: packing over a model that is there, pulling, calibrating."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from campaign.operations.base import After, Operation
from campaign.program import Home

SHAPE = "tiny-bert"
MODEL = ("edge.json", "model.safetensors", "tokenizer.json")
WORDS = ("mill", "bridge", "boat", "Hamlet", "näive ☃", "ice", "bread", "time", "cell", "flood", "blue", "sugar")


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
    """`edge models pack` over an older pack; the model is addressed by its path, seen from where commands run."""

    name = "models pack, by path"
    folder = target = "../packs/own"
    named = "own"
    """What the newer model is called."""

    arguments = ("models", "pack", "../checkpoint-1", folder, "--name", "own")

    def prepare(self) -> None:
        from making.synth import synth_checkpoint

        from edge.models.pack import pack

        folder = self.home.work / self.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        found = []
        for seed, name in ((1, self.named), (0, "own")):
            checkpoint = synth_checkpoint(SHAPE, self.home.path / f"checkpoint-{seed}", seed)
            shutil.rmtree(folder, ignore_errors=True)
            pack(checkpoint, folder, name=name).close()
            found.append(show(self.home, self.target)[0])
        self.new, self.old = found
        assert None not in found
        assert self.old != self.new

    def watched(self) -> tuple[Path, ...]:
        return ((self.home.work / self.folder).parent,)

    def judge(self, after: After) -> str | None:
        state, problem = show(self.home, self.target)
        if state is None:
            return problem
        if after.acknowledged and state != self.new:
            return "the command succeeded, and the older model is there"
        if state not in (self.old, self.new):
            return "the model is neither the older nor the newer one"
        again = self.again()
        if again.code != 0:
            return f"repeated: {again}"
        state, problem = show(self.home, self.target)
        if state != self.new:
            return f"repeated, it is not the newer model: {problem}"
        left = [path.name for path in self.watched()[0].iterdir() if path.name != "own"]
        return f"repeated, it leaves {', '.join(left)} behind" if left else None


class PackByName(PackByPath):
    """The same; the model is addressed by its name."""

    name = "models pack, by name"
    folder, target = "../models/own", "own"
    arguments = ("models", "pack", "../checkpoint-1", folder, "--name", "own")


class Pull(PackByPath):
    """`edge models pull` of a folder, over an older pack."""

    name = "models pull"
    named = "checkpoint-1"
    arguments = ("models", "pull", "../checkpoint-1", "--dest", PackByPath.folder)


class Calibrate(Operation):
    """`edge models calibrate` over an older calibration, for other numbers of results."""

    name = "models calibrate"
    arguments = ("models", "calibrate", "tiny", "--queries", "queries", "--target", "0.5", "-k", "3")

    def prepare(self) -> None:
        self.home.with_tiny_models()
        texts = [
            f"the {word} of {1800 + 7 * n} beside the river{', and more' * (n % 3)}" for n, word in enumerate(WORDS)
        ]
        queries = [json.dumps({"query": f"which {word}", "docs": texts * 2}) for word in WORDS]
        (self.home.work / "queries").write_text("\n".join(queries), encoding="utf-8")
        assert self.home.look(*self.arguments[:-1], "2").code == 0
        self.old, problem = show(self.home, "tiny")
        assert problem is None
        assert self._results(self.old) == {2}

    def watched(self) -> tuple[Path, ...]:
        return (self.home.models,)

    def judge(self, after: After) -> str | None:
        state, problem = show(self.home, "tiny")
        if problem is not None:
            return problem
        if self._results(state) != {3} and (after.acknowledged or state != self.old):
            return "the calibration is neither the older nor the newer one"
        again = self.again()
        state, problem = show(self.home, "tiny")
        if again.code != 0 or problem is not None or self._results(state) != {3}:
            return f"repeated: {again}; {problem}"
        left = {path.name for path in (self.home.models / "tiny").iterdir()} - {*MODEL, "calibration.json"}
        return f"repeated, it leaves {', '.join(sorted(left))} behind" if left else None

    def _results(self, state: str | None) -> set[int]:
        """The effect of a calibration. Its thresholds may differ from run to run in the last bit."""
        return {point["k"] for point in json.loads(state or "")[1]["points"]}
