"""The documents: links, figures, commands and blocks that run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from making.pdf import pdf_bytes
from making.random_gguf import RandomModel
from making.synth import synth
from naive.forked import forked_edge
from naive.waiting import PATIENCE_S

from edge.models.architectures import FAMILIES

ROOT = Path(__file__).parents[1]

NOT_RUN = {
    "python3 -m venv": "installs from the network",
    "edge models pull": "downloads a model",
    "base_url": "needs the clients of others",
    "Client()": "asks a server, below",
    "--llm smollm2": "downloads a language model",
    "pip install '.[llm]'": "installs from the network",
    "/media/disk": "names a disk of the reader",
    "OLD_ID": "names memories of the reader",
    "edge memory learn": "reads transcripts of the reader",
    "edge-rag[cluster]": "installs from the network",
    "edge cluster": "needs Ray",
    "--cluster": "needs Ray",
    ".venv/bin/": "runs the tests themselves",
    ".ci/run": "runs the tests themselves",
    "wordfreq": "needs a package that only training needs",
    **({} if find_spec("mcp") else {"edge install": "needs the extra mcp"}),
    **({} if find_spec("llama_cpp") else {"--llm model.gguf": "needs the extra llm"}),
}
"""Parts of lines and snippets that are not run, and why."""

UNTIL_INTERRUPTED = "edge watch"
MAY_FIND_NOTHING = ("edge ask", "edge memory search")
"""Whether an answer is good enough is judged by models, and these are not trained."""


def snippets(document: Path, language: str) -> list[str]:
    """The blocks of a language, in their order."""
    text = document.read_text(encoding="utf-8")
    return [match[1] for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def shell_lines(document: Path) -> list[str]:
    """Every command of the shell's blocks; one that goes on in the next line is one command."""
    lines: list[str] = []
    for block in snippets(document, "sh"):
        for line in block.splitlines():
            if lines and line.startswith(" "):
                lines[-1] += " " + line.strip()
            elif line.strip():
                lines.append(line)
    return lines


def reason(line: str) -> str | None:
    return next((why for part, why in NOT_RUN.items() if part in line), None)


