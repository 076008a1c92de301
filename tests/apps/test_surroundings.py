"""Arguments that are no text, odd time zones, a system that gives little memory, and folders for one user alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from naive.program import EDGE, environment_of, write_tiny_models

from edge.apps.console import reports_dir

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="arguments are bytes on POSIX, limits are Linux's")

CHECKPOINT = Path(__file__).parents[1] / "golden" / "bert-reranker"
ODD = b"caf\xe9"
VERBS: dict[str, list[str | bytes]] = {
    "ask": ["ask", ODD, "-c", "col"],
    "backup": ["backup", ODD, "-c", "col"],
    "chat": ["chat", "-c", ODD],
    "cluster": ["cluster", "status", ODD],
    "collections": ["collections", "add", ODD, "docs"],
    "config": ["config", "set", "reranker", ODD],
    "describe": ["describe", ODD, "x", "-c", "col"],
    "embed": ["embed", ODD],
    "get": ["get", ODD + b".md", "-c", "col"],
    "index": ["index", ODD, "-c", "col"],
    "list": ["list", "-c", ODD],
    "memory add": ["memory", "add", ODD, "--path", "mem"],
    "memory path": ["memory", "list", "--path", ODD],
    "models": ["models", "pull", ODD],
    "remove": ["remove", ODD, "-c", "col"],
    "rerank": ["rerank", ODD, "--docs", "docs/river.txt"],
    "restore": ["restore", ODD, "-c", "new"],
    "search": ["search", ODD, "-c", "col"],
    "serve, host": ["serve", "--port", "0", "--host", b"\xff"],
    "serve, long host": ["serve", "--port", "0", "--host", "a" * 70 + ".x"],
    "serve, no host": ["serve", "--port", "0", "--host", ".."],
    "status": ["status", "-c", ODD],
    "verb": [ODD],
}

WORK: list[list[str]] = [["--help"], ["search", "river", "-c", "col"], ["memory", "list", "--path", "mem"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("surroundings")
    write_tiny_models(place / "models")
    (place / "docs").mkdir()
    (place / "docs" / "river.txt").write_text("The river floods in spring.\n", "utf-8")
    command = [*EDGE, "index", "docs", "-c", "col"]
    subprocess.run(command, cwd=place, env=environment_of(place), capture_output=True, check=True)
    return place


def said(
    folder: Path, arguments: list[str | bytes], limits: Callable[[], None] | None = None,
    command: tuple[str, ...] = EDGE, **environment: str,
) -> tuple[int, str]:  # fmt: skip
    """The exit code and the output on stderr, which must be no report of an unexpected error."""
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=environment_of(folder, **environment), stdin=subprocess.DEVNULL,
        capture_output=True, preexec_fn=limits, check=False, timeout=120,
    )  # fmt: skip
    errors = done.stderr.decode("utf-8", "replace")
    assert "Traceback" not in errors
    assert "nobody expected" not in errors
    return done.returncode, errors


@pytest.mark.parametrize("name", VERBS)
def test_arguments_that_are_no_text_are_refused(folder: Path, forked_command: tuple[str, ...], name: str) -> None:
    code, errors = said(folder, VERBS[name], command=EDGE if name == "verb" else forked_command)
    assert code in (0, 1, 2), errors
    assert errors or code == 0


@pytest.mark.parametrize("zone", ["XXX-167:59", "XXX+167:59", ":none", "\udcff", "A" * 5000])
def test_any_time_zone_is_lived_with(folder: Path, zone: str) -> None:
    for arguments in (["memory", "add", "The river floods.", "--path", "mem"], ["memory", "list", "--path", "mem"]):
        code, errors = said(folder, [*arguments], TZ=zone)
        assert code == 0, errors
    if zone.startswith("XXX"):
        code, errors = said(folder, ["search", "river", "-c", "col"], TZ=zone)
        assert code == 0, errors


@pytest.mark.parametrize(("limit", "nbytes"), [("DATA", 200_000 << 10), ("AS", 300_000 << 10), ("DATA", 60_000 << 10)])
def test_a_system_that_gives_too_little_memory_is_told(folder: Path, limit: str, nbytes: int) -> None:
    import resource

    what = getattr(resource, f"RLIMIT_{limit}")
    for arguments in WORK:  # it is found out before the verb is
        code, errors = said(folder, [*arguments], lambda: resource.setrlimit(what, (nbytes, nbytes)))
        assert code == 2, (arguments, code, errors)
        assert errors.count("\n") == 1, errors
        assert f"`ulimit -{'d' if limit == 'DATA' else 'v'}` leaves this process" in errors


def test_the_least_that_is_allowed_works(folder: Path) -> None:
    import resource

    from edge.apps.cli import _NEEDED_DATA, _NEEDED_SPACE

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (_NEEDED_DATA, _NEEDED_DATA))
        resource.setrlimit(resource.RLIMIT_AS, (_NEEDED_SPACE, _NEEDED_SPACE))

    if len(os.sched_getaffinity(0)) <= 2:  # every thread of the libraries takes some more
        code, errors = said(folder, ["search", "river", "-c", "col"], limits)
        assert code == 0, errors


def test_folders_for_the_users_own_data_are_for_that_user_alone(tmp_path: Path) -> None:
    command = (EDGE[0], EDGE[1], f"import os; os.umask(0o022); {EDGE[2]}")
    kinds = ("DATA", "CONFIG", "STATE", "CACHE")
    own = {f"XDG_{kind}_HOME": str(tmp_path / "new" / kind.lower()) for kind in kinds}
    for arguments in (
        ("collections", "add", "work"),
        ("models", "pack", str(CHECKPOINT), "new/data/edge-rag/models/tiny"),
    ):
        code, errors = said(tmp_path, [*arguments], command=command, **own)
        assert code == 0, errors
    made = [path for path in (tmp_path / "new").rglob("*") if path.is_dir()]
    assert {path.name for path in made} >= {"data", "edge-rag", "models"}
    assert {path.stat().st_mode & 0o777 for path in made if path.name != "tiny"} == {0o700}


def test_reports_that_tests_provoke_belong_to_no_user() -> None:
    assert reports_dir().is_relative_to(tempfile.gettempdir())
