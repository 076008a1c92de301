from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge.apps.documents.base import FoundFile
from edge.apps.documents.ignoring import parse
from edge.apps.documents.scanner import scan

FILES = (
    "a",
    "b.txt",
    "c.log",
    "d/a",
    "d/b.txt",
    "d/e/a",
    "d/e/c.log",
    "build/x",
    "build/keep/y",
    "#f",
    "!g",
    "s p",
    "é",
)
PARTS = (
    "a", "b", "c", "d", "e", "*", "**", "?", "[a-c]", "[!a]", "[^b]", "[]a]", "[a", "\\*", "\\", ".txt", ".log",
    "build", "keep", "x", "y", "s p", "é", "[[:alpha:]]", "[[:nope:]]", "[z-a]", "[a\\-c]", "#f", "!g", "***",
)  # fmt: skip


def kept_by_git(folder: Path) -> set[str]:
    """The files that git would track, with no settings but the folder's own."""
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }  # fmt: skip
    if not (folder / ".git").exists():
        subprocess.run(["git", "init", "-q", "."], cwd=folder, env=environment, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=folder, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    names = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
    return {name for name in names if not any(part.startswith(".") for part in name.split("/"))}


def kept_by_us(folder: Path) -> set[str]:
    return {
        file.path.relative_to(folder.resolve()).as_posix() for file in scan([folder]) if isinstance(file, FoundFile)
    }


def tree(folder: Path, ignore: dict[str, str]) -> None:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text")
    for where in ("", "d", "build"):
        path = folder / where / ".gitignore"
        path.unlink(missing_ok=True)
        if where in ignore:
            path.write_bytes(ignore[where].encode())


LINE = st.builds(
    lambda sign, root, parts, slash, blank: sign + root + "".join(parts) + slash + blank,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/", "**/"]),
    st.lists(st.one_of(st.sampled_from(PARTS), st.just("/")), min_size=1, max_size=4),
    st.sampled_from(["", "", "/", "/**"]),
    st.sampled_from(["", "", " ", "\\ "]),
)
LINES = st.lists(LINE, max_size=4).map("\n".join)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=LINES, nested=LINES)
@example(top="*\n!*/\n!*.txt", nested="")
@example(top="build/\n!build/keep", nested="!c.log")
@example(top="/d/*\n!/d/e", nested="")
@example(top="d/**/a\n**/keep/**", nested="*\n!b.txt")
@example(top="\\#f\n\\!g\ns p \r", nested="# comment\n\n   \n/")
@example(top="**\n!/d\n!/d/**/", nested="")
@example(top="?", nested="***/**")
@example(top="\\/**", nested="")
@example(top="a\n!\\/**", nested="\\/c.log\n**\\/b.txt")
@example(top="d\\/b.txt\nbuild\\/", nested="/\ne\\/**")
def test_git_agrees(tmp_path: Path, top: str, nested: str) -> None:
    tree(tmp_path, {"": top, "d": nested})
    assert kept_by_us(tmp_path) == kept_by_git(tmp_path)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
def test_the_repository_above_a_root_counts(tmp_path: Path) -> None:
    tree(tmp_path, {"": "*.log\n/d/b.txt\n", "d": "!c.log\n"})
    kept_by_git(tmp_path)
    (tmp_path / ".git" / "info" / "exclude").write_text("x\nc.log\n")
    assert kept_by_us(tmp_path) == kept_by_git(tmp_path)
    inside = {f"d/{name}" for name in kept_by_us(tmp_path / "d")}
    assert inside == {name for name in kept_by_git(tmp_path) if name.startswith("d/")}
    assert inside == {"d/a", "d/e/a", "d/e/c.log"}


def test_edgeignore_has_the_last_word(tmp_path: Path) -> None:
    tree(tmp_path, {"": "*.txt\n"})
    (tmp_path / ".edgeignore").write_text("!b.txt\nc.log\nbuild\n")
    kept = kept_by_us(tmp_path)
    assert {"b.txt", "d/b.txt"} <= kept
    assert not kept & {"c.log", "build/x"}


def test_an_ignore_file_that_is_a_symlink_or_a_folder_says_nothing(tmp_path: Path) -> None:
    tree(tmp_path, {})
    (tmp_path / "rules").write_text("*")
    (tmp_path / ".gitignore").symlink_to("rules")
    (tmp_path / ".edgeignore").mkdir()
    assert "a" in kept_by_us(tmp_path)


@pytest.mark.parametrize("stars", [1, 99, 100, 101, 120, 402])
@pytest.mark.parametrize("run", ["a", "[a-b]"])
def test_many_stars_match_as_one_does(stars: int, run: str) -> None:
    pattern = parse(f"*{run}" * stars)
    assert pattern is not None
    assert pattern.matches(["xa" * stars])
    assert pattern.matches(["a" * stars])
    assert not pattern.matches(["a" * (stars - 1) + "x"])
    assert not pattern.matches(["a" * stars + "x"])


@pytest.mark.parametrize("line", ["*a" * 60 + "b", "**/" * 60 + "b", "a*" * 100, "[a-a]*" * 50 + "b", "?*" * 100])
def test_no_pattern_takes_long(line: str) -> None:
    """With backtracking over several stars these would outlast the test run."""
    pattern = parse(line)
    assert pattern is not None
    started = time.perf_counter()
    pattern.matches(["a" * 250] * 15)
    assert time.perf_counter() - started < 30
