"""`/v1/page`: a page of an indexed PDF as a picture, with a passage marked."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from edge.apps.collection.collection import Collection
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.page_picture import PICTURE_NBYTES, PagePicture
from edge.apps.serve.endpoint import Call
from edge.apps.serve.fields import Fields
from edge.apps.serve.library import Library
from edge.apps.serve.preview import indexed_file
from edge.apps.serve.refusals import Refusal

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
