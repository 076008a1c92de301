"""Ignore files with git's rules (gitignore(5)): nested files, the last matching pattern decides, deeper files go first.
A pattern becomes one regular expression in which no run of characters is tried twice, so that an untrusted one cannot
take long. Patterns match bytes, decoded as Latin-1. `pathspec` matches a folder with everything below it, and so loses
every folder by `*`, `!*/`, `!*.txt`."""

from __future__ import annotations

import io
import os
import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from edge.apps.documents.base import Reason, Skipped
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.secrets import names_secrets

if TYPE_CHECKING:  # a search that the server answers parses filters without it
    from edge.budget import MemoryBudget

IGNORE_FILES = (".gitignore", ".edgeignore")
"""Ignore files that are read in every folder; patterns in the second one override the first."""

MOST_BYTES = 500_000
"""Of an ignore file. All of GitHub's templates have 174,000 together."""

MOST_CHARACTERS = 250_000
"""Of a folder's patterns, with `_PER_PATTERN` for each and `_PER_STAR` for each star. GitHub's count as 201,000."""

_PER_PATTERN = 16
_PER_STAR = 8
_TOGETHER = 4096  # Characters of the patterns that share an expression.
_NBYTES = 64  # Memory of a character in an expression.
_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f", "digit": "0-9",
    "graph": "\\x21-\\x7e", "lower": "a-z", "print": "\\x20-\\x7e", "punct": "!-/:-@\\[-`{-~", "space": " \\t-\\r",
    "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip
_MEMBER = re.compile(r"\[:([^\]]*):\]|(\\.|[^\\])(?:-(\\.|[^\\\]]))?", re.DOTALL)
"""A class, or a character or a range of them, in a bracket expression."""

_FOLDERS_ESCAPED = re.compile(r"(?<![^/])\*{2,}\\/")
LONGEST_NAME = 4096
"""The most characters of the glob of one component. No file system has names of as many."""

_ANY_FOLDERS = "(?:[^/]*/)*?"
_IN_LAST = rf"{_ANY_FOLDERS}(?=[^/]*/\0?\Z)"  # The folders before the last component of a path.


@dataclass(frozen=True, slots=True)
class Pattern:
    """Lines of an ignore file that follow each other and say the same.

    Attributes:
        keeps: whether they begin with `!`, so that their matches are not ignored.
        names_secrets: whether they ask for files with secrets.
        expression: of a path below the ignore file's folder: its components (as of `component`), each with a slash
            behind it, and NUL behind a folder.
    """

    keeps: bool
    names_secrets: bool
    expression: re.Pattern[str]


Line = tuple[tuple[bool, bool], bool, str]
"""Whether a line keeps and names secrets, whether it matches last components in any folder, and its expression."""


class Rules:
    """The ignore files that apply in a folder: its own, and those of the folders above."""

    def __init__(
        self, files: Sequence[Path], depth: int, above: Rules | None = None, budget: MemoryBudget | None = None
    ) -> None:
        """Reads ignore files, of which the later override the earlier. `depth` counts components from the top, where
        paths begin; the `budget`, that of the folder above if there is one, leases the patterns."""
        self._depth = depth
        self._above = above
        self._budget: MemoryBudget | None = budget if above is None else above._budget
        lines = [line for path in files for line in read_lines(path)]
        characters = sum(_PER_PATTERN + len(line) + _PER_STAR * line.count("*") for line in lines)
        self._characters: int = characters if above is None else characters + above._characters
        if self._characters > MOST_CHARACTERS:
            raise Skipped(
                Reason.UNREADABLE,
                f"cannot be read: with those of the folders above, the patterns of its ignore files count as "
                f"{self._characters:,} characters, and {MOST_CHARACTERS:,} are the most; shorten or ignore them",
            )
        if self._budget is not None and characters:
            weakref.finalize(self, self._budget.reserve("ignore files", characters * _NBYTES).release)
        self._patterns = joined(lines)[::-1]

    def decider(self, path: Sequence[str], *, folder: bool) -> Pattern | None:
        """The pattern that tells whether an entry of this folder is ignored; None if none does."""
        rules: Rules | None = self
        while rules is not None:
            below = "".join(f"{name}/" for name in path[rules._depth :]) + "\0" * folder
            for pattern in rules._patterns:
                if pattern.expression.fullmatch(below):
                    return pattern
            rules = rules._above
        return None

    def entered(self, folder: Path, depth: int) -> Rules:
        files = [path for name in IGNORE_FILES if os.path.lexists(path := folder / name)]
        return Rules(files, depth, self) if files else self


