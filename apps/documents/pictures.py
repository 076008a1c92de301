"""Pictures of text: image files, and the pages of scanned PDFs. The extra `ocr` reads them.

Lines are the recognized lines, from top to bottom.
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
"""The package whose models recognize text."""

MISSING = "pictures of text are read with the extra `ocr`: pip install 'edge-rag[ocr]'"

_MOST_PIXELS = 40_000_000
_LONG_SIDE = 1_760
"""The most pixels of a picture's longer side: 150 per inch of A4. Larger pictures are reduced."""

_SECONDS = 14.0
"""Computing time for the pictures of one file; further pages are skipped, and the report says so."""

_WIDE_GAP = 1.2
"""A gap between lines separates paragraphs if it is this many line heights."""

_ADDRESSES = 240 * 10**6
"""Address space of the libraries and models with one page."""

Page = Callable[[], Any]
"""Returns a page's picture, [height, width, 3] uint8."""


def extract(file: OpenedFile) -> Document:
    """Reads an image file.

    Raises:
        Skipped: the extra `ocr` is missing, the picture is too large, or it has no text.
        InputError: the file is damaged.
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
    """Opens the recognizer of text.

    Raises:
        Skipped: the extra `ocr` is missing.
        MemoryError: it does not fit the worker's memory; the caller then starts a larger worker.
    """
    _make_sure_of(_ADDRESSES)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each of its threads would take 32 MB of addresses
    try:
        from edge.apps.documents.recognizer import Recognizer, models_folder

        folder = models_folder(PACKAGE)
    except ImportError:
        folder = None
    if folder is None:
        raise Skipped(Reason.NO_TEXT, MISSING)
    with _told_of_memory():
        return Recognizer(folder)


@contextmanager
def _told_of_memory() -> Iterator[None]:
    """Raises onnxruntime's errors about missing memory as `MemoryError`."""
    try:
        yield
    except Exception as error:
        if "alloc" in str(error).lower():
            raise MemoryError from error
        raise


def _make_sure_of(nbytes: int) -> None:
    """Checks that the system can give this process so many bytes. Libraries that get no memory end the process.

    Raises:
        MemoryError: it cannot.
    """
    try:
        mmap.mmap(-1, nbytes).close()
    except OSError as error:
        raise MemoryError from error


def recognised(pages: Iterable[tuple[int | None, Page]], reader: Any) -> tuple[list[Block], str]:
    """The blocks of numbered pages, and a sentence about skipped pages.

    Raises:
        MemoryError: a page does not fit the worker's memory.
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
