"""The line numbers of a passage's lines, if they are not consecutive.

They are not if a passage omits blank lines, or if the lines of its format are paragraphs or rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence


def counts_up(numbers: Sequence[int]) -> bool:
    """Whether the numbers are consecutive."""
    return len(numbers) == numbers[-1] - numbers[0] + 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))


def packed(numbers: Sequence[int] | None) -> str | None:
    """Numbers as text: a list of runs (first, length) of consecutive numbers; None for None."""
    if numbers is None:
        return None
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return json.dumps(runs, separators=(",", ":"))


def unpacked(text: str | None, first: int, last: int, lines: int) -> tuple[int, ...]:
    """The line numbers of a passage of `lines` lines, from line `first` to line `last`.

    Args:
        text: the output of `packed`; None if the numbers are consecutive, up to `last`.
    """
    if text is None:
        return tuple(min(first + i, last) for i in range(lines))
    return tuple(number for start, count in json.loads(text) for number in range(start, start + count))
