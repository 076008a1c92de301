"""`Editor`: the command with which the owner's program opens a document."""

from __future__ import annotations

import shlex
import subprocess
import threading
from pathlib import Path

from edge.errors import CapabilityError, ConfigError

_PATH, _LINE, _PAGE = "{path}", "{line}", "{page}"


class Editor:
    """A command that opens a file. Thread-safe.

    The person names it when the server starts. The system's own way to open a file is not used: it would run a document
    that is a program.
    """

    def __init__(self, command: str) -> None:
        """
        Args:
            command: words as for a shell, such as `code --goto {path}:{line}`. No shell sees them. Empty for no editor.

        Raises:
            ConfigError: the command does not say where the path belongs, or its quotes do not close.
        """
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
        """Whether there is an editor."""
        return bool(self._words)

    def open(self, path: Path, line: int, page: int) -> None:
        """Starts the editor, and does not wait for it.

        Args:
            line, page: from 1.

        Raises:
            CapabilityError: it cannot be started.
        """
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
