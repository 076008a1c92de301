"""`Vocabulary`: a tokenizer under the budget, released when memory is short and loaded again for the next text."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from edge.budget import MemoryBudget
from edge.models.packed import PackedModel
from edge.models.tokenizer import PairTokenizer
from edge.models.tokens import TokenBatch


class Vocabulary:
    """Turns texts into token sequences. Thread-safe.

    Attributes:
        nbytes: bytes that the loaded tokenizer holds.
    """

    def __init__(self, model: PackedModel, budget: MemoryBudget, *, max_tokens: int) -> None:
        """Loads the tokenizer. After a call of `give_way` the budget may ask for its memory.

        Args:
            max_tokens: longest sequence; longer texts are truncated.

        Raises:
            BudgetExceeded: the tokenizer does not fit.
        """
        self._budget = budget
        self._max_tokens = max_tokens
        self._lock = threading.RLock()
        self._busy = False
        self._forget: Callable[[], None] = _nothing
        self._tokenizer = PairTokenizer(model.tokenizer_path, model.spec, sha256=model.tokenizer_sha256, budget=budget)
        self._load_s = 0.0
        with budget.charge("tokenizer", self._tokenizer.loading_nbytes) as self._lease:
            self._load()
        # A partial tokenizer grows with the first texts.
        self.nbytes = max(self._lease.nbytes, self._tokenizer.nbytes)
        try:
            self._lease.resize(self.nbytes)
        except BaseException:
            self.close()
            raise

    def give_way(self) -> None:
        """Allows the budget from now on to release the tokenizer whenever no thread uses it."""
        self._forget = self._budget.add_shrinker("tokenizer", self._shrink, loss=self.loss)

    def loss(self) -> float:
        """Seconds per byte to load the tokenizer again, which the next text will need (see `edge.budget.Loss`)."""
        return self._load_s / max(1, self.nbytes)

    def pairs(self, query: str, docs: Sequence[str]) -> TokenBatch:
        """Token sequences of (query, document) pairs; documents are truncated.

        Raises:
            InputError: the query is empty or a text is not valid Unicode.
            BudgetExceeded: there is no memory for the tokenizer at present.
        """
        with self._ready() as tokenizer:
            return tokenizer.encode_pairs(query, docs, self._max_tokens)

    def texts(self, texts: Sequence[str], *, query: bool = False) -> TokenBatch:
        """Token sequences of single texts, truncated. Raises the errors of `pairs`."""
        with self._ready() as tokenizer:
            return tokenizer.encode_texts(texts, query=query, max_tokens=self._max_tokens)

    def length(self, text: str, most: int) -> int:
        """Number of tokens of a text, counted up to `most`. Raises the errors of `pairs`."""
        with self._ready() as tokenizer:
            return int(tokenizer.encode_texts([text], max_tokens=most).lengths[0])

    def drop(self) -> bool:
        """Releases the tokenizer, unless a thread is using it. It is loaded again when it is needed.

        Returns:
            Whether memory was freed.
        """
        # The budget may be locked here, and the thread that tokenizes may be waiting for the budget.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            # Tokenizing takes leases, and a lease may ask for the memory of this tokenizer.
            if self._busy or not self._lease.nbytes:
                return False
            self._tokenizer.release()
            self._lease.release()
            return True
        finally:
            self._lock.release()

    def close(self) -> None:
        """Frees the tokenizer's memory permanently."""
        with self._lock:
            self._tokenizer.release()
            self._forget()
            self._lease.release()

    def _load(self) -> None:
        started = time.perf_counter()
        self._tokenizer.load()
        self._load_s = time.perf_counter() - started

    def _shrink(self, nbytes: int) -> None:
        self.drop()

    @contextmanager
    def _ready(self) -> Iterator[PairTokenizer]:
        with self._lock:
            self._busy = True  # the lease for loading must not release this tokenizer
            try:
                if self._lease.nbytes == 0:
                    self._lease.resize(max(self.nbytes, self._tokenizer.loading_nbytes))
                    try:
                        self._load()
                    finally:
                        self._lease.resize(self.nbytes if self._tokenizer.loaded else 0)
                yield self._tokenizer
            finally:
                self._busy = False


def _nothing() -> None:
    """Does nothing. Used in place of the function that removes a shrinker, while none is registered."""
