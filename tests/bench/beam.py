"""`beam`: finds what questions about long chats with an assistant need, in BEAM's chats (Tavakoli et al., "Beyond a
Million Tokens", ICLR 2026; the folder `chats/100K` or `chats/500K` of its repository)."""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

from bench.figures import Column, tabulate
from bench.options import Folder, Output, benchmark, stated
from bench.process import processor, say
from edge.apps.memory.memory import Memory

_MARKS = re.compile(r"\s*->->.*", re.S)
"""What follows a user's words: the place in the plan that the chat was made from."""


@benchmark
def beam(
    *,
    chats: Annotated[Folder, "A folder of BEAM's chats of one length."],
    count: Annotated[int, "Only so many chats (0: all)."] = 0,
    results: Annotated[int, "Memories that are read of each search."] = 40,
    rerank: Annotated[bool, "Rerank what was found."] = False,
    memory: str = "300MB",
    output: Output,
) -> None:
    """Find the turns of chats that BEAM's questions need, and count those among the results."""
    folders = sorted((one for one in chats.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as store, Memory(store, memory=memory) as opened:
        for folder in folders[: count or None]:
            for said, when in turns(json.loads((folder / "chat.json").read_text("utf-8"))):
                opened.add(said, run_id=folder.name, timestamp=when)
            questions = json.loads((folder / "probing_questions" / "probing_questions.json").read_text("utf-8"))
            for kind, asked in questions.items():
                for one in asked:
                    if needed := numbers(one.get("source_chat_ids")):
                        wanted = {"run_id": folder.name, "rerank": rerank}
                        hits = opened.search(one["question"], results, **wanted)["results"]
                        have = [hit["metadata"]["turn"] for hit in hits]
                        found[kind].append((share(needed, have), share(needed, have[:10])))
            say(f"chat {folder.name}")
    every = [pair for pairs in found.values() for pair in pairs]
    report = {
        kind: {
            "coverage": sum(whole for whole, _ in pairs) / len(pairs), "ten": sum(ten for _, ten in pairs) / len(pairs),
            "complete": sum(whole == 1 for whole, _ in pairs) / len(pairs), "questions": len(pairs),
        }
        for kind, pairs in [*sorted(found.items()), ("all", every)]
    }  # fmt: skip
    columns = {
        "coverage": Column(f"in {results} results", "%"), "ten": Column("in 10", "%"),
        "complete": Column("complete", "%"), "questions": Column("questions"),
    }  # fmt: skip
    conditions = {"chats": str(chats), "memory": memory, "rerank": rerank, "processor": processor()}
    output.put(report, [*tabulate(report, columns, "turns that a question needs")], stated(conditions))


def turns(chat: list[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], str | None]]:
    """What was said in each turn, and its day."""
    day: str | None = None
    for batch in chat:
        for turn in batch["turns"]:
            for anchor in (batch.get("time_anchor"), *(one.get("time_anchor") for one in turn)):
                with suppress(TypeError, ValueError):
                    day = datetime.strptime(anchor, "%B-%d-%Y").strftime("%Y-%m-%d")
            said = [(one, _MARKS.sub("", one["content"]) if one["role"] == "user" else one["content"]) for one in turn]
            yield (
                [{"role": one["role"], "content": text, "metadata": {"turn": one["id"]}} for one, text in said if text],
                day,
            )


def numbers(source: Any) -> set[int]:
    """The numbers of the turns that a question names, in lists or by what they prove."""
    if isinstance(source, int):
        return {source}
    inner = source.values() if isinstance(source, dict) else source or ()
    return {number for one in inner for number in numbers(one)}


def share(needed: set[int], have: list[int]) -> float:
    return len(needed.intersection(have)) / len(needed)
