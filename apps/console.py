"""The output of a command: results as plain text, JSON, CSV or Markdown (`-o`), in colours on a terminal; beside them
progress, troubles, reports of unexpected errors; and its filter."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

import click
import platformdirs

from edge.config import counted
from edge.files.named_file import make_folder
from edge.text.control_characters import STEERING, escape, escaped

if TYPE_CHECKING:
    from edge.apps.store.failures import Health

_USUAL = os.terminal_size((80, 24))
"""The size of a terminal that does not know its own."""

_OWN = r"\x1b\[(?:(?:[0123]|3[2356])m|A|K)"
"""The control sequences of this program and its progress bars: plain, bold, dim, italic, four colours, one line up, and
clear to the end of the line. None can hide text."""


PYTHON = (
    sys.executable, "-c",
    "import sys; sys.path = [place for place in sys.path if place]; from edge.apps.cli import main; main()",
)  # fmt: skip
"""The command `edge` of this installation. No folder `edge` in the working directory can stand in for it."""

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("text", "json", "csv", "markdown")
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")

_MODELLED = ("queries", "seconds", "joules")

DEBUG_ENVIRONMENT = "EDGE_DEBUG"
_KEPT = 20
_LONGEST = 200

_PLACED = "{percentage:3.0f}%, {remaining} left: {desc}"


class ProgressBar:
    """A progress bar, shown only on a terminal. The remaining time comes from the average speed since the first
    call."""

    def __init__(self, unit: str, label: str = "") -> None:
        """`unit` is that of the amounts; `B` shows bytes in kB and MB."""
        self._unit = unit
        self._label = label
        self._bar: Any = None

    def __call__(self, done: int, total: int, place: str = "") -> None:
        """Shows the amounts, or instead of them the place, cut at the width of the terminal."""
        if self._bar is None:
            from tqdm import tqdm

            columns, lines = _size(sys.stderr)
            self._bar = tqdm(
                total=total, initial=done, unit=self._unit, unit_scale=self._unit == "B",
                desc=self._label or escaped(place),
                file=sys.stderr, disable=not sys.stderr.isatty(), leave=False, smoothing=0,
                ncols=columns - 1, nrows=lines - 1, bar_format=_PLACED if place else None, miniters=0,
            )  # fmt: skip
        self._bar.total = max(total, done)
        if place:
            self._bar.desc = escaped(place)
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _size(stream: TextIO) -> os.terminal_size:
    """Columns and lines of the terminal. Some report 0, such as a serial line; no bar would fit into them."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return _USUAL
    return os.terminal_size((columns or _USUAL.columns, lines or _USUAL.lines))


class HasHealth(Protocol):
    """A collection, several of them, or a memory."""

    def health(self) -> Health: ...


Store = TypeVar("Store", bound=HasHealth)


def notice(text: str) -> None:
    print(f"edge: {escaped(text)}", file=sys.stderr, flush=True)


def tell(health: Health) -> None:
    for trouble in health:
        notice(str(trouble))


@contextmanager
def told(store: AbstractContextManager[Store]) -> Iterator[Store]:
    """Opens a store, whose troubles are printed to stderr if the block ends without an error."""
    with store as opened:
        yield opened
        health = opened.health()
    tell(health)


