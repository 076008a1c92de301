"""The limits that `edge doctor` shows are enough, and hardly more than enough."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from making.random_gguf import RandomModel
from naive.program import EDGE, settings_of

from edge.apps.commands import doctor, smallest
from edge.apps.commands.smallest import OPERATIONS, _asked
from edge.config import format_size, parse_size
from edge.interpreter import python

WORKS = {
    "demo": ["demo", "what do bees do"],
    "index": ["index", "docs", "-c", "col"],
    "search": ["search", "river", "-c", "col"],
    "ask": ["ask", "when does the river flood", "-c", "col"],
    "memory": ["memory", "search", "river", "--path", "mem"],
    "rerank": ["rerank", "river", "--docs", "docs/river.txt"],
    "embed": ["embed", "--docs", "docs/river.txt"],
    "mcp": ["mcp", "files", "-c", "col"],
    "serve": ["serve", "--port", "0", "-c", "col"],
}
"""A small request of every operation, in the order in which they are made; the server gets its own."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the figures are those of anonymous memory")


def prepare(folder: Path, models: Path, patch: pytest.MonkeyPatch) -> None:
    own = {"EDGE_MODELS_DIR": str(models), "EDGE_LLM": "extractive", "XDG_RUNTIME_DIR": str(folder / "run")}
    for name, value in settings_of(folder, **own).items():
        patch.setenv(name, value)
    (folder / "docs").mkdir()
    (folder / "docs" / "river.txt").write_text("The river floods in spring.\n", encoding="utf-8")


@pytest.fixture
def settings(tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, tiny_models, monkeypatch)


