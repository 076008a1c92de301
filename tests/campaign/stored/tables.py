"""Tables that the program keeps to save time: a damaged one is said once and made anew, and changes no result."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

from campaign.program import Finished, Home
from campaign.stored.base import Stored
from campaign.stored.models import rank, results, write_texts


class Saturation(Stored):
    """The chunk sizes that saturate this machine's cores."""

    name = "saturation table"

    def prepare(self, home: Home) -> None:
        from edge.files.sealed import remember

        home.with_tiny_models()
        write_texts(home)
        # An entry of another kernel, as long as a measured one: on a busy machine nothing steady may be measured.
        remember(self.files(home)[0], {f"{n:016x}": 256 for n in range(40)})
        done = self._rank(home)
        assert done.code == 0, done
        assert "damaged" not in done.err
        self.right = results(done)

    def files(self, home: Home) -> list[Path]:
        return [home.path / ".cache" / "edge-rag" / "saturation.json"]

    def _rank(self, home: Home) -> Finished:
        """Ranks with the runtime whose chunk size is measured."""
        return rank(home, "tiny", "--runtime", "onnx")

    def judge(self, home: Home, path: Path) -> str | None:
        first, second = (self._rank(home) for _ in range(2))
        for done in (first, second):
            if problem := done.fault():
                return problem
            if done.code != 0 or results(done) != self.right:
                return f"another result: {done}"
        if "saturation.json is damaged" not in first.err:
            return "it is not said"
        return "it is said twice" if "damaged" in second.err else None


class Remembered(Stored):
    """Hashes of model files and times of generations, as the classes that own them read them."""

    name = "tables read in process"
    share = 2

    def prepare(self, home: Home) -> None:
        self.sha = "ab" * 32
        self.right = [self._read(path) for path in self.files(home)]
        assert None not in self.right

    def files(self, home: Home) -> list[Path]:
        return [home.path / name for name in ("gguf-hashes.json", "times.json")]

    def judge(self, home: Home, path: Path) -> str | None:
        index = self.files(home).index(path)
        with _log() as said:
            found = self._read(path)
        if found is not None and found != self.right[index]:
            return f"other values in silence: {found}"
        if "damaged" not in said.getvalue() and found is not None:
            return "it is not said"
        return None

    def _read(self, path: Path) -> object:
        """The content of the table, made anew where there is none; None where it is refused."""
        from edge.runtimes.generation.llama_states import file_sha256
        from edge.scheduling.predictor import PromptWork, TimePredictor

        if path.name == "gguf-hashes.json":
            return file_sha256(_ModelFile(path.parent / "model.gguf", self.sha), path.parent)  # type: ignore[arg-type]
        times = TimePredictor(path)
        prompt = PromptWork(100)
        if times.reply("g", "s", prompt=prompt, most=99) is None:
            times.learn_reply("g", "s", prompt, new=30, ttft_s=0.25, restore_s=0.0, seconds=1.5)
            times.save()
        return times.reply("g", "s", prompt=prompt, most=99)


class _ModelFile:
    """Stands for a GGUF file: a path with a size and a time, and the hash that reading it gives."""

    def __init__(self, path: Path, sha: str) -> None:
        self.path = path
        self._sha = sha
        if not path.exists():
            path.write_bytes(b"GGUF")

    def sha256(self) -> str:
        return self._sha


@contextlib.contextmanager
def _log() -> Iterator[io.StringIO]:
    """The log of the program."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger("edge").addHandler(handler)
    try:
        yield text
    finally:
        logging.getLogger("edge").removeHandler(handler)
