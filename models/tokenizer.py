"""Token ids of (query, document) pairs and of single texts, equal to those of Hugging Face transformers. A `Vocabulary`
is a tokenizer under the budget, released when memory is short."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.models.clipping import Clip
from edge.models.packed import PackedModel
from edge.models.spec import ModelSpec
from edge.models.tables import Ids, Tables


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of a request's sequences, one after another.

    `prefix` [p] starts every sequence (template, instruction and query of a decoder; empty for encoders), `tokens`
    [total] follow, `lengths` [n] of each sequence; `types` [total] are None for models with one type or none.
    `query_cut`: the query was truncated. `around`: tokens before and after the own text of each sequence."""

    prefix: Ids
    tokens: Ids
    lengths: Ids
    types: npt.NDArray[np.uint8] | None
    query_cut: bool
    around: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """The start of each sequence in `tokens` [n + 1]; the last entry is the end of the last sequence."""
        return np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))

    @property
    def nbytes(self) -> int:
        types = 0 if self.types is None else self.types.nbytes
        return self.prefix.nbytes + self.tokens.nbytes + self.lengths.nbytes + types


_GROUP_NBYTES = 6 << 20
"""Texts are encoded in groups of at most this much memory, which an engine's headroom covers; a single larger text
takes a lease."""

_ASCII, _WIDE, _LIGATURES = 450, 1100, 3100
"""Upper bounds on the bytes per character while a text is encoded, measured with tokenizers 0.23: ASCII, other text
(squared kana), and the ligature that NFKC expands to 18 characters."""

_PER_TEXT = 1500
"""Additional bytes of memory per text: the library's encoding, arrays, objects."""

_LIGATURE = "\ufdfa"

_BLOCK = 1024
"""Number of sequences that are collected before they are joined into one array."""

_CHECKED = 1 << 16
"""Number of characters of a text that are checked at a time."""

_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class _Frame:
    """Special tokens added to one text or a pair, as (ids, types); and the types of the texts' own tokens."""

    before: tuple[list[int], list[int]]
    between: tuple[list[int], list[int]]
    after: tuple[list[int], list[int]]
    types: tuple[int, int]

    @property
    def size(self) -> int:
        return len(self.before[0]) + len(self.between[0]) + len(self.after[0])


