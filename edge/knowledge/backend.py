"""What a generator offers the knowledge tree: one context whose KV states can be cut out by position and put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

State = bytes | bytearray | memoryview
"""KV states of some consecutive tokens, as the backend that made them wrote them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt that may come back: the system prompt, or a document as it stands in the prompt.

    Attributes:
        id: names it in traces. States are found by tokens alone, so a document may change its id and keep them.
        tokens: its tokens, never empty. A segment is tokenized by itself, so that they depend on nothing around it.
    """

    id: str
    tokens: tuple[int, ...]


class KVBackend(Protocol):
    """One context of a language model: tokens at positions 0 ... length-1, with their KV states.

    Used by one thread at a time (the tree sees to that). A segment is always passed to `prefill` whole and by itself,
    whatever was cached, so that the same batches are computed and results are equal to the last bit.
    """

    @property
    def fingerprint(self) -> str:
        """Everything a state depends on besides its tokens: model file hash, context, rope and KV type settings, the
        library's version. States of another fingerprint are never restored."""
        ...

    @property
    def capacity(self) -> int:
        """Tokens the context can hold."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's state, as `extract` returns it; rounded up."""
        ...

    @property
    def length(self) -> int:
        """Tokens in context now."""
        ...

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> int:
        """Computes the states of `tokens` after what is in context.

        Args:
            cancelled: asked between batches; once true, nothing more is computed.

        Returns:
            How many of the tokens are in context now: all, or fewer when cancelled.
        """
        ...

    def extract(self, start: int, end: int) -> State:
        """The states of positions start ... end-1, in a buffer of their own; the context stays as it is."""
        ...

    def restore(self, state: State, start: int, end: int) -> None:
        """Appends states that `extract(start, end)` returned; `start` equals `length`.

        Raises:
            CorruptBlock: these bytes are no such states; the context is as before.
        """
        ...

    def truncate(self, length: int) -> None:
        """Forgets positions from `length` on."""
        ...
