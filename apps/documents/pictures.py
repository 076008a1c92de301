"""Pictures of text: image files, and the pages of scanned PDFs, read with the extra `ocr`. Lines are the recognized
lines."""

from __future__ import annotations

import importlib.util
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from edge.apps.documents.base import Block, DocumentBlocks, Reason, Skipped
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import Attempt, OpenedFile

PACKAGE = "rapidocr_onnxruntime"

FINDER, READER = "ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx"
"""One model finds lines of text, the other reads them."""

MISSING = "pictures of text are read with the extra `ocr`: pip install 'edge-rag[ocr]'"

_MOST_PIXELS = 40_000_000
_LONG_SIDE = 1_760  # Pixels of a picture's longer side, 150 per inch of A4, to which larger ones are reduced.
_LEAST_SIDE = 12  # A picture with a shorter side has no room for a line of text.
_SECONDS = 14.0  # Computing time for the pictures of one file.
_WIDE_GAP = 1.2  # A gap between lines separates paragraphs if it is this many line heights.
_ADDRESSES = 240 * 10**6

Page = Callable[[], Any]
"""Returns a page's picture, [height, width, 3] uint8."""


def extract(file: OpenedFile) -> DocumentBlocks:
    if not is_installed():
        raise Skipped(Reason.NO_TEXT, MISSING)
    from PIL import Image, UnidentifiedImageError

    from edge.errors import InputError

    try:
        with Image.open(file.stream, formats=("PNG", "JPEG", "TIFF", "BMP", "WEBP", "GIF")) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise Skipped(Reason.TOO_LARGE, f"a picture of {image.width:,} x {image.height:,} pixels")
            if min(image.size) < _LEAST_SIDE:
                raise Skipped(Reason.NO_TEXT, f"a picture of {image.width} x {image.height} pixels shows no text")
            reader = recognizer()
            image.draft("RGB", (_LONG_SIDE, _LONG_SIDE))
            image.thumbnail((_LONG_SIDE, _LONG_SIDE))
            import numpy as np

            picture = np.asarray(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise Skipped(Reason.TOO_LARGE, "a picture of more pixels than are read") from error
    except UnidentifiedImageError as error:  # its message holds an address in memory
        raise InputError("a damaged picture, or one of an unknown kind") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"a damaged picture ({error})") from error
    blocks, warning = recognised([(None, lambda: picture)], reader, file)
    if not blocks:
        raise Skipped(Reason.NO_TEXT, warning or "the picture shows no text")
    return DocumentBlocks("", blocks, warning=warning)


def is_installed() -> bool:
    """Nothing is imported."""
    return models_folder() is not None


def models_folder() -> Path | None:
    """The folder of the package's models; None if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "models"
    return folder if all((folder / name).is_file() for name in (FINDER, READER)) else None


@cache
def recognizer() -> Any:
    """The recognizer, opened once in a process. `Skipped` without the extra `ocr`; `MemoryError` where it does not
    fit."""
    folder = models_folder()
    if folder is None:
        raise Skipped(Reason.NO_TEXT, MISSING)
    _make_sure_of(_ADDRESSES)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each of its threads would take 32 MB of addresses
    from edge.resident import return_large_blocks

    return_large_blocks()  # else a page of A4 may take 80 MB more
    with _told_of_memory():
        from edge.apps.documents.recognizer import Recognizer

        return Recognizer(folder / FINDER, folder / READER)


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
    """Libraries that get no memory end the process."""
    try:
        mmap.mmap(-1, nbytes).close()
    except OSError as error:
        raise MemoryError from error


def recognised(pages: Iterable[tuple[int | None, Page]], reader: Any, file: OpenedFile) -> tuple[list[Block], str]:
    """The blocks of numbered pages, and a sentence about skipped pages. `MemoryError` at a first attempt only."""
    started = time.process_time() - file.spent.recognized_s
    blocks: list[Block] = []
    done = left = large = 0
    for number, page in pages:
        spent = time.process_time() - started
        if spent > (_SECONDS * done / (done + 1) if done else _SECONDS):
            left += 1
            continue
        try:
            with _told_of_memory():
                lines = reader.read(page())
        except MemoryError:
            if file.attempt is Attempt.FIRST:
                raise
            large += 1
            continue
        blocks += _paragraphs(lines, number)
        done += 1
    file.spent.recognized_s = time.process_time() - started
    warning = f"of {done + left + large:,} pages of pictures the first {done + large:,} were recognised" if left else ""
    if large:
        warning += f"{'; ' if warning else ''}{large:,} pictures need more memory than there is"
    return blocks, warning


def _paragraphs(lines: list[Any], page: int | None) -> Iterator[Block]:
    texts = [" ".join(clean(line.text).split()) for line in lines]
    start = 0
    for at in range(1, len(lines) + 1):
        if at < len(lines):
            before, line = lines[at - 1], lines[at]
            if line.top - before.bottom <= _WIDE_GAP * (before.bottom - before.top):
                continue
        yield Block("\n".join(texts[start:at]), start + 1, at, page, "prose")
        start = at
