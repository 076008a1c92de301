"""Commands with a server of the same user."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from naive.program import config_of
from naive.waiting import until

from edge import Client
from edge.apps.collection.collection import Collection
from edge.apps.serve import connection
from edge.apps.serve.connection import Lost, OwnServer, Refused, Unserved
from edge.apps.store.connections import WriterLock
from edge.apps.verbs.home import OwnHome
from edge.apps.verbs.memories import ListMemories, Remember
from edge.apps.verbs.verb import do, of_memory
from edge.config import Config
from edge.errors import CapabilityError, InputError, StorageError
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker
from tests.apps.serve.conftest import TEXTS, Running

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")

QUERY = "when does the river flood"
LINES = "\n".join(text.replace("\n", " ") for text in TEXTS.values()) + "\n"


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def document(self) -> Any:
        """What it printed as JSON, without the figures."""
        found = json.loads(self.out)
        found.pop("stats", None)
        return found

    @property
    def server(self) -> str:
        """What `--stats` says of the server."""
        line = next((line for line in self.err.splitlines() if line.startswith("server ")), "")
        return line.removeprefix("server").strip()


class Shell:
    """Runs `edge` in the folder and with the settings of a server, in forks of one process."""

    def __init__(self, running: Running, forked: tuple[str, ...]) -> None:
        self.running = running
        self.forked = forked

    def edge(self, *arguments: str, given: str = "", cwd: str = ".", **environment: str) -> Ended:
        done = subprocess.run(
            [*self.forked, *arguments], env={**self.running.environment, **environment},
            cwd=self.running.folder / cwd, text=True, capture_output=True, input=given, check=False, timeout=120,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def shell(server: Running, forked_command: tuple[str, ...]) -> Shell:
    return Shell(server, forked_command)


SAME = [
    ("search", QUERY, "-c", "{base}/collection"),
    ("search", QUERY, "-c", "{base}/collection", "--explain", "--min-score", "0.001"),
    ("search", QUERY, "-c", "{base}/collection", "--no-rerank", "-n", "2"),
    ("search", QUERY, "-c", "{base}/collection", "-o", "csv"),
    ("search", QUERY, "-c", "{base}/collection", "-o", "markdown"),
    ("search", QUERY, "-c", "{base}/collection", "--json"),
    ("search", QUERY, "-c", "{base}/collection", "--filter", "path:garden.md"),
    ("search", QUERY, "-c", "{base}/collection", "--filter", "type:pdf"),
    ("search", QUERY, "-c", "{base}/collection", "--min-score", "1"),
    ("rerank", QUERY, "-k", "2"),
    ("rerank", QUERY, "--json", "--retrieved", "--mode", "top-k"),
    ("rerank", QUERY, "--model", "tiny", "--threshold", "inf"),
    ("ask", QUERY, "-c", "{base}/collection"),
    ("ask", QUERY, "-c", "{base}/collection", "--json", "--no-rerank", "-n", "2"),
    ("ask", QUERY, "-c", "{base}/collection", "--min-score", "1"),
    ("ask", QUERY, "-c", "{base}/collection", "--pipeline", "iterative"),
    ("ask", " ", "-c", "{base}/collection"),
    ("embed",),
    ("embed", "--query", "--json"),
]


@pytest.mark.parametrize("arguments", SAME, ids=" ".join)
def test_output_and_code_are_those_of_working_alone(shell: Shell, arguments: tuple[str, ...]) -> None:
    base = str(shell.running.folder)
    given = [argument.replace("{base}", base) for argument in arguments]
    served = shell.edge(*given, "--stats", given=LINES)
    alone = shell.edge(*given, "--no-server", "--stats", given=LINES)
    if alone.code == 2:
        assert (served.code, served.out, served.err) == (alone.code, alone.out, alone.err)
        return
    assert served.server == f"used: process {shell.running.pid}" or "--json" in arguments, served.err
    assert served.code == alone.code
    if "--json" in arguments:
        assert served.document() == alone.document()
        assert json.loads(served.out)["stats"]["server"] == f"used: process {shell.running.pid}"
        assert json.loads(alone.out)["stats"]["server"] == "not used: it is switched off"
    else:
        assert served.out == alone.out
        messages = [[line for line in ended.err.splitlines() if line.startswith("edge:")] for ended in (served, alone)]
        assert messages[0] == messages[1]
    assert alone.server == "not used: it is switched off" or "--json" in arguments


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--memory", "1GB"), "--memory is about this process"),
        (("--threads", "1"), "--threads is about this process"),
        (("--runtime", "onnx"), "its runtime is auto, not onnx"),
        (("--reranker", "tiny2"), "its reranker is tiny, not tiny2"),
        (("--filter", "nonsense:x"), "filter"),
        (("-c", "{base}/hidden"), "is not served"),
    ],
    ids=str,
)
def test_what_the_server_does_not_do_is_done_alone(shell: Shell, arguments: tuple[str, ...], reason: str) -> None:
    """Errors are those of working alone, too."""
    base = shell.running.folder
    (base / "hidden").mkdir(exist_ok=True)
    given = [argument.replace("{base}", str(base)) for argument in arguments]
    place = () if "-c" in given else ("-c", str(base / "collection"))
    asked = ("search", QUERY, *place, *given, "--no-rerank", "--stats")
    served, alone = shell.edge(*asked), shell.edge(*asked, "--no-server")
    assert (served.code, served.out) == (alone.code, alone.out)
    if served.code == 2:
        assert served.err == alone.err
    else:
        assert served.server.startswith("not used: ")
        assert reason in served.server


def test_a_project_is_searched_as_it_is_whatever_is_served(shell: Shell) -> None:
    project = shell.running.folder / "project"
    (project / ".git").mkdir(parents=True)
    (project / "sub").mkdir()
    texts = {"old.txt": "The glacier is old.\n"}
    for change in ({}, {"old.txt": "The glacier melts, and the river rises.\n"}, {"sub/new.md": "A glacier.\n"}, {}):
        texts |= change
        for name, text in change.items() or texts.items():
            (project / name).write_text(text)
        done = shell.edge("search", "--here", "--json", "--no-rerank", '"glacier"', cwd="project/sub")
        found = json.loads(done.out)
        assert found["stats"]["server"] == f"used: process {shell.running.pid}"
        assert {Path(hit["path"]).relative_to(project).as_posix() for hit in found["results"]} == texts.keys()
        assert {hit["snippet"].strip() for hit in found["results"]} == {text.strip() for text in texts.values()}
    assert not shell.edge("search", "glacier", "-c", str(shell.running.folder / "collection"), "--no-rerank").out
    until(lambda: not any(WriterLock(path).is_held() for path in shell.running.folder.rglob("background.lock")))


def test_it_can_be_switched_off_by_a_setting(shell: Shell) -> None:
    asked = ("search", QUERY, "-c", str(shell.running.folder / "collection"), "--no-rerank", "--stats")
    assert shell.edge(*asked, EDGE_SERVER="false").server == "not used: it is switched off"


class Stranger:
    """What listens in the place of a server, and answers as a test wants it."""

    def __init__(self, folder: Path, *answers: bytes) -> None:
        self.path = folder / "edge-rag" / "serve.sock"
        self.path.parent.mkdir(mode=0o700)
        self.heard: list[bytes] = []
        self._answers = list(answers)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self.path.chmod(0o600)
        self._listening.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            with connected:
                self.heard.append(connected.recv(65536))
                answer = self._answers.pop(0) if self._answers else b""
                if answer == b"nothing":
                    time.sleep(5)
                with contextlib.suppress(OSError):  # it has heard enough
                    connected.sendall(answer)

    def close(self) -> None:
        self._listening.close()


def told(content: Any, status: int = 200) -> bytes:
    """An answer of a server."""
    body = json.dumps(content).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.fixture
def hello(server: Running) -> dict[str, Any]:
    """What the server says of itself."""
    path = str(Path(server.environment["XDG_RUNTIME_DIR"]) / "edge-rag" / "serve.sock")
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://any") as client:
        found: dict[str, Any] = client.get("/own").json()
    return found


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Callable[..., Stranger]]:
    made: list[Stranger] = []

    def make(*answers: bytes) -> Stranger:
        made.append(Stranger(tmp_path, *answers))
        return made[-1]

    yield make
    for each in made:
        each.close()


DYING = {
    "at once": [],
    "says nothing": [b"nothing"],
    "no HTTP": [b"220 mail.example ESMTP\r\n"],
    "another program": ["hello", b""],
    "before it answers": ["hello", b""],
    "within its head": ["hello", b"HTTP/1.1 200 OK\r\nContent-Le"],
    "within its answer": ["hello", told({"hits": []})[:-3]],
    "answers no JSON": ["hello", b"HTTP/1.1 200 OK\r\n\r\n<html>"],
    "has no memory": ["hello", told({"detail": "others hold the memory"}, 429)],
    "does not expect it": ["hello", told({"detail": "an error"}, 500)],
}


@pytest.mark.parametrize("name", DYING)
def test_a_server_that_ends_in_the_middle(
    shell: Shell, hello: dict[str, Any], stranger: Callable[..., Stranger], tmp_path: Path, name: str
) -> None:
    """The work is done alone, and nothing is said of it but in the figures."""
    if name == "another program":
        hello["program"] = "elsewhere 1"
    stranger(*(told(hello) if answer == "hello" else answer for answer in DYING[name]))
    asked = ("search", QUERY, "-c", str(shell.running.folder / "collection"), "--no-rerank")
    done = shell.edge(*asked, "--stats", XDG_RUNTIME_DIR=str(tmp_path))
    alone = shell.edge(*asked, "--no-server")
    assert (done.code, done.out) == (0, alone.out)
    assert done.server.startswith("not used: ")
    assert "edge:" not in done.err


@pytest.mark.parametrize("what", ["folder for others", "file", "owner", "peer"])
def test_a_socket_that_may_be_somebody_elses_is_sent_nothing(
    stranger: Callable[..., Stranger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    listening = stranger(told({}))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = os.getuid()
    if what == "folder for others":
        listening.path.parent.chmod(0o755)
    elif what == "file":
        listening.path.unlink()
        listening.path.write_bytes(b"")
    else:
        monkeypatch.setattr(connection.os, "getuid", lambda: own + 1)
        if what == "peer":
            monkeypatch.setattr(connection, "own_socket", lambda: listening.path)
    with pytest.raises(Unserved):
        OwnServer()
    time.sleep(0.1)
    assert [heard for heard in listening.heard if heard] == []


def test_a_request_that_is_too_large_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: OwnServer, method: str, *_: Any) -> bytes:
        assert method == "GET", "it was sent"
        return b'{"body": 100000, "seconds": 1.0}'

    monkeypatch.setattr(connection, "own_socket", lambda: tmp_path / "socket")
    monkeypatch.setattr(OwnServer, "_answer", answer)
    server, texts = OwnServer(), ["x" * 1000] * 20_000
    tracemalloc.start()
    with pytest.raises(Unserved, match="more than the 100,000 bytes that the server takes"):
        server.ask("/own/embed", {"texts": texts})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_what_the_owners_programs_ask_is_not_answered_over_the_network(server: Running) -> None:
    with server.client() as client:
        for path in ("/own", "/own/", "/own/search", "/OWN/search", "/own%2fsearch"):
            assert client.get(path).status_code == 404
            assert client.post(path, json={}).status_code in (404, 405)


def test_the_server_sees_what_others_write(
    start_server: Callable[..., Running], forked_command: tuple[str, ...], tmp_path: Path
) -> None:
    """Also where they put another collection in the place of the one that was served."""
    documents, place = tmp_path / "documents", tmp_path / "collection"
    documents.mkdir()
    running = start_server("-c", str(place), runtime=tmp_path / "run")
    shell = Shell(running, forked_command)
    asked = ("search", "quarry", "-c", str(place), "--no-rerank", "--json")
    for number in range(3):
        (documents / f"{number}.md").write_text(f"# Quarry {number}\n\nThe quarry has {number} lakes.\n")
        if number == 2:
            shutil.rmtree(place)
        assert shell.edge("index", str(documents), "-c", str(place)).code == 0
        found = shell.edge(*asked)
        assert json.loads(found.out)["stats"]["server"] == f"used: process {running.pid}"
        assert found.document() == shell.edge(*asked, "--no-server").document()
        assert len(found.document()["results"]) == number + 1


def test_a_question_to_several_collections_is_the_server_s_too(
    start_server: Callable[..., Running], forked_command: tuple[str, ...], tmp_path: Path
) -> None:
    for name, text in (("one", "The quarry has seven lakes."), ("two", "The mill was built in 1834.")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")
    places = [argument for name in ("c-one", "c-two") for argument in ("-c", str(tmp_path / name))]
    running = start_server(*places, runtime=tmp_path / "run")
    shell = Shell(running, forked_command)
    for name in ("one", "two"):
        assert shell.edge("index", str(tmp_path / name), "-c", str(tmp_path / f"c-{name}")).code == 0
    for question in ("when was the mill built", "how many lakes has the quarry"):
        asked = ("ask", question, *places, "--min-score", "0", "--json")
        served, alone = shell.edge(*asked), shell.edge(*asked, "--no-server")
        assert json.loads(served.out)["stats"]["server"] == f"used: process {running.pid}"
        assert served.document() == alone.document()
        with running.client() as client:
            body = {
                "question": question,
                "min_relevance": 0,
                "collections": [str(tmp_path / "c-one"), str(tmp_path / "c-two")],
            }
            found = client.post("/v1/ask", json=body).json()
        assert found["text"] == served.document()["text"]


HEAVY = ("numpy", "psutil", "hashlib", "csv", "sqlite3", "ssl", "asyncio", "email", "http", "onnxruntime", "starlette",
         "multiprocessing",
         "concurrent", "subprocess", "edge.runtimes", "edge.models", "edge.apps.collection.collection",
         "edge.apps.documents.file_types", "edge.apps.documents.opened")  # fmt: skip


def test_a_search_that_the_server_answers_imports_nothing_heavy(shell: Shell) -> None:
    program = (
        "import sys; from edge.apps import cli\ntry: cli.main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith(('edge.', 'numpy')) or '.' not in name])"
    )
    place = str(shell.running.folder / "collection")
    done = subprocess.run(
        [sys.executable, "-c", program, "search", QUERY, "-c", place, "--no-rerank", "--json"],
        env=shell.running.environment, cwd=shell.running.folder, text=True, capture_output=True, check=True,
    )  # fmt: skip
    found, loaded = done.stdout.splitlines()
    assert json.loads(found)["stats"]["server"].startswith("used: ")
    assert [name for name in ast.literal_eval(loaded) if name in HEAVY] == []


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


def test_every_verb_does_what_it_does_alone(
    start_server: Callable[..., Running], forked_command: tuple[str, ...], tmp_path: Path
) -> None:
    served, alone = tmp_path / "served", tmp_path / "alone"
    running = start_server("--memory-path", str(served), runtime=tmp_path / "run")
    shell = Shell(running, forked_command)
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
            do(of_memory(Remember), adding, home)
    else:
        assert do(of_memory(Remember), adding, home).result["result"]["results"][0]["event"] == "ADD"
    listed = do(of_memory(ListMemories), ListMemories(**whose), home).result
    assert len(listed["result"]["results"]) == (0 if unsure else 1), "reading is done alone"
    assert listed["health"]["state"] == "ok"


@pytest.fixture
def config(server: Running, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The settings of the server, in its folders."""
    for name, value in server.environment.items():
        if name.startswith(("EDGE_", "XDG_")):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("EDGE_MEMORY", "10GB")
    return Config.load()


