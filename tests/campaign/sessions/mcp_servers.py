"""The two MCP servers: questions about files, and memories that are added, corrected and deleted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from campaign.contents import KINDS, text, words
from campaign.program import Home
from campaign.sessions.mcp import Answer, Client, Mcp, Then


class FilesServer(Mcp):
    """Questions about indexed files, some of them for far too much."""

    name = "mcp files"

    def begin(self, chance: random.Random) -> None:
        pass

    def arguments(self, home: Home) -> list[str]:
        return ["mcp", "files", "--collection", "kept"]

    def tool(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        kind = chance.choice(list(KINDS))
        return chance.choice(
            (
                ("search", {"query": words(chance, 1, 12), "top_k": chance.choice((1, 8, 100, 10**6))}),
                ("search", {"query": text(kind, chance)[:2_000], "rerank": chance.random() < 0.5, "min_score": 0.0}),
                (
                    "search",
                    {
                        "query": "lex: river\nvec: flood",
                        "filters": [chance.choice(("path:**", "type:txt", "larger:1MB"))],
                    },
                ),
                ("get", {"path": f"files/{kind}.txt", "line_start": chance.choice((1, 5, 10**9)), "passage": 0}),
                (
                    "get_documents",
                    {"targets": ["files/**", f"files/{kind}.txt:1-3"], "max_bytes": chance.choice((9, 10**9))},
                ),
                ("status", {}),
            )
        )

    def careful(self, client: Client, chance: random.Random) -> None:
        name, arguments = self.tool(chance)
        client.request("tools/call", {"name": name, "arguments": arguments})


class MemoryServer(Mcp):
    """Additions, corrections and deletions, each looked for afterwards."""

    name = "mcp memory"

    def arguments(self, home: Home) -> list[str]:
        return ["mcp", "memory", "--path", self.path, "--user-id", "agent"]

    def prepare(self, home: Home) -> None:
        self.path = "notes"

    def begin(self, chance: random.Random) -> None:
        self.path = f"agent-{chance.getrandbits(48):x}"
        self.kept: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.busy: set[str] = set()

    def tool(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        known = {"memory_id": "no-such-id"}
        return chance.choice(
            (
                (
                    "search_memory",
                    {"query": words(chance, 1, 12), "top_k": chance.choice((1, 5, 10**6)), "neighbours": 3},
                ),
                (
                    "list_memories",
                    {"top_k": chance.choice((1, 20, 10**6)), "filters": {"timestamp": {"gte": "2020-01-01"}}},
                ),
                ("update_memory", {**known, "text": "new", "metadata": {"a": 1}, "expiration_date": "2200-01-01"}),
                ("delete_memory", known),
            )
        )

    def careful(self, client: Client, chance: random.Random) -> None:
        free = sorted(self.kept.keys() - self.busy)
        what = chance.random()
        if what < 0.5 or not free:
            kind = chance.choice(list(KINDS))
            said = f"{text(kind, chance)[: chance.choice((50, 5_000, 200_000))]} {chance.getrandbits(40):x}"
            metadata = chance.choice(
                (None, {"category": "health"}, {"list": list(range(100)), "deep": {"a": {"b": 1}}})
            )
            arguments = {"text": said, "metadata": metadata, "timestamp": chance.choice((None, "2026-05-08T13:56"))}
            self._call(client, "add_memory", arguments, lambda answer: self._added(answer, said))
        elif what < 0.6:
            name, said = chance.choice(free), f"{words(chance, 2, 900)} {chance.getrandbits(40):x}"
            self._on(client, "update_memory", name, {"text": said}, lambda: self.kept.update({name: said}))
        elif what < 0.7:
            name = chance.choice(free)
            self._on(client, "delete_memory", name, {}, lambda: self._forget(name))
        else:
            self._call(client, *self.tool(chance), lambda answer: None)

    def judge(self, home: Home) -> str | None:
        if not self.kept:
            return None
        done = home.look("memory", "list", "-n", "10000", "--json", "--path", self.path, "--user-id", "agent")
        if done.code != 0:
            return f"the memories cannot be listed: {done}"
        found = {row["id"]: row["memory"] for row in json.loads(done.out)["results"]}
        lost = [name for name, said in self.kept.items() if found.get(name, "").strip() != said.strip()]
        if lost:
            return (
                f"{len(lost)} of {len(self.kept)} confirmed memories are not so, such as {self.kept[lost[0]][-100:]!r}"
            )
        back = self.deleted & found.keys()
        return f"{len(back)} of {len(self.deleted)} deleted memories are there" if back else None

    @staticmethod
    def _call(client: Client, tool: str, arguments: dict[str, Any], then: Then) -> None:
        client.request("tools/call", {"name": tool, "arguments": arguments}, then)

    def _on(self, client: Client, tool: str, name: str, more: dict[str, Any], then: Callable[[], None]) -> None:
        """Changes a memory to which no other change is under way."""
        self.busy.add(name)

        def answered(answer: Answer) -> None:
            self.busy.discard(name)
            if _content(answer) is not None:
                then()

        self._call(client, tool, {"memory_id": name, **more}, answered)

    def _added(self, answer: Answer, said: str) -> None:
        content = _content(answer)
        for result in [] if content is None else content["results"]:
            self.kept[result["id"]] = said

    def _forget(self, name: str) -> None:
        del self.kept[name]
        self.deleted.add(name)


def _content(answer: Answer) -> Answer | None:
    """The answer of a tool; None where it refused."""
    result = answer.get("result")
    if result is None or result.get("isError"):
        return None
    content: Answer = json.loads(result["content"][0]["text"].split("\n")[2])  # between two lines with a mark
    return content