def modelled(counters: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """A trace's counters of modelled devices, which are never shown as measured; empty if there were none."""
    if not counters.get("modelled.queries"):
        return {}
    return {"modelled": {name: counters[f"modelled.{name}"] for name in _MODELLED}}


def index_line(lists: int, said: str, cut: int) -> str:
    """What `--stats` tells of an index whose searches probed so many lists, `cut` of which a deadline left no time
    for."""
    from edge.ivf.base import IndexOptions

    if not lists:
        return f"index    no lists, and none to fetch ahead: up to {IndexOptions().flat_limit:,} vectors are compared"
    return f"index    {said}" + (f"; {counted(cut, 'list')} left out for the deadline" if cut else "")


def modelled_line(queries: float, seconds: float, joules: float) -> str:
    return (
        f"modelled {counted(round(queries), 'request')} of a query would take the accelerator {seconds * 1e3:.3g} ms "
        f"and {joules * 1e3:.3g} mJ; nothing of that was measured"
    )


def output_option(command: Command) -> Command:
    """`-o/--output` and `--json`, short for `-o json`; the function gets `output`."""

    def chosen(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
        # --json is eager, so it is parsed first.
        return value or ("json" if context.meta.get(__name__) else "text")

    def noted(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[__name__] = value

    command = click.option("-o", "--output", type=click.Choice(FORMATS), callback=chosen, help="How to print.")(command)
    return click.option(
        "--json", is_flag=True, is_eager=True, expose_value=False, callback=noted, help="The same as -o json."
    )(command)


def print_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    import csv

    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def plain_markdown(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def markdown_link(text: str, path: str) -> str:
    """A file's name may hold any character."""
    target = path.replace("\\", "/").replace("%", "%25").replace("<", "%3C").replace(">", "%3E").replace("\n", "%0A")
    return f"[{plain_markdown(text)}](<{target}>)"


def is_terminal() -> bool:
    return sys.stdout.isatty()


def is_coloured() -> bool:
    """On a terminal that supports them, unless NO_COLOR is set (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, **style: bool | str) -> str:
    return click.style(text, **style) if is_coloured() else text  # type: ignore[arg-type]


def place(path: str, line: str) -> str:
    return styled(escaped(path), fg="cyan", bold=True) + styled(line, fg="green")


def highlighted(text: str, marks: Sequence[tuple[int, int]]) -> str:
    """`marks` must be in order."""
    parts, end = [], 0
    for start, stop in marks:
        parts += [text[end:start], styled(text[start:stop], fg="yellow", bold=True)]
        end = stop
    return "".join(parts) + text[end:]


def folded(text: str, indent: int) -> str:
    """Line ends stand for some spaces of a text behind an indent on a terminal. Offsets stay the same."""
    width, start = get_terminal_size().columns - 1 - indent, 0
    while is_terminal() and len(text) - start > width:
        at = text.rfind(" ", start, start + width + 1)
        at = at if at >= 0 else text.find(" ", start + max(width, 0))
        if at < 0:
            break
        text, start = f"{text[:at]}\n{text[at + 1 :]}", at + 1
    return text


def say(text: str) -> None:
    click.echo(text, color=is_coloured())


def print_erasure(report: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        import json  # `edge --version` does without it

        click.echo(json.dumps(report, ensure_ascii=False))
        return
    click.echo(f"erased: {', '.join(f'{count:,} {what}' for what, count in report['erased'].items())}")
    click.echo("not reached, and may still hold the texts:")
    for place in report["not_reached"]:
        click.echo(f"  {escaped(place)}")


class Screen:
    """A text stream that writes control characters as escapes such as `\\u202e`."""

    encoding = "utf-8"  # Click bypasses streams with another encoding

    def __init__(self, stream: TextIO, *, returns: bool) -> None:
        """`returns`: let carriage returns pass, with which progress bars redraw their line."""
        self._stream = stream
        passing = f"{_OWN}|\r" if returns else _OWN
        self._unsafe = re.compile(f"({passing})|{STEERING.pattern}")

    def write(self, text: str) -> int:
        self._stream.write(self._unsafe.sub(_shown, text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def screens() -> Iterator[None]:
    """Replaces both standard streams by `Screen`s inside the block."""
    output, errors = sys.stdout, sys.stderr
    safe: Any = Screen(output, returns=False), Screen(errors, returns=True)
    sys.stdout, sys.stderr = safe
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors


def _shown(found: re.Match[str]) -> str:
    return found[1] or escape(found)


def reports_dir() -> Path:
    return platformdirs.user_state_path("edge-rag", appauthor=False) / "reports"


def report(error: BaseException, verb: str) -> str:
    """Writes a report that only its owner may read, and returns one sentence about the error and the report. With
    EDGE_DEBUG=1 it also prints the traceback to stderr."""
    lines = "".join(traceback.format_exception(error))
    if os.environ.get(DEBUG_ENVIRONMENT) == "1":
        print("\n".join(map(escaped, lines.splitlines())), file=sys.stderr, flush=True)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if len(what) > _LONGEST:
        what = what[: _LONGEST - 4] + " ..."
    try:
        path = _write(f"{_facts(verb)}\n{lines}")
    except OSError as failure:
        place = f"no report could be written to {reports_dir()} ({failure.strerror}); {DEBUG_ENVIRONMENT}=1 shows it"
    else:
        place = f"a report is in {path}; {DEBUG_ENVIRONMENT}=1 shows it here, too"
    return f"{escaped(what)} is an error of the program that nobody expected; {place}"


def _facts(verb: str) -> str:
    import platform  # slow to import as the next, and needed after an error only
    from importlib.metadata import PackageNotFoundError, version

    try:
        release = version("edge-rag")
    except PackageNotFoundError:
        release = "unknown"
    return (
        f"{verb}\nedge-rag {release}\nPython {platform.python_version()}\n{platform.platform()}\n"
        f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}\n"
    )


def _write(text: str) -> Path:
    folder = reports_dir()
    make_folder(folder)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{threading.get_native_id()}.txt"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    for old in sorted(folder.glob("*.txt"))[:-_KEPT]:
        with contextlib.suppress(OSError):  # another process may delete the same reports
            old.unlink()
    return path
