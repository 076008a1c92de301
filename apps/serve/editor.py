"""`Editor`: the command with which the owner's program opens a document, and the system's own."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

from edge.errors import CapabilityError, ConfigError

_PATH, _LINE, _PAGE = "{path}", "{line}", "{page}"

_PASSIVE = frozenset({
    ".pdf", ".docx", ".pptx", ".xlsx", ".odt", ".odp", ".ods", ".epub", ".txt", ".md", ".csv", ".tsv", ".eml", ".png",
    ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".gif",
})  # fmt: skip
"""Names of files that programs only show: no pages, macros, launchers or scripts."""


def system_command() -> str:
    if sys.platform in ("darwin", "win32"):
        return f"{'open' if sys.platform == 'darwin' else 'explorer'} {_PATH}"
    screen = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    return f"xdg-open {_PATH}" if screen and shutil.which("xdg-open") else ""


def is_passive(path: Path) -> bool:
    """Whether the system's command may get this file: a plain file of `_PASSIVE`, also where a link leads, that nobody
    may execute."""
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError):
        return False
    programs = 0 if sys.platform == "win32" else stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
    return {path.suffix.lower(), real.suffix.lower()} <= _PASSIVE and stat.S_ISREG(mode) and not mode & programs


class Editor:
    """A command that opens a file, named when the server starts. Thread-safe. The system's own command gets passive
    files only, since it would run a document that is a program."""

    def __init__(self, command: str) -> None:
        """`command`: words as for a shell, such as `code --goto {path}:{line}`, which no shell sees; empty for no
        editor."""
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"the editor's command {command!r} cannot be read: {error}") from None
        if self._words and not any(_PATH in word for word in self._words[1:]):
            raise ConfigError(
                f"the editor's command has the path in it as {_PATH}, such as 'code --goto {_PATH}:{_LINE}'"
            )
        self._running: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    @property
    def is_named(self) -> bool:
        return bool(self._words)

    def open(self, path: Path, line: int, page: int) -> None:
        values = ((_PATH, str(path)), (_LINE, str(line)), (_PAGE, str(page)))
        words = [self._words[0]]
        for word in self._words[1:]:
            for name, value in reversed(values):  # the path last: it may hold braces of its own
                word = word.replace(name, value)
            words.append(word)
        nothing = subprocess.DEVNULL
        with self._lock:
            self._running = [process for process in self._running if process.poll() is None]
            try:
                self._running.append(
                    subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
                )
            except OSError as error:
                raise CapabilityError(f"the editor {words[0]!r} cannot be started: {error.strerror}") from error
