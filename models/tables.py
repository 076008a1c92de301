"""A tokenizer's tables in memory: all of them, or only the pieces in use. They are loaded at first use."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge.errors import CorruptBlock, ModelError, StorageError
from edge.models.clipping import inseparable, settled
from edge.models.manifest import remedy
from edge.models.partial import VOCABULARY, PartialTokenizer
from edge.models.spec import Architecture, ModelSpec
from edge.models.tokens import Ids
from edge.resident import anonymous_resident, trim_heap

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_BYTES_PER_TOKEN: dict[Architecture, int] = {"bert": 260, "xlm-roberta": 900, "qwen3": 330}
"""Memory of a loaded tokenizer per token of its vocabulary, measured with tokenizers 0.23 (WordPiece, Unigram,
byte-level BPE)."""
_LOADING_BYTES_PER_TOKEN: dict[Architecture, int] = {"bert": 300, "xlm-roberta": 940, "qwen3": 720}
"""Memory while a tokenizer is being loaded, when the text of its file and the parsed tables exist at the same time."""
_PARTIAL_NBYTES = 16 << 20
"""Memory of a partial tokenizer: its pieces after a few requests, and the tables it reads to find new pieces."""


class Tables:
    """The tokenizer of a tokenizer.json. It is loaded at first use, and again after `release`. Not thread-safe."""

    def __init__(self, path: Path, spec: ModelSpec, sha256: str | None) -> None:
        """Prepares the tables. No file is read yet.

        Args:
            path: tokenizer.json. The table of a large vocabulary's pieces may lie beside it.
            sha256: expected sha256 of the file; not checked if None.
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
        """Bytes of memory of the loaded tables: measured at the last load, or estimated before the first. For a partial
        tokenizer, the size that it may grow to."""
        if self._pieces.is_file():
            return _PARTIAL_NBYTES
        return self._measured or self._spec.vocab * _BYTES_PER_TOKEN[self._spec.architecture]

    @property
    def loading_nbytes(self) -> int:
        """Upper bound on the bytes of memory while the tables are being loaded."""
        if self._pieces.is_file():
            return _PARTIAL_NBYTES
        return max(self._measured, self._spec.vocab * _LOADING_BYTES_PER_TOKEN[self._spec.architecture])

    @property
    def inseparable(self) -> list[str] | None:
        """The strings that must not be cut in two, see `clipping.inseparable`."""
        if not self._looked:
            self._inseparable = inseparable(self.ready())
            self._looked = True
        return self._inseparable

    def ready(self, texts: Sequence[str] = ()) -> Tokenizer:
        """The tokenizer, with all pieces that `texts` need.

        Raises:
            CorruptBlock: the file does not match its sha256.
            ModelError: the file is no tokenizer.
        """
        if not self.loaded:
            # By default the library starts a thread pool. Its size cannot be set per call, no lease covers its memory,
            # and it causes a warning after every fork. One thread encodes a million tokens a second.
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
        """The model's own ids for ids from the tokenizer of `ready`."""
        ids = np.array(found, np.int32)
        return ids if self._partial is None else self._partial.ids[ids]

    def settled(self, encoding: Encoding, most: int) -> int:
        """The number of settled ids at the start of an open clip's encoding, see `clipping.settled`."""
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
        # Files keep the settings with which they were saved: that of all-MiniLM-L6-v2 pads and truncates to 128 tokens.
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
            # A dictionary of the whole vocabulary would take tens of megabytes, so the pieces are read one by one.
            pieces = (tokenizer.id_to_token(n) for n in range(tokenizer.get_vocab_size()))
            self._longest = max(len(piece or "") for piece in pieces)
        return self._longest
