"""`edge memory` with a server of the same user."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naive.program import config_of

from edge.apps.serve.connection import Lost, Refused, Unserved
from edge.apps.verbs.home import OwnHome
from edge.apps.verbs.memories import ListMemories, Remember
from edge.apps.verbs.verb import LIST_MEMORIES, REMEMBER, do
from edge.errors import StorageError
from tests.apps.serve.conftest import Running
from tests.apps.serve.test_serve_own import Shell

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")

ANYTHING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\d[T ][\d:.+Z]+")
"""Ids and moments, which are others in every memory."""


def story(shell: Shell, *, served: bool, path: Path) -> list[tuple[int, str, str]]:
    """What a person sees who uses every verb that the server has; ids and moments left out."""
    seen = []
    place = ("--path", str(path), *(() if served else ("--no-server",)))

    def edge(*arguments: str, given: str = "") -> Any:
        done = shell.edge("memory", *arguments, *place, given=given)
        seen.append((done.code, *(ANYTHING.sub("*", text).replace(str(path), "") for text in (done.out, done.err))))
        return done

    edge("list")
    first = json.loads(edge("add", "Alice keeps bees.", "--metadata", '{"a": 1}', "--json").out)["results"][0]["id"]
    edge("add", "Alice keeps bees.", "--metadata", '{"a": 1}')
    edge("add", "-", "--user-id", "bob", given="Bob has a boat.\nBob sings.\n")
    edge("search", "who keeps bees", "--explain", "--json")
    edge("search", "who keeps bees", "--no-rerank", "-n", "1", "--neighbours", "1")
    edge("search", "who keeps bees", "--filters", '{"a": {"bad": 1}}')
    edge("search", " ")
    edge("list", "--user-id", "bob")
    edge("list", "--user-id", "nobody")
    edge("get", first, "--json")
    edge("get", first, "--user-id", "bob")
    edge("update", first, "Alice keeps two hives.", "--pin", "--importance", "0.5")
    edge("update", first, "--user-id", "bob", "--unpin")
    edge("update", first, "--importance", "7")
    edge("history", first)
    edge("delete", first, "--json")
    edge("delete", first)
    edge("delete", "--all", "--user-id", "bob")
    edge("list", "--user-id", "bob")
    return seen


def test_every_verb_does_what_it_does_alone(start_server: Callable[..., Running], tmp_path: Path) -> None:
    served, alone = tmp_path / "served", tmp_path / "alone"
    running = start_server("--memory-path", str(served), runtime=tmp_path / "run")
    shell = Shell(running)
    expected = story(shell, served=False, path=alone)
    found = story(shell, served=True, path=served)
    for here, there in zip(found, expected, strict=True):
        assert here == there
    with running.client() as client:
        counted = client.get("/metrics").text
    assert 'path="/own/memory/search"' in counted, "the server was asked"
    # Memories that the server has written are there when it has gone.
    shell.edge("memory", "add", "Carol paints.", "--path", str(served))
    running.stop()
    assert "Carol paints." in shell.edge("memory", "list", "--path", str(served)).out


class Faulty:
    """A connection whose every request ends in one way."""

    def __init__(self, reason: Unserved) -> None:
        self._reason = reason

    def ask(self, path: str, content: Any) -> Any:
        raise self._reason


@pytest.mark.parametrize(
    ("reason", "unsure"),
    [
        (Lost("it ended"), True),
        (Refused(500, "an error"), True),
        (Refused(504, "too late"), True),
        (Refused(429, "no memory"), False),
        (Refused(404, "not served"), False),
        (Unserved("no server runs"), False),
    ],
    ids=str,
)
def test_a_write_is_repeated_only_where_nothing_was_written(
    tmp_path: Path, tiny_models: Path, monkeypatch: pytest.MonkeyPatch, reason: Unserved, unsure: bool
) -> None:
    home = OwnHome(config_of(tiny_models, tmp_path / "scratch"))
    monkeypatch.setattr("edge.apps.verbs.verb.connected", lambda *given: Faulty(reason))
    whose = {"path": str(tmp_path / "memory"), "user_id": "a"}
    adding = Remember(texts=["Alice keeps bees."], **whose)
    if unsure:
        with pytest.raises(StorageError, match="not known"):
            do(REMEMBER, adding, home)
    else:
        assert do(REMEMBER, adding, home).result["result"]["results"][0]["event"] == "ADD"
    listed = do(LIST_MEMORIES, ListMemories(**whose), home).result
    assert len(listed["result"]["results"]) == (0 if unsure else 1), "reading is done alone"
    assert listed["health"]["state"] == "ok"
