"""`Seat` and `CellPool`: the sequences of tokens that an engine writes with; `TokenChooser` and `Vocabulary`; and
`HeldQuestions`, whose states sequences still hold for later questions that begin alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Protocol

from edge.kv_cache.backend import KVBackend, StateSegment
from edge.runtimes.generation.prompt import Prompt


class Seat(Protocol):
    """One sequence of `length` tokens, in `slice` tokens of a prompt at a time, and its states for the tree (None if
    they cannot be parted)."""

    slice: int
    length: int
    backend: KVBackend | None

    def append(
        self, tokens: Sequence[int], *, done: int = 0, cancelled: Callable[[], bool] | None = None, logits: bool = False
    ) -> int:
        """Appends tokens but the first `done`; returns how many are there. `cancelled` is asked by slice."""

    def reusable(self, common: int, tokens: int) -> int:
        """How many of the first `common` tokens of a text of `tokens` may stay, if others follow them."""

    def truncate(self, length: int) -> None:
        """Removes positions from `length` on."""

    def close(self) -> None:
        """Frees the memory."""


class TokenChooser(Protocol):
    """Chooses the tokens of one answer."""

    def choose(self, seat: Any) -> tuple[int, float]:
        """The next token of a sequence, and its log-probability."""

    def close(self) -> None:
        """Frees the memory."""


class Vocabulary(Protocol):
    """The texts of a model's tokens."""

    def piece(self, token: int) -> bytes:
        """A token's bytes in an answer."""

    def ends(self, token: int) -> bool:
        """Whether the token ends an answer."""


class CellPool(Protocol):
    """The cells that several sequences share, and the most tokens of a step."""

    cells: int
    together: int

    def step(self, texts: Sequence[tuple[Any, Sequence[int]]]) -> None:
        """Appends tokens to each of several sequences. If it raises ModelError, they are as before."""


Tokens = tuple[int, ...]
Path = tuple[StateSegment, ...]


class HeldQuestions:
    """The path and the tokens behind it, for each sequence. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[Any, tuple[Path, Tokens]] = {}

    def hold(self, seat: Any, path: Path, tokens: Tokens) -> None:
        self._held[seat] = path, tokens

    def drop(self, seat: Any) -> None:
        self._held.pop(seat, None)

    def common(self, seat: Any, prompt: Prompt) -> int:
        """Number of the first tokens of a question whose states a sequence holds behind the same path and may keep."""
        path, tokens = self._held.get(seat, ((), ()))
        if not tokens or path != prompt.path:
            return 0
        found = min(alike(tokens, prompt.question), seat.length - _length(path))
        return int(seat.reusable(found, len(prompt.question))) if found > 0 else 0

    def best(self, prompt: Prompt, seats: Iterable[Any] | None = None) -> tuple[int, Any]:
        """The sequence (of `seats`, or of all) that holds most of a question, and how many of its tokens."""
        found = [(self.common(seat, prompt), seat) for seat in (self._held if seats is None else seats)]
        return max(found, key=lambda one: one[0], default=(0, None))

    def cells(self, seats: Iterable[tuple[Any, int]], prompts: Iterable[Prompt]) -> int:
        """Cells that sequences, each at its largest length, and further prompts take; held states once."""
        texts, apart = [(prompt.path, prompt.question) for prompt in prompts], 0
        for seat, length in seats:
            path, tokens = self._held.get(seat, ((), ()))
            texts.append((path, tokens[: max(0, seat.length - _length(path))]))
            apart += length - _length(path) - len(texts[-1][1])
        texts.sort(key=lambda text: ([part.tokens for part in text[0]], text[1]))
        paths = {path[: i + 1]: len(path[i].tokens) for path, _ in texts for i in range(len(path))}
        pairs = [(one[1], other[1]) for one, other in pairwise(texts) if one[0] == other[0]]
        # The last token of each is always computed.
        equal = sum(min(alike(one, other), max(0, min(len(one), len(other)) - 1)) for one, other in pairs)
        return apart + sum(paths.values()) + sum(len(tokens) for _, tokens in texts) - equal


def alike(one: Tokens, other: Tokens) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _length(path: Path) -> int:
    return sum(len(segment.tokens) for segment in path)
