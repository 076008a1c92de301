"""`Seat` and `CellPool`: the sequences of tokens that an engine writes with; `TokenChooser` and `Vocabulary`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from edge.kv_cache.backend import KVBackend


class Seat(Protocol):
    """One sequence of `length` tokens with its context, in which `slice` tokens of a prompt are computed at a time, and
    its states for the knowledge tree (None if they cannot be parted)."""

    slice: int
    length: int
    backend: KVBackend | None

    def append(
        self, tokens: Sequence[int], *, done: int = 0, cancelled: Callable[[], bool] | None = None, logits: bool = False
    ) -> int:
        """Appends tokens, of which the first `done` are there already, and returns how many are there then;
        `cancelled` is asked before each slice."""

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
