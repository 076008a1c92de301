"""The headings that are in force at a point of a document."""

from __future__ import annotations


class Outline:
    """Follows the headings of a document, outermost first."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    @property
    def path(self) -> tuple[str, ...]:
        """The headings in force."""
        return tuple(title for _, title in self._open)

    def enter(self, level: int, title: str) -> tuple[str, ...]:
        """A heading begins: those of its level and below end. A level may be left out (h1, then h3).

        Returns:
            The headings now in force, this one last.
        """
        while self._open and self._open[-1][0] >= level:
            self._open.pop()
        self._open.append((level, title))
        return self.path
