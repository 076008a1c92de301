"""`windows`: what may be shown of a passage as an answer, a few neighbouring units of one section.

A section begins with its headings. In a manual page or a list of settings, the heading is the option or the name that
the words below it describe, so that they say little without it: it is shown with each window of its section.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edge.apps.assistant.units import Unit

WORDS = 60
"""The most words of a window, unless one unit has more, or code follows the words that lead up to it."""

_LED = 1.5
"""The share of `WORDS` that a window may have with the code or the items behind a colon."""


@dataclass(frozen=True, slots=True)
class Window:
    """Neighbouring units of a section, with the headings right above it, which belong to every window of it."""

    headings: tuple[Unit, ...]
    units: tuple[Unit, ...]

    @property
    def shown(self) -> tuple[Unit, ...]:
        return self.headings + self.units

    @property
    def text(self) -> str:
        return "\n".join(unit.text for unit in self.shown)

    def only(self, unit: Unit) -> tuple[Unit, ...]:
        """One of its units, with the one that it leads up to."""
        at = self.units.index(unit)
        led = self.units[at + 1 : at + 2]
        return (unit, *(each for each in led if leads(unit, each)))


def windows(units: Sequence[Unit]) -> list[Window]:
    """The windows of a passage's units. Those of a long section overlap by half. Menus are in none of them if there is
    anything else.

    >>> from edge.apps.assistant.units import units
    >>> [window.text for window in windows(units("# Rent\\n\\nIt is due at once.\\n\\n# Pets\\n\\nDogs are allowed."))]
    ['Rent\\nIt is due at once.', 'Pets\\nDogs are allowed.']
    """
    shown = [unit for unit in units if unit.kind != "navigation"] or units
    found = [window for section in _sections(shown) if section.units for window in _cut(section)]
    # Headings above nothing are shown only where there is nothing else, as units.
    return found or (list(_cut(Window((), tuple(shown)))) if shown else [])


def _sections(units: Sequence[Unit]) -> Iterator[Window]:
    start = 0
    for end in range(1, len(units) + 1):
        if end == len(units) or (units[end].kind == "heading" and units[end - 1].kind != "heading"):
            below = next((at for at in range(start, end) if units[at].kind != "heading"), end)
            headings = units[start:below]
            if below < end:  # those with nothing below them, and the names of columns, which rows repeat, say nothing
                headings = [unit for unit in headings if unit.text in units[below].heading]
            yield Window(tuple(headings), tuple(units[below:end]))
            start = end


def _cut(section: Window) -> Iterator[Window]:
    units = section.units
    sizes = [len(unit.text.split()) for unit in units]
    first = 0
    while True:
        end, words = first + 1, sizes[first]
        while end < len(units) and words + sizes[end] <= WORDS * (_LED if leads(units[end - 1], units[end]) else 1):
            words += sizes[end]
            end += 1
        yield Window(section.headings, units[first:end])
        if end == len(units):
            return
        passed = sizes[first]
        first += 1
        while first < end and passed < words / 2:
            passed += sizes[first]
            first += 1


def leads(before: Unit, unit: Unit) -> bool:
    """Whether a unit leads up to the one behind it, without which it says little."""
    return before.text.endswith(":") and unit.kind in ("code", "setting", "item")