@pytest.fixture(scope="module")
def made(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection `col` and a memory `mem`, for copies."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        prepare(folder, tiny_models, patch)
        assert run(folder, *WORKS["index"]).returncode == 0
        remembered = ["The river floods in spring.", "I like tea", "I like rain"]
        assert run(folder, "memory", "add", *remembered, "--path", "mem").returncode == 0
    return folder


@pytest.fixture
def filled(settings: None, made: Path, tmp_path: Path) -> Path:
    for name in ("col", "mem"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def run(folder: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*EDGE, *arguments],
        cwd=folder, env=dict(os.environ), input=given, capture_output=True, check=False,
    )  # fmt: skip


def served(folder: Path, limit: str) -> int:
    """The status of a search by a server within a limit."""
    command = [*EDGE, *WORKS["serve"], "--memory", limit]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None, "it did not start"
            asked = Request(f"{found[0]}/v1/search", json.dumps({"query": "river"}).encode())
            with urlopen(asked, timeout=60) as answer:
                return int(answer.status)
        finally:
            process.send_signal(signal.SIGINT)


def test_doctor_shows_limits_that_work_at_the_first_try(
    settings: None, tmp_path: Path, edge_verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = json.loads(run(tmp_path, "doctor", "--json").stdout)["smallest_limits"]
    monkeypatch.setattr(doctor, "smallest_limits", lambda: limits)
    shown = edge_verb("doctor").out
    assert all(f"smallest --memory of {name:7} " in shown for name in OPERATIONS)
    monkeypatch.delenv("EDGE_MEMORY")
    assert limits.keys() == OPERATIONS.keys() == WORKS.keys()
    assert run(tmp_path, "memory", "add", "The river floods in spring.", "--path", "mem").returncode == 0
    for name, arguments in WORKS.items():
        limit = limits[name]
        if name in ("mcp", "serve") and isinstance(limit, str):
            continue  # the extra is not installed
        assert isinstance(limit, int), (name, limit)
        enough = format_size(limit, up=True).replace(" ", "")
        if name not in ("demo", "mcp"):  # those check their answers only, which are small here
            refused = run(tmp_path, *arguments, "--memory", str(limit * 3 // 4))
            assert refused.returncode == 2, (name, "three quarters of it are enough")
            assert b"smallest memory limit" in refused.stderr or b"leaves" in refused.stderr, refused.stderr
            named = re.findall(rb"that works is ([0-9.]+ MB)", refused.stderr)
            # Two processes differ a little in what they hold, before the limit is rounded up to three digits.
            most = parse_size(format_size(int(limit * 1.01), up=True))
            assert all(parse_size(size.decode()) <= most for size in named), (name, limit, refused.stderr)
        if name == "serve":
            assert served(tmp_path, enough) == 200
            continue
        done = run(tmp_path, *arguments, "--memory", enough)
        assert done.returncode in (0, 1), (name, limit, done.stderr)


LINES = b"".join(b"The river number %d rises in the year %d and falls in autumn.\n" % (n, n) for n in range(1_500))
ADD = ["memory", "add", "-", "--path"]

REFUSED: dict[str, tuple[list[str], bytes, str]] = {
    "search": (["search", "-", "-c", "col"], b"river flood " * 500, "45MB"),
    "search, marks": (["search", "-", "-c", "col"], "a\u0301\u0323".encode() * 30_000, "45MB"),
    "search, one word": (["search", "-", "-c", "col"], b"a" * 99_000, "45MB"),
    "search, Chinese": (["search", "-", "-c", "col"], "\u6cb3".encode() * 30_000, "45MB"),
    "search, parts": (["search", "-", "-c", "col"], b" ".join([b"vec: " + b"river " * 200] * 16), "45MB"),
    "ask --llm": (
        ["ask", "when does the river flood", "-c", "col", "--llm", "m.gguf", "--max-tokens", "4"],
        b"",
        "45MB",
    ),
    "chat": (["chat", "-c", "col"], b"when does the river flood\n", "45MB"),
    "chat --llm": (["chat", "-c", "col", "--llm", "m.gguf", "--max-tokens", "4"], b"when does it flood\n", "45MB"),
    "memory search, one word": (["memory", "search", "-", "--path", "mem"], b"a" * 99_000, "45MB"),
    "memory search": (["memory", "search", "river " * 400, "--path", "mem"], b"", "45MB"),
    "embed, a long line": (["embed", "--docs", "-"], b"word " * 1_000_000, "45MB"),
    "embed, long lines": (["embed", "--docs", "-"], (b"caf\xc3\xa9 " * 300_000 + b"\n") * 3, "45MB"),
    "rerank, a long line": (["rerank", "river", "--docs", "-"], b"word " * 1_000_000, "45MB"),
    "rerank, lines": (["rerank", "river", "--docs", "-"], b"the river\n" * 40_000, "45MB"),
    "repair": (["repair", "-c", "col"], b"", "1MB"),
    "repair of damage": (["repair", "-c", "col"], b"", "1MB"),
    "memory repair": (["memory", "repair", "--path", "mem"], b"", "1MB"),
    "memory repair of damage": (["memory", "repair", "--path", "mem"], b"", "1MB"),
    "memory add, a long line": ([*ADD, "mem"], b"word " * 40_000, "45MB"),
    "memory add": ([*ADD, "mem", "--no-supersede"], LINES, "60MB"),
    "memory add, judged": ([*ADD, "mem"], LINES[:10_000], "60MB"),
    "the first memory add": ([*ADD, "new", "--no-supersede"], LINES, "60MB"),
}
"""Verbs with their input, and a limit that is too small for them. To judge pairs of many lines takes minutes."""


@pytest.mark.parametrize("verb", REFUSED)
def test_the_limit_that_a_refusal_names_is_enough(filled: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    if "--llm" in verb and not (find_spec("llama_cpp") and find_spec("jinja2")):
        return  # the extra is not installed
    monkeypatch.delenv("EDGE_MEMORY", raising=False)
    RandomModel().write(filled / "m.gguf")
    if verb.endswith("damage"):
        path = filled / ("mem/memory.db" if verb.startswith("memory") else "col/edge.db")
        data = bytearray(path.read_bytes())
        for page in range(4, len(data) // 4096):
            data[page * 4096 + 3500 : page * 4096 + 3900] = bytes(range(200)) * 2
        path.write_bytes(data)
    arguments, given, little = REFUSED[verb]
    refused = run(filled, *arguments, "--memory", little, given=given)
    assert refused.returncode == 2, refused.stderr
    *_, limit = re.findall(rb"(?:works is|a limit of) ([\d.]+ [GMk]?B)", refused.stderr) or [refused.stderr]
    assert limit.endswith(b"B"), limit
    done = run(filled, *arguments, "--memory", limit.decode().replace(" ", ""), given=given)
    assert done.returncode in (0, 1), (limit, done.stderr[-2000:])
    assert b"limit" not in done.stderr, done.stderr


LEFT = "import atexit, sys; atexit.register(lambda: open('loaded', 'w').write(' '.join(sys.modules))); "
"""Written before a program, it leaves the names of the modules that the program loads."""


@pytest.mark.parametrize("name", [name for name in WORKS if name != "demo"])  # which is never refused so early
def test_a_verb_loads_no_module_that_its_limit_leaves_out(filled: Path, name: str) -> None:
    arguments = ["index", "docs", "-c", "other"] if name == "index" else WORKS[name]
    program = [sys.executable, "-c", LEFT + EDGE[-1], *arguments, "--memory", "32MB"]
    refused = subprocess.run(program, cwd=filled, capture_output=True, check=False)
    if name in ("mcp", "serve") and b"pip install" in refused.stderr:
        return  # the extra is not installed
    assert b"works is" in refused.stderr, refused.stderr
    loaded = set((filled / "loaded").read_text().split())
    child = python(LEFT + smallest._CHILD, name)
    assert b"bytes" in subprocess.run(child, cwd=filled, capture_output=True, check=True).stdout
    more = loaded - set((filled / "loaded").read_text().split())
    assert not {module for module in more if module.partition(".")[0] not in sys.stdlib_module_names}


def test_what_cannot_be_computed_is_said(settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_RERANKER", "not-there")
    assert "there is no model 'not-there'" in str(_asked("rerank"))
    assert isinstance(_asked("embed"), int)


@pytest.mark.parametrize(("name", "missing", "extra"), [("mcp", "mcp", "mcp"), ("serve", "msgspec", "serve")])
def test_a_missing_extra_is_named_as_pip_takes_it(
    settings: None, monkeypatch: pytest.MonkeyPatch, name: str, missing: str, extra: str
) -> None:
    monkeypatch.setattr(smallest, "_CHILD", f"import sys; sys.modules[{missing!r}] = None; {smallest._CHILD}")
    assert f"pip install 'edge-rag[{extra}]'" in str(_asked(name))
