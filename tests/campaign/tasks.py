"""The work under a memory limit: a command of each verb, servers and conversations, and threads on one ledger."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.contents import KINDS, text, words
from campaign.documents import MADE
from campaign.program import EDGE, Home

_KEPT = ("--collection", "kept")
_NOTES = ("--path", "notes", "--user-id", "a")
_DOCUMENTS_A_FOLDER = 2
_MANY = 6_000
"""Passages or memories after which the index has been trained, and its segments merged."""
_THREADS = Path(__file__).with_name("threads.py")


@dataclass(frozen=True)
class Task:
    """Something that a person or a program does with a limit, which is not among the `arguments`. If it does not end by
    itself (`ends`), it is interrupted; `named`: whether a limit that is too small is refused with the smallest that
    works."""

    name: str
    arguments: tuple[str, ...]
    stdin: bytes | None = None
    command: Sequence[str] = EDGE
    ends: bool = True
    named: bool = True
    before: Callable[[Home], None] | None = None


def prepare(home: Home) -> None:
    """Makes the texts, the collection and the memory that tasks work on."""
    files = home.work / "files"
    files.mkdir()
    chance = random.Random(0)
    for kind, count in KINDS.items():
        lines = [text(kind, chance) for _ in range(count)]
        (home.work / f"{kind}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (files / f"{kind}.txt").write_text("\n\n".join(lines[:10]), encoding="utf-8")
    queries = ({"query": words(chance, 2, 6), "docs": [words(chance, 5, 60) for _ in range(20)]} for _ in range(10))
    (home.work / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)), encoding="utf-8")
    entries = ({"memory": words(chance, 5, 90), "user_id": "a"} for _ in range(200))
    (home.work / "entries.jsonl").write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    for arguments in (
        ("index", "files", *_KEPT, "--memory", "1GB"),
        ("memory", "add", "the river floods in spring", *_NOTES, "--memory", "1GB"),
    ):
        done = home.edge(*arguments)
        if done.code != 0:
            raise AssertionError(f"without an attack {done}")


def tasks(chance: random.Random) -> Iterator[Task]:
    """One task of each kind, with contents by chance."""
    query = words(chance, 1, 12)
    count = str(chance.choice([1, 10, 100]))
    for kind in KINDS:
        yield Task(f"rerank {kind}", ("rerank", query, "--docs", f"{kind}.txt", "-k", "3"))
        yield Task(f"embed {kind}", ("embed", "--docs", f"{kind}.txt", "--out", "vectors.npy"))
    yield Task("demo", ("demo", query))
    yield from _of_files(chance, query, count)
    yield from _of_memories(chance, query, count)
    yield Task("models calibrate", ("models", "calibrate", "tiny", "--queries", "queries.jsonl", "-k", "3"))
    for kind in ("collection", "memory"):
        yield Task(
            f"8 threads on one {kind}", (str(_THREADS), kind, str(chance.getrandbits(32))),
            command=(sys.executable,), named=False,
        )  # fmt: skip


def _of_files(chance: random.Random, query: str, count: str) -> Iterator[Task]:
    fresh = f"fresh-{chance.getrandbits(48):x}"
    questions = "".join(f"{words(chance, 2, 9)}\n" for _ in range(3)).encode()
    yield Task("search", ("search", query, "-n", count, *_KEPT))
    yield Task("search without reranking", ("search", query, "-n", count, "--no-rerank", *_KEPT))
    yield Task("ask", ("ask", query, *_KEPT))
    yield Task("chat", ("chat", *_KEPT), questions)
    yield Task("index", ("index", "files", "--collection", fresh))
    yield Task("watch", ("watch", "files", "--poll", "--collection", fresh), ends=False)
    yield Task("check", ("check", "--read-data", *_KEPT))
    yield Task("compact", ("compact", *_KEPT))
    yield Task("mcp files", ("mcp", "files", *_KEPT), _messages(chance, "search", {"query": query}))
    chosen = chance.sample(sorted(MADE), _DOCUMENTS_A_FOLDER)

    def write(home: Home) -> None:
        folder = home.work / f"{fresh}.files"
        folder.mkdir()
        for name in chosen:
            (folder / name).write_bytes(MADE[name]())

    yield Task(
        f"index {' and '.join(chosen)}", ("index", f"{fresh}.files", "--collection", f"{fresh}.edge"), before=write
    )

    def write_many(home: Home) -> None:
        folder = home.work / f"{fresh}.many"
        folder.mkdir()
        for start in range(0, _MANY, 200):
            passages = (f"# Part {start + number}\n\n{words(chance, 10, 20)}" for number in range(200))
            (folder / f"{start}.md").write_text("\n\n".join(passages), encoding="utf-8")

    yield Task("index many passages", ("index", f"{fresh}.many", "--collection", f"{fresh}.m"), before=write_many)


def _of_memories(chance: random.Random, query: str, count: str) -> Iterator[Task]:
    added = {"text": words(chance, 5, 50), "user_id": "a"}
    fresh = f"fresh-{chance.getrandbits(48):x}"
    yield Task("memory add", ("memory", "add", text(chance.choice(list(KINDS)), chance)[:20_000], *_NOTES))
    yield Task("memory search", ("memory", "search", query, "-n", count, *_NOTES))
    yield Task("memory import", ("memory", "import", "entries.jsonl", "--path", fresh, "--user-id", "a"))

    def write_many(home: Home) -> None:
        entries = (json.dumps({"memory": words(chance, 5, 20), "user_id": "a"}) for _ in range(_MANY))
        (home.work / f"{fresh}.jsonl").write_text("\n".join(entries), encoding="utf-8")

    many = ("memory", "import", f"{fresh}.jsonl", "--path", f"{fresh}.m", "--user-id", "a")
    yield Task("memory import of many", many, before=write_many)
    yield Task("memory rebuild", ("memory", "rebuild", "--path", "notes"))
    yield Task("memory check", ("memory", "check", "--read-data", "--path", "notes"))
    yield Task("mcp memory", ("mcp", "memory", *_NOTES), _messages(chance, "add_memory", added))


def _messages(chance: random.Random, tool: str, arguments: dict[str, str]) -> bytes:
    """A client's messages: the greeting, a call, perhaps one far too long or no JSON at all, and a call again."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "campaign", "version": "1"}}
    call = {"name": tool, "arguments": arguments}
    lines = [
        _message("initialize", hello, 1),
        _message("notifications/initialized", {}),
        _message("tools/call", call, 2),
    ]
    attack = chance.randrange(4)
    if attack == 0:
        lines.append(_message("tools/call", {"name": "x" * chance.randint(10**6, 60 * 10**6)}, 3))
    elif attack == 1:
        lines.append(b"[" * chance.randint(1, 10**6))
    elif attack == 2:
        lines.append(chance.randbytes(chance.randint(1, 10**5)).replace(b"\n", b" "))
    lines.append(_message("tools/call", call, 4))
    return b"\n".join(lines) + b"\n"


def _message(method: str, params: object, number: int | None = None) -> bytes:
    known = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **known}).encode()
