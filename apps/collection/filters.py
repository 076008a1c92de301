"""`Filters`: conditions on the files that a search may look at."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from edge.config import parse_size
from edge.errors import ConfigError, InputError

_FUNCTION = "path_matches"


@dataclass(frozen=True, slots=True)
class Filters:
    """A file passes if it meets every condition that is given; several paths or kinds are alternatives.

    Attributes:
        paths: globs: `*` and `?` stay within a folder's name, `**` goes through folders, and a relative one may begin
            at any folder: `docs/**`, `*.md`, `/home/me/notes`. One that names a folder holds for all below it.
        kinds: kinds of documents (`pdf`, `markdown`) or suffixes of names (`md`).
        after, before: when the file was last changed, `after <= changed < before`.
        larger, smaller: its bytes, `larger <= size <= smaller`.
    """

    paths: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    after: datetime | None = None
    before: datetime | None = None
    larger: int | None = None
    smaller: int | None = None
    _regexes: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_regexes", tuple(map(glob_regex, self.paths)))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Filters:
        """Conditions from `key:value` texts: `path:docs/**`, `type:pdf`, `after:2024-01-01`, `before:2024-07-01T12:00`,
        `larger:1MB`, `smaller:20kB`. Dates are local time.

        Raises:
            InputError: an unknown key, or a value that is not what the key takes.
        """
        filters = cls()
        for text in texts:
            key, colon, value = text.partition(":")
            read = _KEYS.get(key.strip().lower())
            if not colon or read is None or not value.strip():
                raise InputError(f"{text!r} is no filter; write one of {', '.join(f'{k}:...' for k in _KEYS)}")
            filters = read(filters, value.strip())
        return filters

    def __bool__(self) -> bool:
        return self != Filters()

    def where(self, db: sqlite3.Connection) -> tuple[str, list[Any]]:
        """The SQL condition on a row of the table `files`, with its parameters.

        Args:
            db: the connection that will run it; it is given the function that matches paths.
        """
        clauses: list[str] = []
        params: list[Any] = []
        if self._regexes:
            db.create_function(_FUNCTION, 2, _matches, deterministic=True)
            clauses.append("(" + " OR ".join([f"{_FUNCTION}(?, files.path)"] * len(self._regexes)) + ")")
            params += self._regexes
        if self.kinds:
            one = "lower(files.kind) = ? OR substr(lower(files.path), -length(?)) = ?"
            clauses.append("(" + " OR ".join([one] * len(self.kinds)) + ")")
            for kind in self.kinds:
                name = kind.lower().removeprefix(".")
                params += [name, f".{name}", f".{name}"]
        for clause, value in (
            ("files.mtime_ns >= ?", _nanoseconds(self.after)),
            ("files.mtime_ns < ?", _nanoseconds(self.before)),
            ("files.size >= ?", self.larger),
            ("files.size <= ?", self.smaller),
        ):
            if value is not None:
                clauses.append(clause)
                params.append(value)
        return " AND ".join(clauses) or "1", params


def glob_regex(pattern: str) -> str:
    """The regular expression of a glob, for whole paths with `/` between their parts.

    Raises:
        InputError: a bracket is not closed or names an impossible range.
    """
    text = pattern.replace("\\", "/").removesuffix("/")
    absolute = text.startswith("/") or re.match(r"[A-Za-z]:/", text) is not None
    # What begins anywhere begins after a slash: before the first one of an absolute path there is no name to match.
    out = "" if absolute else "(?:.*/|(?=[^/]))"
    position = 0
    while position < len(text):
        if text.startswith("**/", position):
            out += "(?:[^/]*/)*"
            position += 3
        elif text.startswith("**", position):
            out += ".*"
            position += 2
        elif text[position] == "[":
            end = text.find("]", position + 2)
            if end < 0:
                raise InputError(f"the filter path:{pattern} has a [ without a ]")
            inside = text[position + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out += f"[^{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]"
            position = end + 1
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(text[position]) or re.escape(text[position])
            position += 1
    try:
        re.compile(out)
    except re.error as error:
        raise InputError(f"the filter path:{pattern} is no glob: {error}") from None
    return out + "(?:/.*)?"


@lru_cache(maxsize=64)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.DOTALL)


def _matches(regex: str, path: str) -> bool:
    return _compiled(regex).fullmatch(path.replace("\\", "/")) is not None


def _nanoseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1e9)


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{text!r} is no date; write it like 2024-01-31 or 2024-01-31T18:30") from None


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ConfigError as error:
        raise InputError(str(error)) from None


_KEYS: dict[str, Callable[[Filters, str], Filters]] = {
    "path": lambda filters, value: replace(filters, paths=(*filters.paths, value)),
    "type": lambda filters, value: replace(filters, kinds=(*filters.kinds, value)),
    "after": lambda filters, value: replace(filters, after=_date(value)),
    "before": lambda filters, value: replace(filters, before=_date(value)),
    "larger": lambda filters, value: replace(filters, larger=_size(value)),
    "smaller": lambda filters, value: replace(filters, smaller=_size(value)),
}
