"""The line numbers of a passage's lines, where they do not simply count up.

Blank lines that a passage leaves out, and formats whose lines are paragraphs or rows, make the n-th line of a text
another line of its document than the n-th after the first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence


def counts_up(numbers: Sequence[int]) -> bool:
    """Whether each number is the one before it plus one."""
    return len(numbers) == numbers[-1] - numbers[0] + 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))


def packed(numbers: Sequence[int] | None) -> str | None:
    """Numbers as text: runs of (first, how many), counting up; None for None."""
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
    """The numbers of a passage of `lines` lines that begins at line `first` and ends at `last`.

    Args:
        text: what `packed` made; None where the numbers count up, as far as `last`.
    """
    if text is None:
        return tuple(min(first + i, last) for i in range(lines))
    return tuple(number for start, count in json.loads(text) for number in range(start, start + count))
