"""Ignore files with git's rules (gitignore(5)): nested files, the last matching pattern decides, deeper files go first.

Patterns are matched one path component at a time and never backtrack over more than one star. So a pattern in an
untrusted folder cannot take long. As in git, patterns match bytes, and `?` matches one byte: names and patterns are
compared as their bytes decoded as Latin-1. `pathspec` is not used, because it matches a folder together with everything
below it. The common patterns `*`, `!*/`, `!*.txt` (keep one kind of file) would then lose every folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
_ESCAPED_SLASH = re.compile(r"(\\\\)|\\/")
_FOLDERS_ESCAPED = re.compile(r"(?<![^/])\*{2,}\\/")
LONGEST_NAME = 4096
"""The most characters of the glob of one component. No file system has names of as many."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Characters between two stars: a literal `text`, or a regular expression that matches `length` characters."""

    text: str
    length: int
    pattern: re.Pattern[str] | None

    def is_at(self, name: str, start: int) -> bool:
        return name.startswith(self.text, start) if self.pattern is None else bool(self.pattern.match(name, start))

    def end_in(self, name: str, start: int) -> int:
        """Where its first match in a name from `start` on ends; -1 without one."""
        if self.pattern is None:
            place = name.find(self.text, start)
        else:
            found = self.pattern.search(name, start)
            place = -1 if found is None else found.start()
        return place if place < 0 else place + self.length


@dataclass(frozen=True, slots=True)
class Glob:
    """The glob of one component, as the runs of characters between its stars. Each run matches at its first place after
    the one before, so no other place has to be tried."""

    runs: tuple[_Stretch, ...]

    def matches(self, name: str) -> bool:
        """Whether a whole name matches."""
        first, *others = self.runs
        if not others:
            return len(name) == first.length and first.is_at(name, 0)
        end = first.length if first.is_at(name, 0) else -1
        for run in others[:-1]:
            if end < 0:
                return False
            end = run.end_in(name, end)
        start = len(name) - others[-1].length
        return 0 <= end <= start and others[-1].is_at(name, start)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A line of an ignore file.

    Attributes:
        keeps: whether it began with `!`, so that its matches are not ignored.
        folders: whether it matches only folders.
        parts: globs of the components of a path; None is `**`, any number of components.
        names_secrets: whether it asks for files with secrets.
    """

    keeps: bool
    folders: bool
    parts: tuple[Glob | None, ...]
    names_secrets: bool = False

    def matches(self, path: Sequence[str]) -> bool:
        """Whether a path matches. The path holds its components (as of `component`) below the ignore file's folder."""
        parts = self.parts
        at = here = 0
        resume: tuple[int, int] | None = None  # place of the last `**`, and of the first component behind its match
        while here < len(path):
            part = parts[at] if at < len(parts) else None
            if at < len(parts) and part is None:
                resume = (at, here)
                at += 1
            elif part is not None and part.matches(path[here]):
                at += 1
                here += 1
            elif resume is not None:
                resume = (resume[0], resume[1] + 1)
                at, here = resume[0] + 1, resume[1]
            else:
                return False
        return all(part is None for part in parts[at:])


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
    if len(names) == 1:
        part = _component(line)
        return None if part is None else Pattern(keeps, folders, (None, part), keeps and names_secrets(line))
    if not names[0]:
        del names[0]
    parts = pattern_parts(names)
    return None if parts is None else Pattern(keeps, folders, parts, keeps and names_secrets(names[-1]))


def pattern_parts(globs: Sequence[str]) -> tuple[Glob | None, ...] | None:
    """Compiles the globs of a pattern's components; None if one of them is malformed."""
    parts: list[Glob | None] = []
    for glob in globs:
        any_number = len(glob) > 1 and not glob.strip("*")
        part = None if any_number else _component(glob)
        if part is None and not any_number:
            return None
        parts.append(part)
    if parts[-1] is None:  # `folder/**` matches everything in the folder, but not the folder itself
        parts.append(_component("?*"))
    return tuple(parts)


def _component(glob: str) -> Glob | None:
    """Compiles the glob of one component; None if it is malformed or too long, because it matches nothing then."""
    if not glob or len(glob) > LONGEST_NAME:
        return None
    runs: list[list[str]] = [[]]  # the characters between the stars; one that is no literal is a regular expression
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "*":
            if runs[-1] or len(runs) == 1:
                runs.append([])
        elif char == "?":
            runs[-1].append(r"[\s\S]")
        elif char == "\\":
            if at == len(glob):
                return None
            runs[-1].append(glob[at])
            at += 1
        elif char == "[":
            found = _bracket(glob, at)
            if found is None:
                return None
            runs[-1].append(found[0])
            at = found[1]
        else:
            runs[-1].append(char)
    return Glob(tuple(_stretch(run) for run in runs))


def _stretch(characters: Sequence[str]) -> _Stretch:
    if all(len(character) == 1 for character in characters):
        return _Stretch("".join(characters), len(characters), None)
    expression = "".join(re.escape(each) if len(each) == 1 else each for each in characters)
    return _Stretch("", len(characters), re.compile(expression))


def _bracket(glob: str, at: int) -> tuple[str, int] | None:
    """A bracket expression that begins before `at`, as a regular expression, and its end; None if it is malformed."""
    negated = at < len(glob) and glob[at] in "!^"
    at += negated
    members: list[str] = []
    first = True
    while at < len(glob):
        char = glob[at]
        if char == "]" and not first:
            inside = "".join(members)
            if not inside:
                return (r"[\s\S]" if negated else r"(?!)"), at + 1
            return f"[{'^' if negated else ''}{inside}]", at + 1
        first = False
        if char == "[" and glob.startswith("[:", at) and (end := glob.find(":]", at)) > 0:
            name = _CLASSES.get(glob[at + 2 : end])
            if name is None:
                return None
            members.append(name)
            at = end + 2
            continue
        if char == "\\":
            at += 1
            if at == len(glob):
                return None
            char = glob[at]
        at += 1
        if glob.startswith("-", at) and at + 1 < len(glob) and glob[at + 1] != "]":
            at += 1
            if glob[at] == "\\":
                at += 1
                if at == len(glob):
                    return None
            last = glob[at]
            at += 1
            if char <= last:
                members.append(f"{re.escape(char)}-{re.escape(last)}")
        else:
            members.append(re.escape(char))
    return None
