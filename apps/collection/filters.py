"""`Filters`: conditions on the files that a search may look at."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from glob import escape
from typing import TYPE_CHECKING, Any

from edge.apps.collection.paths import checked
from edge.config import parse_size
from edge.errors import ConfigError, InputError

if TYPE_CHECKING:
    from edge.ivf.base import Connection  # whose numpy a search that the server answers does without


class NoSuchType(InputError):
    """No kind of files has that name, and no indexed file has such a suffix."""


_FUNCTION = "path_matches"

MOST_ALTERNATIVES = 100
"""Of one filter: each is compared with every file, and SQLite bounds the depth of a condition."""

_MAIL = {
    "from": ("senders", "instr(folded(mails.sender), folded(?))"),
    "to": ("recipients", "instr(folded(mails.recipients), folded(?))"),
    "subject": ("subjects", "instr(folded(mails.subject), folded(?))"),
    "thread": ("threads", "mails.thread IN (SELECT thread FROM mails WHERE trim(?, '<>') IN (id, thread))"),
}

_MAGIC = re.compile(r"[*?[]")
_DRIVE = re.compile("[A-Za-z]:/")


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on files. A file must meet all of them; several paths, or several kinds, are alternatives.

    Attributes:
        paths: globs: `*` and `?` match within one name, and `**` matches any number of folders. A relative glob may
            match at any folder: `docs/**`, `*.md`, `/home/me/notes`. A glob that begins with `./` or `../` is relative
            to the working directory, and one with `~/` to the home directory. A glob that matches a folder includes
            everything below it.
        kinds: kinds of documents (`pdf`, `markdown`), languages (`python`), or suffixes of names (`md`).
        after, before: the date of a mail, or the time of the last change of another file, `after <= time < before`.
        larger, smaller: size in bytes, `larger <= size <= smaller`.
        senders, recipients, subjects: mails with one of these texts there, in any capitals.
        threads: mails in one thread with a mail of one of these ids.
        without: words and phrases in double quotes that a passage must not hold. `where` knows nothing of them.
    """

    paths: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    after: datetime | None = None
    before: datetime | None = None
    larger: int | None = None
    smaller: int | None = None
    senders: tuple[str, ...] = ()
    recipients: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    _patterns: tuple[Callable[[str], bool], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """`InputError` for a malformed glob, invalid Unicode, a date before 1678 or after 2261, or too many
        alternatives."""
        listed = (
            self.paths, self.kinds, self.senders, self.recipients, self.subjects, self.threads, self.without,
        )  # fmt: skip
        if max(map(len, listed)) > MOST_ALTERNATIVES:
            raise InputError(f"more than {MOST_ALTERNATIVES} paths, types, names or words are too many for one filter")
        for text in itertools.chain(*listed):
            checked(text, f"the filter {text!a}")
        object.__setattr__(self, "_patterns", tuple(map(path_pattern, self.paths)))
        for moment in (self.after, self.before):
            _nanoseconds(moment)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Filters:
        """Conditions from `key:value` texts: `path:docs/**`, `type:pdf`, `after:2024-01-01`, `before:2024-07-01T12:00`,
        `larger:1MB`, `smaller:20kB`, `from:ann`, `to:bo@b.org`, `subject:cheese`, `thread:ID`, `without:word`.
        Dates are local time.

        Raises:
            InputError: a key is unknown, or a value does not fit its key.
        """
        filters = cls()
        for text in texts:
            key, colon, value = text.partition(":")
            read = _KEYS.get(key.strip().lower())
            if not colon or read is None or not value.strip():
                raise InputError(f"{text!r} is no filter; write one of {', '.join(f'{k}:...' for k in _KEYS)}")
            filters = read(filters, value.strip())
        return filters

    @classmethod
    def of(cls, conditions: Conditions) -> Filters:
        if isinstance(conditions, Filters):
            return conditions
        return cls.parse([conditions] if isinstance(conditions, str) else conditions or ())

    @property
    def texts(self) -> list[str]:
        """The `key:value` texts that `parse` reads as these conditions, in any working directory."""
        moments = {"after": self.after, "before": self.before}
        sizes = {"larger": self.larger, "smaller": self.smaller}
        return [
            *(f"path:{_anchored(glob)}" for glob in self.paths),
            *(f"type:{kind}" for kind in self.kinds),
            *(f"{key}:{moment.isoformat()}" for key, moment in moments.items() if moment is not None),
            *(f"{key}:{size}" for key, size in sizes.items() if size is not None),
            *(f"{key}:{text}" for key, (name, _) in _MAIL.items() for text in getattr(self, name)),
            *(f"without:{text}" for text in self.without),
        ]

    def __bool__(self) -> bool:
        return self != Filters()

    def where(self, db: Connection) -> tuple[str, list[Any]]:
        """The SQL condition on a row of `files` and its row in `mails`, with its parameters. `db` gets its functions.
        `NoSuchType` for a kind that is unknown, and no suffix of an indexed file."""
        clauses: list[str] = []
        params: list[Any] = []
        if self._patterns:
            patterns = self._patterns
            db.create_scalar_function(
                _FUNCTION, lambda path: any(matches(path) for matches in patterns), 1, deterministic=True
            )
            clauses.append(f"{_FUNCTION}(files.path)")
        if self.kinds:
            one = "lower(files.kind) = ? OR substr(lower(files.path), -length(?)) = ?"
            names = [name for kind in self.kinds for name in _meanings(db, kind)]
            clauses.append("(" + " OR ".join([one] * len(names)) + ")")
            for name in names:
                params += [name, f".{name}", f".{name}"]
        for name, clause in _MAIL.values():
            if texts := getattr(self, name):
                db.create_scalar_function("folded", _folded, 1, deterministic=True)
                clauses.append("(" + " OR ".join([clause] * len(texts)) + ")")
                params += texts
        when = "coalesce(strftime('%s', nullif(mails.sent, '')) * 1000000000, files.mtime_ns)"
        for clause, value in (
            (f"{when} >= ?", _nanoseconds(self.after)),
            (f"{when} < ?", _nanoseconds(self.before)),
            ("files.size >= ?", self.larger),
            ("files.size <= ?", self.smaller),
        ):
            if value is not None:
                clauses.append(clause)
                params.append(value)
        return " AND ".join(clauses) or "1", params


Conditions = Filters | str | Iterable[str] | None


def _meanings(db: Connection, kind: str) -> list[str]:
    from difflib import get_close_matches

    from edge.apps.documents.file_types import KIND_NAMES, NAMES, meanings  # all readers, which a command does without

    name = kind.lower().removeprefix(".")
    if known := meanings(name):
        return known
    # A file with any suffix is indexed if it holds text.
    like = "SELECT 1 FROM files WHERE status = 'indexed' AND substr(lower(path), -length(?)) = ? LIMIT 1"
    if db.execute(like, (f".{name}", f".{name}")).fetchone() is None:
        present = kinds_present(db)
        here = f"; this collection has {present}" if present else ""
        close = get_close_matches(name, NAMES, n=1, cutoff=0.75)
        meant = f", did you mean {close[0]!r}?" if close else ":"
        raise NoSuchType(
            f"there is no type {kind!r}{meant} a type is one of {', '.join(KIND_NAMES)}, a language such as python, or "
            f"the suffix of a file's name{here}"
        )
    return [name]


def kinds_present(db: Connection) -> str:
    rows = db.execute("SELECT kind, count(*) FROM files WHERE status = 'indexed' GROUP BY kind ORDER BY 2 DESC, 1")
    return ", ".join(f"{kind} ({count:,})" for kind, count in rows)


def path_pattern(glob: str) -> Callable[[str], bool]:
    """Whether a whole path, with either kind of slash, matches a glob: name by name, which bounds the time."""
    from edge.apps.documents.ignoring import LONGEST_NAME, path_expression

    text = _anchored(glob)
    absolute = text.startswith("/")
    names: list[str] = []
    for name in text.removeprefix("/").split("/"):
        if name == os.pardir:
            if not names or _MAGIC.search(names.pop()):
                raise InputError(f"the filter path:{glob} is no glob: it has a .. that follows no plain name")
        elif name != os.curdir:
            names.append(name)
    if len(text) > LONGEST_NAME:
        raise InputError(f"a filter has a path of {len(text):,} characters, and {LONGEST_NAME:,} are the most")
    anywhere = () if absolute or _DRIVE.match(text) else ("**",)
    expression = path_expression([*anywhere, *(names or ["**"])], itertools.count(), below=True)
    if expression is None:
        problem = "a [ without a ], or an unknown class in it" if "[" in glob else "a name that is empty"
        raise InputError(f"the filter path:{glob} is no glob: it has {problem}")
    compiled = re.compile(expression)

    def matches(path: str) -> bool:
        names = path.replace("\\", "/")
        return (names[:1] == "/" or not absolute) and compiled.fullmatch(f"{names.removeprefix('/')}/") is not None

    return matches


def _anchored(glob: str) -> str:
    """Makes a glob that begins with `~`, `.` or `..` absolute."""
    glob = glob.replace("\\", "/").removesuffix("/")
    first, *names = glob.split("/")
    if first not in ("~", os.curdir, os.pardir):
        return glob
    start = os.path.expanduser(first)
    while names and names[0] in (os.curdir, os.pardir):
        start = os.path.join(start, names.pop(0))
    try:
        start = os.path.realpath(start)
    except OSError as error:
        raise InputError(f"the filter path:{glob} begins at the working directory, which is gone") from error
    return "/".join([escape(start).replace("\\", "/").rstrip("/"), *(names or [os.curdir])])


def _folded(text: str | None) -> str:
    return unicodedata.normalize("NFKC", text or "").casefold()


def _also(name: str) -> Callable[[Filters, str], Filters]:
    def added(filters: Filters, value: str) -> Filters:
        changed: dict[str, Any] = {name: (*getattr(filters, name), value)}
        return replace(filters, **changed)

    return added


def _nanoseconds(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    # The range of 64 bits without its first and last year, so that the time zone does not matter.
    if not 1678 <= moment.year <= 2261:
        raise InputError(f"files are dated from 1678 to 2261, not {moment.date()}; leave a date out that has no end")
    return round(moment.timestamp() * 1e9)


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{text!r} is no date; write it like 2024-01-31 or 2024-01-31T18:30") from None


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ConfigError:
        raise InputError(
            f"{text[:40]!r} is not a size of a file: write it like 20kB or 1.5MB, more than 0 and below 8 EiB"
        ) from None


_KEYS: dict[str, Callable[[Filters, str], Filters]] = {
    "path": _also("paths"),
    "type": _also("kinds"),
    "after": lambda filters, value: replace(filters, after=_date(value)),
    "before": lambda filters, value: replace(filters, before=_date(value)),
    "larger": lambda filters, value: replace(filters, larger=_size(value)),
    "smaller": lambda filters, value: replace(filters, smaller=_size(value)),
    **{key: _also(name) for key, (name, _) in _MAIL.items()},
    "without": _also("without"),
}
