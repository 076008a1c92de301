"""How long a generation will take, learned from those before: the window in which clusters can be fetched for free.

TeleRAG (section 4.1) fixes one average per pipeline on a calibration set. Here every step of every pipeline has its own
length, learned while answering, and the length of the prompt counts: seconds = prefill of its tokens + expected output
tokens * seconds per token.
"""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

from edge.expectation import Expected
from edge.remembered import recall, remember

_FORMAT = 1
_WHAT = "the times of generations"


class GenerationTimes:
    """Learned output lengths of steps and speeds of generators. Thread-safe.

    A file that cannot be read or written is no obstacle: what it would tell is learned again.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Starts from what was saved at `path`; None keeps nothing."""
        self._path = path
        self._lock = threading.Lock()
        self._lengths: dict[str, Expected] = {}
        self._token_s: dict[str, Expected] = {}
        self._prefill_s: dict[str, Expected] = {}
        self._load()

    def expect(self, generator: str, pipeline: str, step: str, prompt_tokens: int) -> float | None:
        """Seconds that a step is expected to take; None before the first one was seen."""
        with self._lock:
            length = self._lengths.get(f"{generator}/{pipeline}/{step}")
            token = self._token_s.get(generator)
            prefill = self._prefill_s.get(generator)
        if length is None or token is None:
            return None
        return (prefill.mean * prompt_tokens if prefill else 0.0) + length.mean * token.mean

    def learn(
        self, generator: str, pipeline: str, step: str, *, computed: int, new: int, ttft_s: float, seconds: float
    ) -> None:
        """Takes in one finished generation.

        Args:
            computed: prompt tokens that had to be computed (those with reused states did not).
            new: tokens written.
            ttft_s: seconds to the first of them; `seconds` to the last.
        """
        if new < 1 or not 0 <= ttft_s <= seconds < math.inf:
            return
        with self._lock:
            self._lengths.setdefault(f"{generator}/{pipeline}/{step}", Expected()).add(new)
            if new > 1:
                self._token_s.setdefault(generator, Expected()).add((seconds - ttft_s) / (new - 1))
            if computed > 0:
                self._prefill_s.setdefault(generator, Expected()).add(ttft_s / computed)

    def save(self) -> None:
        """Keeps what was learned for the next process."""
        if self._path is None:
            return
        with self._lock:
            state = {
                "format": _FORMAT,
                **{
                    name: {key: [known.mean, known.count] for key, known in table.items()}
                    for name, table in self._tables().items()
                },
            }
        remember(self._path, state)

    def _load(self) -> None:
        state = recall(self._path, _WHAT) if self._path is not None else {}
        if state.get("format") != _FORMAT:
            return
        try:
            for name, table in self._tables().items():
                table.update({str(key): _known(pair) for key, pair in state[name].items()})
        except (ValueError, TypeError, KeyError, AttributeError):
            for table in self._tables().values():
                table.clear()

    def _tables(self) -> dict[str, dict[str, Expected]]:
        return {"lengths": self._lengths, "token_s": self._token_s, "prefill_s": self._prefill_s}


def _known(pair: Any) -> Expected:
    mean, count = float(pair[0]), int(pair[1])
    if not (math.isfinite(mean) and mean >= 0 and count >= 1):
        raise ValueError(f"{pair!r} is no mean of readings")
    return Expected(mean, count=count)
