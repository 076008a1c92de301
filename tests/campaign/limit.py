"""Every verb within its memory limit, from the smallest that a refusal names up to 1 GB, with many kinds of content."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from campaign.base import HELD, Attack, Case, Outcome, failed
from campaign.program import Finished, Home
from edge.config import parse_size

_NAMED = re.compile(r"(?:limit that works is|a limit of) ([\d.]+ ?[kMG]?B)")
_TOO_LITTLE = "20MB"
"""Less than Python and numpy hold: every verb refuses it."""

_LARGEST = 10**9
_WORDS = [
    "river",
    "flood",
    "water",
    "bridge",
    "stone",
    "letter",
    "answer",
    "study",
    "world",
    "memory",
    "search",
    "engine",
    "layer",
    "index",
    "moon",
    "tide",
]


def text(kind: str, chance: random.Random) -> str:
    """A line of a kind of content that tokenizers and indexes take differently."""
    if kind == "english":
        return " ".join(chance.choices(_WORDS, k=chance.randint(20, 400)))
    if kind == "chinese":
        return "".join(chr(chance.randint(0x4E00, 0x9FA5)) for _ in range(chance.randint(50, 1500)))
    if kind == "base64":
        return base64.b64encode(chance.randbytes(chance.randint(50, 4000))).decode()
    if kind == "json":
        values = {f"k{n}": [chance.randint(0, 10**9)] for n in range(chance.randint(3, 100))}
        return json.dumps(values, separators=(",", ":"))
    if kind == "ligature":
        return "\ufdfa" * chance.randint(5, 300)
    if kind == "emoji":
        return "".join(chr(chance.randint(0x1F400, 0x1F64F)) for _ in range(chance.randint(20, 500)))
    if kind == "huge":
        return " ".join(chance.choices(_WORDS, k=30_000))
    return chance.choice(_WORDS)  # tiny


KINDS = {"english": 40, "chinese": 40, "base64": 40, "json": 40, "ligature": 40, "emoji": 40, "huge": 4, "tiny": 800}
"""Kinds of content, and how many lines of each a command is given."""


class Limit(Attack):
    name = "limit"
    promise = "no process tree holds more than its limit, and the smallest limit that is named works at the first try"
    quick = 8

    def prepare(self, place: Path) -> None:
        self.home = Home(place / "home").with_tiny_models()
        files = self.home.work / "files"
        files.mkdir()
        chance = random.Random(0)
        for kind, count in KINDS.items():
            lines = [text(kind, chance) for _ in range(count)]
            (self.home.work / f"{kind}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
            (files / f"{kind}.txt").write_text("\n\n".join(lines[:10]), encoding="utf-8")
        for arguments in (
            ("index", "files", "--collection", "kept", "--memory", "1GB"),
            ("memory", "add", "the river floods in spring", "--path", "notes", "--user-id", "a", "--memory", "1GB"),
        ):
            done = self.home.edge(*arguments)
            if done.code != 0:
                raise AssertionError(f"without an attack {done}")

    def cases(self, chance: random.Random) -> Iterator[Case]:
        while True:
            verbs = list(self._verbs(chance))
            chance.shuffle(verbs)
            for name, arguments in verbs:
                # Every other case lies at the smallest limit, where a byte too much shows.
                share = 0.0 if chance.random() < 0.5 else chance.random()
                yield Case(f"{name} at {'the smallest limit' if not share else f'{share:.2f} of the way to 1 GB'}",
                           (arguments, share))  # fmt: skip

    def attempt(self, case: Case, place: Path) -> Outcome:
        arguments, share = case.data
        refused = self._run(arguments, _TOO_LITTLE)
        named = _NAMED.search(refused.err)
        if refused.code != 2 or named is None:
            return failed(f"{_TOO_LITTLE} is not refused with a number: {refused}")
        smallest = parse_size(named[1])
        limit = int(smallest + share * (_LARGEST - smallest))
        done = self._run(arguments, f"{limit}B")
        if problem := done.fault(limit):
            return failed(problem)
        if done.code not in (0, 1):
            return failed(f"{limit:,} bytes, at least the {named[1]} that were named, do not work: {done}")
        return HELD

    def _run(self, arguments: tuple[str, ...], limit: str) -> Finished:
        return self.home.edge(*arguments, "--memory", limit, sampled=True)

    def _verbs(self, chance: random.Random) -> Iterator[tuple[str, tuple[str, ...]]]:
        query = " ".join(chance.choices(_WORDS, k=chance.randint(1, 12)))
        for kind in KINDS:
            yield f"rerank {kind}", ("rerank", query, "--docs", f"{kind}.txt", "-k", "3")
            yield f"embed {kind}", ("embed", "--docs", f"{kind}.txt", "--out", "vectors.npy")
        kept = ("--collection", "kept")
        notes = ("--path", "notes", "--user-id", "a")
        count = str(chance.choice([1, 10, 100]))
        fresh = f"fresh-{chance.getrandbits(48):x}"
        yield "demo", ("demo", query)
        yield "search", ("search", query, "-n", count, *kept)
        yield "search without reranking", ("search", query, "-n", count, "--no-rerank", *kept)
        yield "ask", ("ask", query, *kept)
        yield "index", ("index", "files", "--collection", fresh)
        yield "memory add", ("memory", "add", text("english", chance), *notes)
        yield "memory search", ("memory", "search", query, *notes)
