"""The current headings at a place in a document."""

from __future__ import annotations


class Outline:
    """Tracks the headings of a document, outermost first."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    @property
    def path(self) -> tuple[str, ...]:
        """The current headings, outermost first."""
        return tuple(title for _, title in self._open)

    def enter(self, level: int, title: str) -> tuple[str, ...]:
        """Adds a heading. Headings of its level and below end. A level may be skipped (h1, then h3).

        Returns:
            The current headings, the new one last.
        """
        while self._open and self._open[-1][0] >= level:
            self._open.pop()
        self._open.append((level, title))
        return self.path