def component(name: str) -> str:
    return os.fsencode(name).decode("latin-1")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of an ignore file; none if the file is missing, a symbolic link or not a regular file."""
    try:
        with OpenedFile(path, max_bytes=MOST_BYTES) as file:
            text = file.read().removeprefix(b"\xef\xbb\xbf")
    except Skipped as problem:
        if problem.reason is Reason.TOO_LARGE:
            raise Skipped(Reason.UNREADABLE, f"cannot be read: its {path.name} is too large, {problem}") from None
        return
    yield from (line.decode("latin-1").rstrip("\n") for line in io.BytesIO(text) if line[:1] not in b"#\n")


def joined(lines: Iterable[str]) -> list[Pattern]:
    """One expression decides for as many lines as say the same."""
    patterns: list[Pattern] = []
    numbers = count()
    said: tuple[bool, bool] | None = None
    groups: tuple[list[str], list[str]] = ([], [])
    characters = 0
    parsed = (line for text in lines if (line := parse(text, numbers)) is not None)
    for line in [*parsed, None]:
        if said is not None and (line is None or said != line[0] or characters > _TOGETHER):
            whole, last = map("|".join, groups)
            patterns.append(
                Pattern(*said, re.compile("|".join(filter(None, (last and f"{_IN_LAST}(?:{last})", whole)))))
            )
            groups, characters = ([], []), 0
        if line is not None:
            said, in_last, expression = line
            groups[in_last].append(expression)
            characters += len(expression)
    re.purge()  # it keeps the last 512 expressions, and these are large
    return patterns


def parse(line: str, numbers: Iterator[int]) -> Line | None:
    """None for a line that can match nothing. `numbers` counts the groups of an expression."""
    line = line.removesuffix("\r")
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    if not line or line.startswith("#"):
        return None
    keeps = line.startswith("!")
    line = line[1:] if keeps else line
    folders = line.endswith("/")
    line = line[:-1] if folders else line
    if not line or line.startswith("\\/"):  # an escaped first slash matches nothing, because no path begins with one
        return None
    # Before a plain slash, `**` may match no folder at all; before an escaped one, it matches at least one
    # (wildmatch.c).
    line = _FOLDERS_ESCAPED.sub("**/*/", line)
    names = _names(line)
    in_last = "/" not in line
    globs = ["*" if _is_any(line) else line] if in_last else names and names[not names[0] :]
    if not globs or (expression := path_expression(globs, numbers)) is None:
        return None
    return (keeps, keeps and names_secrets(globs[-1])), in_last, expression + ("\\0" if folders else "\\0?")


def _names(line: str) -> list[str] | None:
    """The globs between the slashes that stand in no bracket; None if a bracket is malformed."""
    names, at = [""], 0
    while at < len(line):
        found = _bracket(line, at + 1) if line[at] == "[" else ("", at + 1 + (line[at] == "\\"))
        if found is None:
            return None
        begin, at = at, found[1]
        if line[begin:at] in ("/", "\\/"):
            names.append("")
        else:
            names[-1] += line[begin:at]
    return names


def path_expression(globs: Sequence[str], numbers: Iterator[int], *, below: bool = False) -> str | None:
    """The expression of the globs of a path's components, each of which ends with a slash; None if one is malformed.
    `**` stands for any number of components. With `below`, a match includes everything below it."""
    runs = [""]  # of components between two `**`
    # `folder/**` matches everything in the folder, but not the folder itself.
    for glob in [*globs, *(["?*"] if _is_any(globs[-1]) else []), *(["**"] if below else [])]:
        if _is_any(glob):
            runs.append("")
        elif (part := _component(glob, numbers)) is None:
            return None
        else:
            runs[-1] += f"{part}/"
    first, *others = [runs[0], *(_ANY_FOLDERS + run for run in runs[1:])]
    return "".join([first, *(_once(run, numbers) for run in others[:-1]), *others[-1:]])


def _is_any(glob: str) -> bool:
    return len(glob) > 1 and not glob.strip("*")


def _once(expression: str, numbers: Iterator[int]) -> str:
    """An expression whose first match is final."""
    name = f"g{next(numbers)}"
    return f"(?=(?P<{name}>{expression}))(?P={name})"


def _component(glob: str, numbers: Iterator[int]) -> str | None:
    """None if the glob is malformed or too long, because it matches nothing then."""
    if not glob or len(glob) > LONGEST_NAME:
        return None
    runs: list[list[str]] = [[]]  # of expressions of one character, between the stars
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "*":
            if runs[-1] or len(runs) == 1:
                runs.append([])
        elif char == "?":
            runs[-1].append("[^/]")
        elif char == "[":
            found = _bracket(glob, at)
            if found is None:
                return None
            runs[-1].append(found[0])
            at = found[1]
        else:
            if char == "\\":
                if at == len(glob):
                    return None
                char = glob[at]
                at += 1
            runs[-1].append(re.escape(char))
    first, *others = runs
    starred = [_once(f"[^/]*?{''.join(run)}", numbers) for run in others[:-1]]
    # The last run is compared once, at the end of the name.
    return "".join([*first, *starred, *(f"[^/]{{{len(run)},}}(?=/)(?<={''.join(run)})" for run in others[-1:])])


def _bracket(glob: str, at: int) -> tuple[str, int] | None:
    """A bracket expression that begins before `at`, as a regular expression, and its end; None if it is malformed."""
    negated = glob.startswith(("!", "^"), at)
    first = at = at + negated
    members = ""
    while (member := _MEMBER.match(glob, at)) is not None:
        if glob[at] == "]" and at > first:
            if not members:
                return "[^/]" if negated else "(?!)", at + 1
            return f"(?!/)[{'^' if negated else ''}{members}]", at + 1
        at = member.end()
        name, begin, last = member.groups()
        if name is None:
            begin, last = begin[-1], (last or begin)[-1]
            members += f"{re.escape(begin)}-{re.escape(last)}" if begin <= last else ""
        elif name in _CLASSES:
            members += _CLASSES[name]
        else:
            return None
    return None
