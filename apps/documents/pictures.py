"""Pictures of text: image files, and the pages of scanned PDFs. They are read with the extra `ocr`.

Lines are those that were recognised, from top to bottom.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from edge.apps.documents.base import Block, Document, Reason, Skipped
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import OpenedFile

PACKAGE = "rapidocr_onnxruntime"
"""Whose models read pictures."""

MISSING = "pictures of text are read with the extra `ocr`: pip install 'edge-rag[ocr]'"

_MOST_PIXELS = 40_000_000
_LONG_SIDE = 1_760
"""Pixels of a picture's longer side that are read: 150 for an inch of A4."""

_SECONDS = 14.0
"""Of computing that one file may take here; pages behind that are left out, and the report says so."""

_WIDE_GAP = 1.2
"""A gap between lines of so many line heights separates paragraphs."""

_ADDRESSES = 240 * 10**6
"""Bytes of addresses that the libraries and models take with a page."""

Page = Callable[[], Any]
"""Makes a page's picture, [height, width, 3] uint8."""


def extract(file: OpenedFile) -> Document:
    """Reads an image file.

    Raises:
        Skipped: the extra `ocr` is missing, the picture is too large, or shows no text.
        InputError: it is damaged.
    """
    reader = recognizer()
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    from edge.errors import InputError

    try:
        with Image.open(file.stream, formats=("PNG", "JPEG", "TIFF", "BMP", "WEBP", "GIF")) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise Skipped(Reason.TOO_LARGE, f"a picture of {image.width:,} x {image.height:,} pixels")
            image.draft("RGB", (_LONG_SIDE, _LONG_SIDE))
            image.thumbnail((_LONG_SIDE, _LONG_SIDE))
            picture = np.asarray(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise Skipped(Reason.TOO_LARGE, "a picture of more pixels than are read") from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise InputError(f"a damaged picture ({error})") from error
    blocks, warning = recognised([(None, lambda: picture)], reader)
    if not blocks:
        raise Skipped(Reason.NO_TEXT, "the picture shows no text")
    return Document("", blocks, warning=warning)


def recognizer() -> Any:
    """What reads pictures.

    Raises:
        Skipped: the extra `ocr` is missing.
        MemoryError: it does not fit the memory of this worker; the caller gives it a larger one.
    """
    _make_sure_of(_ADDRESSES)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each of its threads would take 32 MB of addresses
    try:
        from edge.apps.documents.recognizer import Recognizer, models_folder

        folder = models_folder()
    except ImportError:
        folder = None
    if folder is None:
        raise Skipped(Reason.NO_TEXT, MISSING)
    with _told_of_memory():
        return Recognizer(folder)


@contextmanager
def _told_of_memory() -> Iterator[None]:
    """Turns onnxruntime's own way to say that memory is short into Python's."""
    try:
        yield
    except Exception as error:
        if "alloc" in str(error).lower():
            raise MemoryError from error
        raise


def _make_sure_of(nbytes: int) -> None:
    """
    Raises:
        MemoryError: the system does not give this process so many bytes. Libraries that get none end the process.
    """
    try:
        mmap.mmap(-1, nbytes).close()
    except OSError as error:
        raise MemoryError from error


def recognised(pages: Iterable[tuple[int | None, Page]], reader: Any) -> tuple[list[Block], str]:
    """The blocks of some pages, each with its number, and a sentence about what was left out.

    Raises:
        MemoryError: a page does not fit.
    """
    started = time.process_time()
    blocks: list[Block] = []
    done = left = 0
    for number, page in pages:
        if done and time.process_time() - started > _SECONDS * done / (done + 1):
            left += 1
            continue
        with _told_of_memory():
            lines = reader.read(page())
        blocks += _paragraphs(lines, number)
        done += 1
    warning = f"of {done + left:,} pages of pictures the first {done:,} were recognised" if left else ""
    return blocks, warning


def _paragraphs(lines: list[Any], page: int | None) -> Iterator[Block]:
    """Runs of lines without a wide gap between them."""
    texts = [" ".join(clean(line.text).split()) for line in lines]
    start = 0
    for at in range(1, len(lines) + 1):
        if at < len(lines):
            before, line = lines[at - 1], lines[at]
            if line.top - before.bottom <= _WIDE_GAP * (before.bottom - before.top):
                continue
        yield Block("\n".join(texts[start:at]), start + 1, at, page, "prose")
        start = at
