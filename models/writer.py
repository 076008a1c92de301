"""Writes a packed model's data file from front to back, and computes the checksums meanwhile."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, Extent
from edge.errors import StorageError
from edge.models.layout import HEADER, Layout, Section

Progress = Callable[[int, int], None]
"""A function that is called with the bytes written so far and the total bytes."""


class PackWriter:
    """The open data file. Sections are written in the layout's order. The `append` calls must fill each exactly.

    Attributes:
        extents: the blocks written so far.
    """

    def __init__(self, path: Path, layout: Layout, progress: Progress | None = None) -> None:
        """Creates the file and writes its header.

        Raises:
            StorageError: the disk refuses.
        """
        self.extents: dict[BlockId, Extent] = {}
        self._layout = layout
        self._progress = progress
        self._path = path
        self._at = 0
        self._crc = 0
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise StorageError(f"{path} cannot be created: {error.strerror}") from error
        self._write(memoryview(layout.header))
        self.extents[HEADER] = Extent(0, len(layout.header), zlib.crc32(layout.header))

    def begin(self, section: Section) -> None:
        """Writes padding up to the start of a section."""
        assert self._at <= section.offset, "sections are written in order"
        self._write(memoryview(bytes(section.offset - self._at)))
        self._crc = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Writes values of the current block.

        Raises:
            StorageError: the disk refuses, most often because it is full.
        """
        view = np.ascontiguousarray(values).data.cast("B")
        self._crc = zlib.crc32(view, self._crc)
        self._write(view)

    def append_rows(self, rows: npt.NDArray[Any]) -> list[int]:
        """Writes rows of the current table, and returns their checksums.

        Raises:
            StorageError: the disk refuses.
        """
        rows = np.ascontiguousarray(rows)
        self._write(rows.data.cast("B"))
        return [zlib.crc32(row.data) for row in rows]

    def end(self, section: Section) -> None:
        """Closes a section, which must be full."""
        assert self._at == section.offset + section.nbytes, "a section is filled exactly"
        if section.block is not None:
            self.extents[section.block] = Extent(section.offset, section.nbytes, self._crc)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, view: memoryview) -> None:
        try:
            done = 0
            while done < len(view):
                done += self._file.write(view[done:]) or 0
        except OSError as error:
            raise StorageError(
                f"writing {self._path.name} failed after {self._at:,} of {self._layout.nbytes:,} bytes: "
                f"{error.strerror}; nothing is left of it"
            ) from error
        self._at += len(view)
        if self._progress is not None:
            self._progress(self._at, self._layout.nbytes)
