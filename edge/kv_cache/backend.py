"""`KVBackend`: a generator's interface to the knowledge tree: a context whose KV states can be cut and restored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

State = bytes | bytearray | memoryview
"""KV states of consecutive tokens, in the format of the backend that computed them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt that may be used again: the system prompt, or a document as it stands in the prompt.

    Attributes:
        id: the segment's name in traces. States are found by tokens alone, so a document may change its id and keep
            them.
        tokens: the segment's tokens, at least one. Each segment is tokenized separately, so that its tokens do not
            depend on the text around it.
    """

    id: str
    tokens: tuple[int, ...]


class KVBackend(Protocol):
    """One context of a language model: tokens at positions 0 ... length-1, with their KV states.

    One thread at a time uses it; the tree ensures this. `prefill` always gets a whole segment, and one segment at a
    time, whether others are cached or not. So the same batches are computed, and results are equal to the last bit.
    """

    @property
    def fingerprint(self) -> str:
        """Identifies everything a state depends on besides its tokens.

        That is the model file's hash, the context, rope and KV type settings, and the library's version. States with
        another fingerprint are never restored.
        """
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
        """Computes the states of `tokens` after the tokens in context.

        Args:
            cancelled: called between batches; once it returns true, nothing more is computed.

        Returns:
            Number of the tokens that are in context now: all, or fewer if cancelled.
        """
        ...

    def extract(self, start: int, end: int) -> State:
        """Copies the states of positions start ... end-1 into a new buffer; the context does not change."""
        ...

    def restore(self, state: State, start: int, end: int) -> None:
        """Appends states that `extract(start, end)` returned; `start` equals `length`.

        Raises:
            CorruptBlock: the bytes are not such states. The context does not change.
        """
        ...

    def truncate(self, length: int) -> None:
        """Removes the positions from `length` on."""
        ...
