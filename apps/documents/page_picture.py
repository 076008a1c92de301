"""`PagePicture`: a page of a document as a picture, made from a worker's answer.

The worker sends the compressed rows of a PNG file. The parent makes the rest of the file. So a worker that a document
has taken over controls only the pixels of a picture.
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from edge.errors import InputError

LONGER_SIDE = 1_400
"""Pixels of a picture's longer side: 120 per inch of A4."""

MOST_COMPRESSED = 4 * 10**6
"""The most bytes of the compressed rows. A page of text takes 0.1 MB, a photograph up to 3 MB."""

PICTURE_NBYTES = 4 * MOST_COMPRESSED
"""Memory for receiving a picture: the line of JSON, its text, and the file."""


@dataclass(frozen=True, slots=True)
class PagePicture:
    """A page as a picture.

    Attributes:
        png: the PNG file.
        width, height: in pixels.
        pages: number of pages of the document.
        marked: whether any line was marked.
    """

    png: bytes
    width: int
    height: int
    pages: int
    marked: bool

    @staticmethod
    def of(answer: dict[str, Any]) -> PagePicture:
        """Makes the picture from a worker's answer.

        Raises:
            InputError: the answer is not a valid picture.
        """
        try:
            width, height, pages = (int(answer[name]) for name in ("width", "height", "pages"))
            rows = base64.b64decode(answer["rows"], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("the page could not be drawn") from error
        if not (0 < width <= LONGER_SIDE and 0 < height <= LONGER_SIDE and len(rows) <= MOST_COMPRESSED):
            raise InputError("the page could not be drawn")
        return PagePicture(_png(width, height, rows), width, height, pages, bool(answer.get("marked")))


def _png(width: int, height: int, rows: bytes) -> bytes:
    """A PNG file of 8-bit RGB (https://www.w3.org/TR/png-3/)."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [_part(b"IHDR", header), _part(b"IDAT", rows), _part(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
