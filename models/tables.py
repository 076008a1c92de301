"""A tokenizer's tables in memory: whole, or only the pieces in use. They load at first use, and again after release."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge.errors import CorruptBlock, ModelError, StorageError
from edge.models.continuation import inseparable, settled
from edge.models.manifest import remedy
from edge.models.partial import VOCABULARY, PartialTokenizer
from edge.models.spec import Architecture, ModelSpec
from edge.models.tokens import Ids
from edge.resident import anonymous_resident, trim_heap

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_BYTES_PER_TOKEN: dict[Architecture, int] = {"bert": 260, "xlm-roberta": 900, "qwen3": 330}
"""Memory of a loaded tokenizer by token of its vocabulary, measured with tokenizers 0.23 (WordPiece, Unigram,
byte-level BPE)."""
_LOADING_BYTES_PER_TOKEN: dict[Architecture, int] = {"bert": 300, "xlm-roberta": 940, "qwen3": 720}
"""Memory while a tokenizer is loaded, where the text of its file and what is made of it are there at once."""
_PARTIAL_NBYTES = 16 << 20
"""Memory of a partial tokenizer: what it holds after a few requests, and the tables it reads to find new pieces."""


class Tables:
    """The tokenizer of a tokenizer.json. Not thread-safe."""

    def __init__(self, path: Path, spec: ModelSpec, sha256: str | None) -> None:
        """Nothing is read yet.

        Args:
            path: tokenizer.json; beside it there may be a table of a large vocabulary's pieces.
            sha256: what the file must have; not checked if None.
        """
        self._path = path
        self._spec = spec
        self._sha256 = sha256
        self._tokenizer: Tokenizer | None = None
        self._partial: PartialTokenizer | None = None
        self._measured = 0
        self._longest = 0
        self._looked = False
        self._inseparable: list[str] | None = None

    @property
    def loaded(self) -> bool:
        """Whether the tables are in memory."""
        return self._tokenizer is not None or self._partial is not None

    @property
    def nbytes(self) -> int:
        """Bytes of memory they take while loaded: measured at the last load, estimated before the first; of a partial
        tokenizer, what it may grow to."""
        if self._pieces.is_file():
            return _PARTIAL_NBYTES
        return self._measured or self._spec.vocab * _BYTES_PER_TOKEN[self._spec.architecture]

    @property
    def loading_nbytes(self) -> int:
        """Bytes of memory that loading them takes, at most."""
        if self._pieces.is_file():
            return _PARTIAL_NBYTES
        return max(self._measured, self._spec.vocab * _LOADING_BYTES_PER_TOKEN[self._spec.architecture])

    @property
    def inseparable(self) -> list[str] | None:
        """What no cut may part, see `continuation.inseparable`."""
        if not self._looked:
            self._inseparable = inseparable(self.ready())
            self._looked = True
        return self._inseparable

    def ready(self, texts: Sequence[str] = ()) -> Tokenizer:
        """The tokenizer, with all that `texts` need.

        Raises:
            CorruptBlock: the file does not match its sha256.
            ModelError: it is no tokenizer.
        """
        if not self.loaded:
            # Else the library starts a pool of threads whose size cannot be set per call, whose memory nobody
            # counts, and which it warns about after every fork. One thread encodes a million tokens a second.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            if self._pieces.is_file():
                self._partial = PartialTokenizer(self._pieces)
        if self._partial is not None:
            self._partial.provide(texts)
            return self._partial.tokenizer
        if self._tokenizer is None:
            self._tokenizer = self._whole()
        return self._tokenizer

    def ids(self, found: Sequence[int]) -> Ids:
        """The model's own ids of those that the tokenizer of `ready` gave."""
        ids = np.array(found, np.int32)
        return ids if self._partial is None else self._partial.ids[ids]

    def settled(self, encoding: Encoding, most: int) -> int:
        """How many of the first ids of an open clip's encoding stay, see `continuation.settled`."""
        return settled(self.ready(), encoding, most, self._longest_piece)

    def release(self) -> None:
        """Gives the memory back."""
        if self.loaded:
            self._tokenizer = self._partial = None
            gc.collect()
            trim_heap()

    @property
    def _pieces(self) -> Path:
        return self._path.parent / VOCABULARY

    def _whole(self) -> Tokenizer:
        from tokenizers import Tokenizer

        if self._sha256 is not None and self._digest() != self._sha256:
            raise CorruptBlock(f"{self._path} does not match its sha256; {remedy(self._path.parent)}")
        before = anonymous_resident()
        try:
            tokenizer = Tokenizer.from_file(str(self._path))
        except Exception as error:
            raise ModelError(f"{self._path} cannot be read as a tokenizer ({error})") from error
        # Files carry the settings of whoever saved them: all-MiniLM-L6-v2's pads and cuts to 128 tokens.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        trim_heap()
        self._measured = max(anonymous_resident() - before, self._path.stat().st_size)
        return tokenizer

    def _digest(self) -> str:
        try:
            return hashlib.sha256(self._path.read_bytes()).hexdigest()
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read: {error.strerror}") from error

    def _longest_piece(self) -> int:
        if self._partial is not None:
            return self._partial.longest
        if not self._longest:
            tokenizer = self.ready()
            # One by one: a dictionary of the whole vocabulary would be tens of megabytes.
            pieces = (tokenizer.id_to_token(n) for n in range(tokenizer.get_vocab_size()))
            self._longest = max(len(piece or "") for piece in pieces)
        return self._longest