PAGES = [ROOT / "README.md", *sorted(ROOT.glob("[A-Z]*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = list(dict.fromkeys(PAGES))
WITH_COMMANDS = [page for page in PAGES if any(reason(line) is None for line in shell_lines(page))]
PYTHON = [(page, text) for page in PAGES for text in snippets(page, "python") if reason(text) is None]


def name(value: object) -> str:
    return (
        value.relative_to(ROOT).with_suffix("").as_posix()
        if isinstance(value, Path)
        else str(value).strip().splitlines()[-1]
    )


@pytest.fixture(scope="module")
def first_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home before any snippet has run. What is indexed and remembered is there for the snippets that search it."""
    home = tmp_path_factory.mktemp("homes").resolve() / "home"
    synth("tiny-bert-embedder", home / "models" / "tiny").close()
    documents = home / "Documents"
    (documents / "letters").mkdir(parents=True)
    (home / "Work").mkdir()
    (home / "docs").mkdir()
    (home / "docs" / "limit.md").write_text("# The memory limit\n\nOne ledger keeps the memory limit.\n")
    (home / "Work" / "plan.md").write_text("The plan is to renew the certificate in May.\n")
    (documents / "rivers.md").write_text("# Rivers\n\nThe river floods in spring.\n")
    (documents / "letters" / "office.md").write_text("The certificate expires in May; its renewal form is green.\n")
    pdf = pdf_bytes([[(72, 720, 12, "The renewal of the certificate takes a week.")]])
    (documents / "renewal.pdf").write_bytes(pdf)
    (home / "OLD.pdf").write_bytes(pdf)
    (home / "passages.txt").write_text("The river floods in spring.\nBread needs time.\nOld ice looks blue.\n")
    (home / "passages.jsonl").write_text(json.dumps({"path": "ice", "text": "Old ice looks blue."}) + "\n")
    (home / "notes.jsonl").write_text(json.dumps({"text": "Ann called at noon.", "id": "1"}) + "\n")
    shutil.copytree(ROOT / "tests" / "golden" / "bert-reranker", home / "my-checkpoint")
    RandomModel(layers=1, context=4096).write(home / "model.gguf")
    (home / "bin").mkdir()
    with forked_edge(home / "bin" / "edge"):
        for command in ("edge index OLD.pdf Documents", "edge memory add 'The meeting moved to Thursday'"):
            assert starter(home)(["sh", "-c", command]).wait(PATIENCE_S) == 0
        yield home.rename(home.with_name("first"))


@pytest.fixture
def home(first_home: Path) -> Path:
    """A user's home: documents of every kind the snippets name, and a tiny embedder in the place of the default one."""
    home = first_home.with_name("home")  # always at the same path, which the index holds
    shutil.rmtree(home, ignore_errors=True)
    return shutil.copytree(first_home, home)


@pytest.fixture
def run(home: Path) -> Callable[[list[str]], subprocess.Popen[str]]:
    return starter(home)


def starter(home: Path) -> Callable[[list[str]], subprocess.Popen[str]]:
    """Starts commands in a home."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EDGE_") and name != "COLUMNS"},
        "HOME": str(home), "USERPROFILE": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "EDGE_MODELS_DIR": str(home / "models"), "EDGE_THREADS": "1", "EDGE_EMBEDDER": "tiny",
        "XDG_CONFIG_HOME": str(home / "config"), "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_DATA_HOME": str(home / "data"),
    }  # fmt: skip

    def run(command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home,
            env=environment, start_new_session=True,
        )  # fmt: skip

    return run


@pytest.mark.skipif(os.name == "nt", reason="the snippets are for a POSIX shell")
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_every_line_for_the_shell_runs(
    home: Path, run: Callable[[list[str]], subprocess.Popen[str]], page: Path
) -> None:
    """In their order, because later ones search the documents that earlier ones have indexed."""
    for line in shell_lines(page):
        if reason(line) is not None:
            continue
        started = run(["sh", "-c", line])
        if line.startswith(UNTIL_INTERRUPTED):
            assert started.stderr is not None
            assert "watching" in started.stderr.readline()
            while started.poll() is None:  # a busy machine may still be starting to watch
                time.sleep(0.5)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGINT)
        out, err = started.communicate(timeout=PATIENCE_S)
        allowed = (0, 1) if line.startswith(MAY_FIND_NOTHING) else (0,)
        if line.startswith(UNTIL_INTERRUPTED):  # the shell was interrupted, too
            assert "stopped watching" in err
            allowed = (0, -signal.SIGINT, 130)
        assert started.returncode in allowed, f"{line}\n{out}\n{err}"
        assert "Traceback" not in err, f"{line}\n{err}"


@pytest.mark.parametrize(("page", "snippet"), PYTHON, ids=name)
def test_every_python_snippet_runs(run: Callable[[list[str]], subprocess.Popen[str]], page: Path, snippet: str) -> None:
    """A name behind an expression, as in `memory.search(...)  # Oslo`, stands in its result."""
    checked = re.sub(r"^( *)(\w+\..+\))  # ([A-Z]\w+)$", r'\1assert "\3" in str(\2)', snippet, flags=re.MULTILINE)
    started = run([sys.executable, "-c", checked])
    out, err = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 0, f"{out}\n{err}"


@pytest.mark.skipif(os.name == "nt", reason="the snippets are for a POSIX shell")
def test_the_demo_prints_what_the_readme_shows(run: Callable[[list[str]], subprocess.Popen[str]]) -> None:
    """Except for the machine's seconds and megabytes; other runtimes move a score by a thousandth."""
    out, err = run(["sh", "-c", "edge demo"]).communicate(timeout=PATIENCE_S)
    printed = iter(out.splitlines())
    for shown in snippets(ROOT / "README.md", "text")[0].splitlines():
        if shown == "...":
            continue
        words = re.sub(r"[\d.]+ (s|MB)\b|[\d.]+", "#", shown)
        line = next((line for line in printed if re.sub(r"[\d.]+ (s|MB)\b|[\d.]+", "#", line) == words), None)
        assert line is not None, f"{shown}\n{out}\n{err}"
        figures = (re.findall(r"[\d.]+(?!\S*\d| s\b| MB\b)", text) for text in (shown, line))
        for told, found in zip(*figures, strict=True):
            assert float(told.strip(".") or 0) == pytest.approx(float(found.strip(".") or 0), rel=0.02), line


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")
def test_the_server_of_the_pages_serves_its_client(
    home: Path, run: Callable[[list[str]], subprocess.Popen[str]], tmp_path: Path
) -> None:
    for extra in ("starlette", "uvicorn"):
        pytest.importorskip(extra)

    def done(*command: str) -> str:
        started = run(["env", f"XDG_RUNTIME_DIR={tmp_path}", *command])
        out, err = started.communicate(timeout=PATIENCE_S)
        assert started.returncode == 0, f"{command}\n{out}\n{err}"
        return out

    serve = ROOT / "docs" / "serve.md"
    command = next(line for line in snippets(serve, "bash")[0].splitlines() if line.startswith("edge serve"))
    assert command in snippets(ROOT / "README.md", "bash")[0]
    client = next(text for text in snippets(serve, "python") if "Client()" in text)
    done("sh", "-c", "edge collections add notes && edge index -c notes Documents")
    shown = done("sh", "-c", f"{command} --background --port 0")  # 8777 may be taken
    assert re.search(r"serving on http://127.0.0.1:\d+ within 300 MB", shown)
    try:
        told = done(sys.executable, "-c", client + "print(best[0], hits[0].path)\n")
        assert "Shakespeare" in told or "It rains" in told
        status = done("edge", "serve", "--status")
        assert all(f"\n{word}" in f"\n{status}" for word in ("process", "address", "memory", "collection"))
    finally:
        done("edge", "serve", "--stop")


def test_only_what_is_named_is_left_out() -> None:
    """A reason that no line needs any more hides the next line that needs none."""
    lines = [line for page in PAGES for line in shell_lines(page)]
    texts = [text for page in PAGES for text in snippets(page, "python")]
    for part in NOT_RUN:
        assert any(part in line for line in [*lines, *texts]), f"no snippet holds {part!r}"
    assert len(lines) - len([line for line in lines if reason(line)]) >= 30
    assert len(PYTHON) >= 4


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if target and not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_are_there(page: Path) -> None:
    """Paths of this repository in backticks: those that begin with one of its folders."""
    for named in re.findall(
        r"`((?:apps|edge|models|runtimes|devices|tests|docs|\.ci)/[\w./-]+)`", page.read_text("utf-8")
    ):
        assert (ROOT / named).exists(), f"{page.name} names {named}, which is not there"


def test_every_room_is_on_the_map() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for folder in ("edge", "models", "runtimes", "devices", "apps"):
        for room in sorted({path.parent.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}):
            assert f"`{folder}/" in text
            assert all(f"{part}/`" in text for part in room.parts), f"ARCHITECTURE.md leaves out {folder}/{room}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_options_that_are_named_exist(page: Path) -> None:
    from edge.apps.cli import edge

    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`(edge [^`]+)`", text):
        words = [word for word in shlex.split(code.split("|")[0])[1:] if word != "..."]
        command: click.Command = edge
        while words and isinstance(command, click.Group):
            found = command.get_command(click.Context(command), words[0])
            if found is None:
                assert words[0].startswith("-") or words[0].isupper(), f"{page.name} names `{code}`"
                break
            command, words = found, words[1:]
        options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        for word in words:
            if word.startswith("--"):
                assert word.split("=")[0] in {*options, "--help"}, f"{page.name} names {word} in `{code}`"


def test_pictures_are_those_of_the_stored_runs() -> None:
    chart = runpy.run_path(str(ROOT / "docs" / "chart.py"))
    for picture in chart["PICTURES"]:
        stored = chart["IMAGES"] / f"{picture.__name__}.svg"
        assert stored.read_text(encoding="utf-8") == picture(), stored.name


def program_of(name: str) -> dict[str, Any]:
    """The names of a program in `docs`."""
    return runpy.run_path(str(ROOT / "docs" / f"{name}.py"))


def test_the_list_of_keys_names_every_family_and_key() -> None:
    program = program_of("model_keys")
    page = program["page"]()
    assert not FAMILIES.keys() & set(program["OTHERS"].split())
    for name, family in FAMILIES.items():
        assert name in page
        for key in (*family.keys.used, *family.keys.harmless, *family.keys.accepted):
            assert f"`{key}`" in page


def test_every_command_and_option_says_what_it_does() -> None:
    from edge.apps.cli import edge

    page, program = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8"), program_of("commands")
    assert page == program["page"](), "run `python docs/commands.py`"
    count = 0
    for path, command in program["commands"](edge, ("edge",)):
        name = " ".join(path)
        assert command.help, f"{name} has no help"
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                count += 1
                assert option.help or isinstance(option.type, click.Choice) or option.show_default, (
                    f"{name} {option.opts}"
                )
                assert program["_names"](option) in page
    assert count > 100
