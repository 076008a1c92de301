from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge.apps.documents.base import FoundFile, Reason, SkippedFile
from edge.apps.documents.ignoring import IGNORE_FILES, MOST_CHARACTERS, joined
from edge.apps.documents.scanner import scan
from edge.budget import MemoryBudget

FILES = (
    "a", "b.txt", "c.log", "d/a", "d/b.txt", "d/e/a", "d/e/c.log", "build/x", "build/keep/y", "#f", "!g", "s p", "é",
)  # fmt: skip
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
@example(top="", nested="[a/[a-c]\na*a\n*g*g\n")
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
    (pattern,) = joined([f"*{run}" * stars])
    for name, matches in (
        ("xa" * stars, True), ("a" * stars, True), ("a" * (stars - 1) + "x", False), ("a" * stars + "x", False)
    ):  # fmt: skip
        assert bool(pattern.expression.fullmatch(f"{name}/")) is matches


@pytest.mark.parametrize("line", ["*a" * 60 + "b", "**/" * 60 + "b", "a*" * 100, "[a-a]*" * 50 + "b", "?*" * 100])
def test_no_pattern_takes_long(line: str) -> None:
    """With backtracking over several stars these would outlast the test run."""
    (pattern,) = joined([line])
    started = time.perf_counter()
    pattern.expression.fullmatch(("a" * 250 + "/") * 15)
    assert time.perf_counter() - started < 30


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
def test_as_many_patterns_as_all_templates_together_have(tmp_path: Path) -> None:
    """GitHub's collection has 5,212, and the lines that say the same become one expression."""
    lines = [f"*.s{n}\nf{n}/\n/d{n}/x\n**/e{n}/*.o\n" + f"!k{n}\n" * (n % 50 == 0) for n in range(1300)]
    tree(tmp_path, {"": "*.log\n!c.log\n" + "".join(lines) + "b.txt\nbuild/\n!b.txt\n/d/b.txt\n", "d": "e/\n"})
    assert kept_by_us(tmp_path) == kept_by_git(tmp_path)


TOO_MANY = {"patterns": "ab\n" * 14_000, "stars": "*a" * 30_000, "bytes": "# a comment\n" * 50_000}


@pytest.mark.parametrize("rules", TOO_MANY.values(), ids=TOO_MANY)
@pytest.mark.parametrize("name", IGNORE_FILES)
@pytest.mark.parametrize("where", [".", "d", "d/e"])
def test_a_folder_whose_rules_are_too_large_is_left_out(tmp_path: Path, where: str, name: str, rules: str) -> None:
    tree(tmp_path, {})
    (tmp_path / where / name).write_text(rules)
    budget = MemoryBudget(10**10)
    (refused,) = [
        each for each in scan([tmp_path], budget=budget)
        if isinstance(each, SkippedFile) and each.reason is Reason.UNREADABLE
    ]  # fmt: skip
    assert refused.path == (tmp_path / where).resolve()
    assert re.search(r"cannot be read: (with those .* 250,000 are the most|its .* is too large)", refused.detail)
    assert {name for name in kept_by_us(tmp_path) if Path(where) not in Path(name).parents} == {
        name for name in FILES if Path(where) not in Path(name).parents
    }
    assert "ignore files" not in budget.holders()


def test_rules_of_nested_folders_add_up(tmp_path: Path) -> None:
    folder, budget, leased = tmp_path, MemoryBudget(10**10), set[int]()
    for _ in range(9):
        (folder / ".gitignore").write_text("".join(f"name{n}\n" for n in range(1_500)))
        (folder / "kept.txt").write_text("text")
        folder = folder / "sub"
        folder.mkdir()
    kept = 0
    for each in scan([tmp_path], budget=budget):
        leased.add(budget.holders()["ignore files"])
        kept += isinstance(each, FoundFile)
        assert isinstance(each, FoundFile) or each.reason is not Reason.UNREADABLE or "250,000" in each.detail
    assert kept == len(leased) == 7
    assert max(leased) <= MOST_CHARACTERS * 64
    assert "ignore files" not in budget.holders(), "a lease ends with its folder"
