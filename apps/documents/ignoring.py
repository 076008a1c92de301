"""Ignore files with git's rules (gitignore(5)): nested files, the last matching pattern decides, deeper files go first.

A pattern becomes one regular expression, in which each run of characters between two stars matches at its first place
and is never tried again. So a pattern in an untrusted folder cannot take long. As in git, patterns match bytes, and `?`
matches one byte: names and patterns are compared as their bytes decoded as Latin-1. `pathspec` is not used, because it
matches a folder together with everything below it. The common patterns `*`, `!*/`, `!*.txt` (keep one kind of file)
would then lose every folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from edge.apps.documents.base import Skipped
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.secrets import names_secrets

IGNORE_FILES = (".gitignore", ".edgeignore")
"""Ignore files that are read in every folder; patterns in the second one override the first."""

_MOST_BYTES = 10**6
_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f", "digit": "0-9",
    "graph": "\\x21-\\x7e", "lower": "a-z", "print": "\\x20-\\x7e", "punct": "!-/:-@\\[-`{-~", "space": " \\t-\\r",
    "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip
_MEMBER = re.compile(r"\[:([^\]]*):\]|(\\.|[^\\])(?:-(\\.|[^\\\]]))?", re.DOTALL)
"""A class, or a character or a range of them, in a bracket expression."""

_ESCAPED_SLASH = re.compile(r"(\\\\)|\\/")
_FOLDERS_ESCAPED = re.compile(r"(?<![^/])\*{2,}\\/")
LONGEST_NAME = 4096
"""The most characters of the glob of one component. No file system has names of as many."""

_ANY_FOLDERS = "(?:[^/]*/)*?"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A line of an ignore file.

    Attributes:
        keeps: whether it began with `!`, so that its matches are not ignored.
        folders: whether it matches only folders.
        expression: as of `path_expression`.
        names_secrets: whether it asks for files with secrets.
    """

    keeps: bool
    folders: bool
    expression: re.Pattern[str]
    names_secrets: bool = False

    def matches(self, path: Sequence[str]) -> bool:
        """Whether a path matches. The path holds its components (as of `component`) below the ignore file's folder."""
        return self.expression.fullmatch("".join(f"{name}/" for name in path)) is not None


class Rules:
    """The ignore files that apply in a folder: its own, and those of the folders above."""

    def __init__(self, patterns: Sequence[Pattern], depth: int, above: Rules | None = None) -> None:
        """Args:
        patterns: in the order of their file.
        depth: number of components from the top, where paths begin, to this folder.
        above: the rules of the folder above.
        """
        self._patterns = tuple(reversed(patterns))
        self._depth = depth
        self._above = above

    def decider(self, path: Sequence[str], *, folder: bool) -> Pattern | None:
        """The pattern that tells whether an entry of this folder is ignored; None if none does. Callers do not enter
        ignored folders.

        Args:
            path: components from the top down to the entry, as of `component`.
        """
        rules: Rules | None = self
        while rules is not None:
            below = path[rules._depth :]
            for pattern in rules._patterns:
                if (folder or not pattern.folders) and pattern.matches(below):
                    return pattern
            rules = rules._above
        return None

    def entered(self, folder: Path, depth: int) -> Rules:
        """The rules inside a subfolder."""
        patterns = [pattern for name in IGNORE_FILES for pattern in read_patterns(folder / name)]
        return Rules(patterns, depth, self) if patterns else self


def component(name: str) -> str:
    """A file name in the form that patterns match."""
    return os.fsencode(name).decode("latin-1")


def read_patterns(path: Path) -> list[Pattern]:
    """The patterns of an ignore file; none if the file is missing, a symbolic link or not a regular file."""
    try:
        with OpenedFile(path, max_bytes=_MOST_BYTES) as file:
            text = file.read().removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    except Skipped:
        return []
    parsed = (parse(line) for line in text.split("\n"))
    return [pattern for pattern in parsed if pattern is not None]


def parse(line: str) -> Pattern | None:
    """Parses a line into a pattern; None for an empty line, a comment, or a pattern that can match nothing."""
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
    names = _ESCAPED_SLASH.sub(lambda match: match[1] or "/", line).split("/")
    globs = ["**", line] if len(names) == 1 else names[not names[0] :]
    expression = path_expression(globs)
    return None if expression is None else Pattern(keeps, folders, expression, keeps and names_secrets(globs[-1]))


def path_expression(globs: Sequence[str], *, below: bool = False) -> re.Pattern[str] | None:
    """Compiles the globs of a path's components, each of which ends with a slash; None if one of them is malformed.
    `**` stands for any number of components. With `below`, a match includes everything below it."""
    numbers = count()
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
    return re.compile("".join([first, *(_once(run, numbers) for run in others[:-1]), *others[-1:]]))


def _is_any(glob: str) -> bool:
    return len(glob) > 1 and not glob.strip("*")


def _once(expression: str, numbers: Iterator[int]) -> str:
    """An expression whose first match is final."""
    name = f"g{next(numbers)}"
    return f"(?=(?P<{name}>{expression}))(?P={name})"


def _component(glob: str, numbers: Iterator[int]) -> str | None:
    """The expression for one component; None if its glob is malformed or too long, because it matches nothing then."""
    if not glob or len(glob) > LONGEST_NAME:
        return None
    runs = [""]  # between the stars
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "*":
            if runs[-1] or len(runs) == 1:
                runs.append("")
        elif char == "?":
            runs[-1] += "[^/]"
        elif char == "[":
            found = _bracket(glob, at)
            if found is None:
                return None
            runs[-1] += found[0]
            at = found[1]
        else:
            if char == "\\":
                if at == len(glob):
                    return None
                char = glob[at]
                at += 1
            runs[-1] += re.escape(char)
    first, *others = runs
    starred = [f"[^/]*?{run}" for run in others[:-1]]
    return "".join([first, *(_once(run, numbers) for run in starred), *(f"[^/]*{run}" for run in others[-1:])])


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
