"""Indexed documents as they are in their files: a page of a PDF as a picture (`/v1/page`), and a document in the
person's editor, on the machine of the server (`/v1/open`)."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from pathlib import Path
from typing import Any

from edge.apps.collection.collection import Collection
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.page_picture import PICTURE_NBYTES, PagePicture
from edge.apps.serve.endpoint import Call
from edge.apps.serve.json_values import Fields
from edge.apps.serve.library import Library
from edge.apps.serve.preview import indexed_file
from edge.apps.serve.refusals import Refusal
from edge.errors import CapabilityError, ConfigError

_MOST_LINES = 5_000
"""Of a page."""


class Paper:
    """The endpoint of one server. The document is opened as it is when it is indexed: in a process of its own that can
    open nothing else, under limits of time and memory. Only a document that the index names is opened, and only as
    long as it is the one that was indexed."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._drawing = threading.Lock()

    async def post(self, call: Call) -> Any:
        """A `page` of the document at a `path`, as PNG. Its lines from `first` to `last` are marked, or from `first` on
        where the passage ends on a later page. The header `Edge-Pages` says how many pages there are."""
        from starlette.responses import Response

        fields = Fields(await call.json())
        name, path, page = fields.text("collection", ""), fields.path("path"), fields.whole("page", 1)
        first, last = fields.optional_whole("first"), fields.optional_whole("last")
        end = min(last, _MOST_LINES) if last and last >= (first or 1) else _MOST_LINES
        lines = range(first, end + 1) if first else range(0)

        def draw() -> PagePicture:
            _check(self._library.collection(name), path)
            # A worker for each page, so that its memory is given back at once.
            with (
                self._drawing,
                call.budget.reserve("page pictures", PICTURE_NBYTES),
                Extractor(budget=call.budget) as extractor,
            ):
                return extractor.picture(Path(path), page, lines)

        picture = await call.done(draw)
        call.requests.hold(call.lease, call.lease.nbytes + 2 * len(picture.png))
        headers = {"Edge-Pages": str(picture.pages), "Cache-Control": "no-store"}
        return Response(picture.png, media_type="image/png", headers=headers)


def _check(collection: Collection, path: str) -> None:
    """Looks whether a document may be drawn.

    Raises:
        NotIndexed: the collection does not hold it.
        Refusal: it is no PDF, or has changed since it was indexed.
    """
    with collection.database.read() as db:
        file = indexed_file(db, path)
    if file.kind != "pdf":
        raise Refusal(422, f"{path} has no pages that could be drawn")
    try:
        now = os.stat(path)
    except OSError as error:
        raise Refusal(409, f"{path} cannot be read now: {error.strerror}") from None
    if (file.size, file.mtime_ns) != (now.st_size, now.st_mtime_ns):
        raise Refusal(409, f"{path} has changed since it was indexed; `edge index` takes it in")


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


class Opening:
    """The endpoint of one server."""

    def __init__(self, library: Library, editor: Editor) -> None:
        self._library = library
        self._editor = editor

    async def post(self, call: Call) -> dict[str, Any]:
        """Opens the document at a `path` in the editor that `edge serve --editor` names, at a `line` or `page`. Only an
        indexed document is opened."""
        fields = Fields(await call.json())
        name, path = fields.text("collection", ""), fields.path("path")
        line, page = fields.whole("line", 1), fields.whole("page", 1)
        if not self._editor.is_named:
            raise Refusal(501, "the server was started without an editor: `edge serve --editor` names one")

        def start() -> None:
            collection = self._library.collection(name)
            with collection.database.read() as db:
                file = indexed_file(db, path)
            if not Path(file.path).is_file():
                raise Refusal(409, f"{path} is not there any more; `edge index` takes it out")
            self._editor.open(Path(file.path), line, page)

        await call.done(start)
        return {"opened": path}