class PairTokenizer:
    """The tokenizer of one packed model. Not thread-safe. `tables` are loaded at first use, also after release."""

    def __init__(
        self, path: str | Path, spec: ModelSpec, *, sha256: str | None = None, budget: MemoryBudget | None = None
    ) -> None:
        """Reads no file yet. `budget` holds the leases for encoding and for the sequences."""
        self.spec = spec
        self.tables = Tables(Path(path), spec, sha256)
        self._budget = MemoryBudget(_UNLIMITED, part=True) if budget is None else budget
        self._frames: dict[bool, _Frame] = {}

    def encode_pairs(self, query: str, docs: Sequence[str], max_tokens: int | None = None) -> TokenBatch:
        """Sequences that a reranker scores, one per document, which is truncated to the room that the query leaves. The
        query may have half of it, whatever the documents' lengths, so a score never depends on the other candidates.

        `max_tokens` bounds a whole sequence with special tokens. InputError for an empty query, invalid Unicode, or no
        room for texts; BudgetExceeded."""
        check_text(query, "the query")
        if not query.strip():
            raise InputError("the query is empty")
        check_texts(docs, "document")
        limit = min(max_tokens or self.spec.max_tokens, self.spec.max_tokens)
        head = self.spec.head
        if head.prefix or head.infix or head.suffix:
            return self._templated(query, docs, limit)
        frame = self._frame(pair=True)
        room = limit - frame.size
        if room < 2:
            raise InputError(f"{limit} tokens leave no room for a query and a document")
        ids = self._ids(query, limit)
        kept = ids[: room // 2]
        before, between, after = frame.before, frame.between, frame.after
        opening = np.array([*before[0], *kept.tolist(), *between[0]], np.int32)
        types = [*before[1], *[frame.types[0]] * len(kept), *between[1]]
        own = self._many(docs, room - len(kept))
        return self._assemble(own, len(docs), opening, types, frame.types[1], after, len(kept) < len(ids))

    def encode_texts(self, texts: Sequence[str], *, query: bool = False, max_tokens: int | None = None) -> TokenBatch:
        """Sequences for an embedder, truncated at the end; a `query` may get a prefix. InputError."""
        check_texts(texts, "text")
        lead = self.spec.head.query_prefix if query else self.spec.head.document_prefix
        limit = min(max_tokens or self.spec.max_tokens, self.spec.max_tokens)
        frame = self._frame(pair=False)
        if limit <= frame.size:
            raise InputError(f"{limit} tokens leave no room for a text")
        opening = np.array(frame.before[0], np.int32)
        own = self._many(texts, limit - frame.size, lead)
        batch = self._assemble(own, len(texts), opening, frame.before[1], frame.types[0], frame.after, False)
        if len(batch) and not batch.lengths.all():
            raise InputError(f"text {int(np.argmin(batch.lengths))} has no tokens")
        return batch

    def _templated(self, query: str, docs: Sequence[str], limit: int) -> TokenBatch:
        head = self.spec.head
        # Byte-level BPE joins a space to the word after it. So the infix's last space is encoded with the document,
        # and the ids equal those of the whole text.
        infix = head.infix.rstrip(" ")
        space = head.infix[len(infix) :]
        suffix = self._ids(head.suffix, limit)
        room = limit - len(self._ids(head.prefix, limit)) - len(self._ids(infix, limit)) - len(suffix)
        if room < 2:
            raise InputError(f"{limit} tokens leave no room beside the template's {limit - room}")
        clip = Clip(query, room // 2, inseparable=self.tables.inseparable)
        ids, places = self._settled(clip, room // 2 + 1)
        while clip.cut and len(ids) <= room // 2:
            clip = clip.longer()
            ids, places = self._settled(clip, room // 2 + 1)
        cut = len(ids) > room // 2
        if cut:
            query = query[: places[room // 2 - 1][1]]
        prefix = self._ids(head.prefix + query + infix, limit)
        own = self._many(docs, limit - len(prefix) - len(suffix), space)
        after = suffix.tolist(), [0] * len(suffix)
        batch = self._assemble(own, len(docs), np.empty(0, np.int32), [], 0, after, cut)
        return TokenBatch(prefix, batch.tokens, batch.lengths, None, cut)

    def _assemble(
        self,
        own: Iterable[Ids],
        count: int,
        opening: Ids,
        opening_types: list[int],
        own_type: int,
        after: tuple[list[int], list[int]],
        cut: bool,
    ) -> TokenBatch:
        ending = np.array(after[0], np.int32)
        lengths = np.empty(count, np.int32)
        joined = np.empty(0, np.int32)
        blocks, block = [joined], [joined]
        with self._budget.reserve("tokenizing", lengths.nbytes) as lease:
            for number, ids in enumerate(own):
                block += opening, ids, ending
                lengths[number] = len(opening) + len(ids) + len(ending)
                if number % _BLOCK == _BLOCK - 1 or number == count - 1:
                    blocks.append(np.concatenate(block))
                    block = []
                    # While the blocks are joined, the old and the new array exist. Types take a byte for each token.
                    lease.resize(lease.nbytes + 2 * blocks[-1].nbytes + blocks[-1].size)
            joined = np.concatenate(blocks)
            blocks.clear()
            types = self._types(lengths, opening_types, own_type, after[1]) if self.spec.token_types > 1 else None
        return TokenBatch(np.empty(0, np.int32), joined, lengths, types, cut, (len(opening), len(ending)))

    def _types(self, lengths: Ids, opening: list[int], own: int, ending: list[int]) -> npt.NDArray[np.uint8]:
        types = np.full(int(lengths.sum()), own, np.uint8)
        end = 0
        for length in lengths.tolist():
            types[end : end + len(opening)] = opening
            end += length
            types[end - len(ending) : end] = ending
        return types

    def _ids(self, text: str, most: int) -> Ids:
        return next(self._many([text], most + 1))

    def _many(self, texts: Iterable[str], most: int, lead: str = "") -> Iterator[Ids]:
        """The first `most` ids of `lead` + text for each text, without special tokens."""
        inseparable = self.tables.inseparable
        for group in _groups(Clip(text, most, lead=lead, inseparable=inseparable) for text in texts):
            for start, ids in zip(group, self._encode(group, most), strict=True):
                clip = start
                while len(ids) < most and clip.cut:
                    clip = clip.longer()
                    ids = self._encode([clip], most)[0]
                yield ids[:most]

    def _encode(self, clips: list[Clip], most: int) -> list[Ids]:
        """Ids of each clip: all ids of a closed clip, and the settled ids of an open clip (see `clipping.settled`)."""
        texts = [clip.text for clip in clips if not clip.open]
        with self._budget.reserve("tokenizing", _more_nbytes(texts)):
            encodings = self.tables.ready(texts).encode_batch_fast(texts, add_special_tokens=False)
            closed = [self.tables.ids(encoding.ids) for encoding in encodings]
        rest = iter(closed)
        return [self._settled(clip, most)[0] if clip.open else next(rest) for clip in clips]

    def places(self, text: str, count: int) -> list[tuple[int, int]]:
        """Start and end, in characters, of the first `count` tokens of a text."""
        clip = Clip(text, count, inseparable=self.tables.inseparable)
        found = self._settled(clip, count)[1]
        while len(found) < count and clip.cut:
            clip = clip.longer()
            found = self._settled(clip, count)[1]
        return found[:count]

    def _settled(self, clip: Clip, most: int) -> tuple[Ids, list[tuple[int, int]]]:
        """A clip's ids (of an open clip only the settled ones), and the start and end of each in the clip's text."""
        # An open clip's last word is encoded again, character by character, while the first encoding is still held.
        with self._budget.reserve("tokenizing", _more_nbytes([clip.text] * (1 + clip.open))):
            encoding = self.tables.ready([clip.text]).encode(clip.text, add_special_tokens=False)
            count = self.tables.settled(encoding, most) if clip.open else len(encoding.ids)
            return self.tables.ids(encoding.ids[:count]), encoding.offsets[:count]

    def _frame(self, pair: bool) -> _Frame:
        if pair not in self._frames:
            tokenizer = self.tables.ready(["a", "b"])
            # A partial tokenizer also gives the model's own ids for special tokens, because its template contains them.
            encoding = tokenizer.encode("a", "b") if pair else tokenizer.encode("a")
            owners, ids, types = encoding.sequence_ids, encoding.ids, encoding.type_ids
            first = [n for n, owner in enumerate(owners) if owner == 0]
            second = [n for n, owner in enumerate(owners) if owner == 1] or [first[-1]]
            end = first[-1] + 1
            self._frames[pair] = _Frame(
                before=(ids[: first[0]], types[: first[0]]),
                between=(ids[end : second[0]], types[end : second[0]]) if pair else ([], []),
                after=(ids[second[-1] + 1 :], types[second[-1] + 1 :]),
                types=(types[first[0]], types[second[0]]),
            )
        return self._frames[pair]


def _encoding_nbytes(text: str) -> int:
    """Upper bound on the memory that the encoding of a text takes while it runs."""
    if text.isascii():
        return _PER_TEXT + _ASCII * len(text)
    return _PER_TEXT + (_LIGATURES if _LIGATURE in text else _WIDE) * len(text)


def _more_nbytes(texts: list[str]) -> int:
    """Bytes that encoding some texts takes beyond those of a group, which are not leased."""
    return max(0, sum(map(_encoding_nbytes, texts)) - _GROUP_NBYTES)


def query_nbytes(query: str) -> int:
    """Bytes that encoding a query may take: few, unless it is long and nothing divides it."""
    return _more_nbytes([query, query])


def _groups(clips: Iterable[Clip]) -> Iterator[list[Clip]]:
    group: list[Clip] = []
    size = 0
    for clip in clips:
        needed = _encoding_nbytes(clip.text)
        if group and size + needed > _GROUP_NBYTES:
            yield group
            group, size = [], 0
        group.append(clip)
        size += needed
    if group:
        yield group


def check_texts(texts: Sequence[object], what: str) -> None:
    """Checks each text (see `check_text`). `what` names one of them in a message, before its number."""
    for number, text in enumerate(texts):
        check_text(text, f"{what} {number}")


def check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{what} is {type(text).__name__}, text is needed")
    # ASCII text is always valid. Other text is checked in parts, because the check copies each part.
    for start in range(0, 0 if text.isascii() else len(text), _CHECKED):
        half = _half_of_a_pair(text[start : start + _CHECKED])
        if half is not None:
            raise InputError(f"{what} is not valid Unicode: character {start + half} is half of a pair")


def _half_of_a_pair(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


class Vocabulary:
    """Turns texts into token sequences. Thread-safe. `nbytes` are those of the loaded tokenizer."""

    def __init__(self, model: PackedModel, budget: MemoryBudget, *, max_tokens: int) -> None:
        """Loads the tokenizer, whose memory the budget may ask for after `give_way`; texts are cut."""
        self._budget = budget
        self._max_tokens = max_tokens
        self._lock = threading.RLock()
        self._busy = False
        self._forget: Callable[[], None] = lambda: None  # until a shrinker is registered
        self._tokenizer = PairTokenizer(model.tokenizer_path, model.spec, sha256=model.tokenizer_sha256, budget=budget)
        self._tables = self._tokenizer.tables
        self._load_s = 0.0
        with budget.charge("tokenizer", self._tables.loading_nbytes) as self._lease:
            self._load()
        # A partial tokenizer grows with the first texts.
        self.nbytes = max(self._lease.nbytes, self._tables.nbytes)
        try:
            self._lease.resize(self.nbytes)
        except BaseException:
            self.close()
            raise

    def give_way(self) -> None:
        """Allows the budget from now on to release the tokenizer whenever no thread uses it."""
        self._forget = self._budget.add_shrinker("tokenizer", lambda _: self.drop(), loss=self.loss)

    def loss(self) -> float:
        """Seconds per byte to load the tokenizer again, which the next text will need (see `edge.budget.Loss`)."""
        return self._load_s / max(1, self.nbytes)

    def pairs(self, query: str, docs: Sequence[str]) -> TokenBatch:
        """Token sequences of (query, document) pairs; documents are truncated."""
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

    def places(self, text: str, count: int) -> list[tuple[int, int]]:
        """See `PairTokenizer.places`. Raises the errors of `pairs`."""
        with self._ready() as tokenizer:
            return tokenizer.places(text, count)

    def drop(self) -> bool:
        """Releases the tokenizer, unless a thread is using it; returns whether memory was freed."""
        # The budget may be locked here, and the thread that tokenizes may be waiting for the budget.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            # Tokenizing takes leases, and a lease may ask for the memory of this tokenizer.
            if self._busy or not self._lease.nbytes:
                return False
            self._tables.release()
            self._lease.release()
            return True
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._tables.release()
            self._forget()
            self._lease.release()

    def _load(self) -> None:
        started = time.perf_counter()
        self._tables.ready()
        self._load_s = time.perf_counter() - started

    @contextmanager
    def _ready(self) -> Iterator[PairTokenizer]:
        with self._lock:
            self._busy = True  # the lease for loading must not release this tokenizer
            try:
                if self._lease.nbytes == 0:
                    self._lease.resize(max(self.nbytes, self._tables.loading_nbytes))
                    try:
                        self._load()
                    finally:
                        self._lease.resize(self.nbytes if self._tables.loaded else 0)
                yield self._tokenizer
            finally:
                self._busy = False