def test_results_equal_those_of_working_alone(server: Running, config: Config) -> None:
    client, texts = Client(), [*TEXTS.values(), 'Der Fluß "tritt" über.\n']
    with Reranker(config=config) as reranker:
        assert client.rank(QUERY, texts) == reranker.rank(QUERY, texts)
        asked = client.rank(QUERY, texts, 1, retrieved=True, mode="top-k", threshold="inf")
        assert asked == reranker.rank(QUERY, texts, 1, retrieved=True, mode="top-k", threshold="inf")
    with Embedder(config=config) as embedder:
        np.testing.assert_array_equal(client.embed(texts), embedder.embed(texts))
        np.testing.assert_array_equal(client.embed([QUERY], query=True), embedder.embed([QUERY], query=True))
    place = server.folder / "collection"
    with Collection(place, config=config, read_only=True) as collection:
        assert client.search(QUERY, 2, collection=place) == collection.search(QUERY, 2)
        found = client.search(QUERY, rerank=False, collection=place, where=["path:garden.md"])
        assert found == collection.search(QUERY, rerank=False, where=["path:garden.md"])


def test_what_cannot_be_done_is_said(server: Running, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    with pytest.raises(InputError, match="empty"):
        client.rank(" ", ["text"])
    with pytest.raises(InputError, match="not served"):
        client.search(QUERY, collection=server.folder / "elsewhere")
    monkeypatch.setenv("EDGE_RUNTIME", "numpy")
    with pytest.raises(CapabilityError, match="its runtime is auto, not numpy"):
        Client()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(Path(server.environment["XDG_RUNTIME_DIR"]) / "empty"))
    with pytest.raises(CapabilityError, match="no server runs"):
        Client()
