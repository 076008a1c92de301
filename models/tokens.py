"""A request's token sequences as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of a request's sequences, one after another.

    Attributes:
        prefix: ids at the start of every sequence [p]: template, instruction and query of a decoder. The sequences can
            share the states of these ids. Empty for encoders, where every token attends to the document.
        tokens: the ids of each sequence after the prefix [total].
        lengths: number of ids of each sequence in `tokens` [n].
        types: token types of `tokens` [total], None for models that have one type or none.
        query_cut: the query was longer than its share and was truncated.
    """

    prefix: Ids
    tokens: Ids
    lengths: Ids
    types: npt.NDArray[np.uint8] | None
    query_cut: bool

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """The start of each sequence in `tokens` [n + 1]; the last entry is the end of the last sequence."""
        return np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))

    def without_prefix(self) -> TokenBatch:
        """The same sequences, each with the prefix as its own first tokens."""
        if len(self.prefix) == 0:
            return self
        spread = [np.concatenate((self.prefix, part)) for part in np.split(self.tokens, self.starts[1:-1])]
        lengths = (self.lengths + len(self.prefix)).astype(np.int32)
        return replace(self, prefix=self.prefix[:0], tokens=np.concatenate(spread), lengths=lengths)

    @property
    def nbytes(self) -> int:
        """Bytes these arrays hold."""
        types = 0 if self.types is None else self.types.nbytes
        return self.prefix.nbytes + self.tokens.nbytes + self.lengths.nbytes + types
