"""Command lines made of the program's own verbs and options, and of values that nobody should pass."""

from __future__ import annotations

import os
import random
import runpy
import stat
from collections.abc import Iterator
from pathlib import Path

import click

from campaign.base import Attack, Case
from campaign.program import Home
from edge.apps.cli import edge

_VALUES = (
    "", " ", "-", "--", "0", "-1", "1", "3.5", "nan", "inf", "1e309", "99999999999999999999", "auto", "true", "a b",
    "no/such/file", ".", "..", "/dev", "docs", "docs.txt", "pipe", "null", "zero", "full",
    "/proc/self/mem",
    "notes.jsonl", "damaged.jsonl", "models", "tiny", "onnx", "300MB", "1kB", "type:md", "after:2026-01-31", "after:x",
    "{}", "[", '{"a": {"gte": 1}}', "[" * 500, "\u202edlrow", "\u2066\u200f", "a\nb", "\x1b]0;title\x07", "\x9b31m",
    "\udcff\udcfe", "\r\x08", "%s%n", "${HOME}", "'; DROP TABLE files;--", '"', "*", "NEAR(", "x" * 5000,
    "é日本\U0001f600", "\ufeff", "\U000e0041",
)  # fmt: skip
_DEVICES = ("null", "zero", "full")
_ENDLESS = {"watch", "bench"}
"""Verbs that go on until they are interrupted, or that measure for minutes."""

_INTERRUPTED_AFTER_S = 3.0
_OWN_PROCESS = 0.05
"""Share of the command lines that run as processes of their own. The others run in forks of a process that has imported
the program: ten times as fast, and with the same `main`."""
_LIMITS = ("300MB", "1GB")


class CommandLines(Attack):
    name = "command-lines"
    promise = "No command line ends in a traceback, prints a raw control character, or hangs."
    quick = 20

    def prepare(self, place: Path) -> None:
        self.home = Home(place / "home").with_tiny_models()
        work = self.home.work
        (work / "docs").mkdir()
        (work / "docs" / "river.md").write_text("# River\n\nThe river floods in spring.\n", encoding="utf-8")
        (work / "docs" / "odd\u202ename\x1b.txt").write_text("Bread \u202eneeds time.\n", encoding="utf-8")
        (work / "docs.txt").write_text("The river floods.\nBread needs time.\n", encoding="utf-8")
        (work / "notes.jsonl").write_text('{"memory": "I like rivers", "user_id": "ann"}\n', encoding="utf-8")
        (work / "damaged.jsonl").write_bytes(b'{"memory": "\xff\n[[[[\n\x00')
        os.mkfifo(work / "pipe")
        for name in _DEVICES:
            _device(work / name)
        listed = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "commands.py"))["commands"]
        self.verbs = [(path, verb) for path, verb in listed(edge, ()) if not isinstance(verb, click.Group)]
        self.home.edge("index", "docs")

    def cases(self, chance: random.Random) -> Iterator[Case]:
        while True:
            path, command = chance.choice(self.verbs)
            words = [*path, *_words(command, chance)]
            if chance.random() < 0.1:
                words.insert(chance.randrange(len(words) + 1), chance.choice(_VALUES))
            words = [word for word in words if "\0" not in word]
            alone = path[0] in _ENDLESS or chance.random() < _OWN_PROCESS
            yield Case(" ".join(words)[:200].encode("unicode_escape").decode("ascii"), (words, path[0], alone))

    def attempt(self, case: Case, place: Path) -> str | None:
        words, verb, alone = case.data
        if alone:
            done = self.home.edge(*words, interrupted_after=_INTERRUPTED_AFTER_S if verb in _ENDLESS else None)
        else:
            done = self.home.look(*words)
        fault = done.fault()
        for name in _DEVICES:
            device = self.home.work / name
            if fault is None and not (device.exists() and stat.S_ISCHR(device.stat().st_mode)):
                fault = f"{done} replaced the device {name}"
                device.unlink(missing_ok=True)
                _device(device)
        return fault


def _device(path: Path) -> None:
    """A device of the campaign's own, as root could replace the machine's. Other users can do no harm to those."""
    own = Path("/dev", path.name)
    if os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, own.stat().st_rdev)
    else:
        path.symlink_to(own)


def _words(command: click.Command, chance: random.Random) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            for _ in range(chance.choice((0, 1, 1, 1, 2))):
                yield chance.choice(_VALUES)
        elif isinstance(parameter, click.Option) and parameter.name not in ("watch", "help"):
            if parameter.name == "memory" and chance.random() < 0.5:
                yield from ("--memory", chance.choice(_LIMITS))
            elif chance.random() < 0.25:
                yield chance.choice(parameter.opts)
                if not parameter.is_flag or chance.random() < 0.05:
                    yield chance.choice(_VALUES)
