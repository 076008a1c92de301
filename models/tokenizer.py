"""Token ids of (query, document) pairs and of single texts, from a tokenizer.json through `tokenizers`.

Ids equal those of the model's own use in Hugging Face transformers: for encoders the pair template with
`truncation="only_second"`; for Qwen3-Reranker the model card's `prefix + body + suffix`, where the body is cut.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edge.errors import CorruptBlock, InputError, ModelError, StorageError
from edge.models.clipping import Clip
from edge.models.partial import VOCABULARY, PartialTokenizer
from edge.models.spec import Architecture, ModelSpec
from edge.models.tokens import Ids, TokenBatch
from edge.resident import anonymous_resident, trim_heap

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTES_PER_TOKEN: dict[Architecture, int] = {"bert": 260, "xlm-roberta": 900, "qwen3": 330}
"""Memory of a loaded tokenizer by token of its vocabulary, measured with tokenizers 0.23 (WordPiece, Unigram,
byte-level BPE)."""
_PARTIAL_NBYTES = 16 << 20
"""Memory of a partial tokenizer: what it holds after a few requests, and the tables it reads to find new pieces."""

_GROUP_CHARS = 128 << 10
"""Texts are handed to the tokenizer in groups of this many characters: an encoding takes some 150 bytes per token."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a tokenizer puts around one text, or around two: `before`, `between` and `after`, as (ids, types), and the
    types of the texts' own tokens."""

    before: tuple[list[int], list[int]]
    between: tuple[list[int], list[int]]
    after: tuple[list[int], list[int]]
    types: tuple[int, int]

    @property
    def size(self) -> int:
        return len(self.before[0]) + len(self.between[0]) + len(self.after[0])


class PairTokenizer:
    """The tokenizer of one packed model. Loads at first use, and again after `release`. Not thread-safe.

    Where the pack has a table of a large vocabulary's pieces beside tokenizer.json, only the pieces that the texts can
    use are loaded (`PartialTokenizer`): the ids are the same.
    """

    def __init__(self, path: str | Path, spec: ModelSpec, *, sha256: str | None = None) -> None:
        """Nothing is read yet.

        Args:
            path: tokenizer.json.
            sha256: what the file must have; not checked if None.
        """
        self.path = Path(path)
        self.spec = spec
        self._sha256 = sha256
        self._tokenizer: Tokenizer | None = None
        self._partial: PartialTokenizer | None = None
        self._frames: dict[bool, _Frame] = {}
        self._measured = 0

    @property
    def loaded(self) -> bool:
        """Whether the tables are in memory."""
        return self._tokenizer is not None or self._partial is not None

    @property
    def nbytes(self) -> int:
        """Bytes of memory the tables take while loaded: measured at the last load, estimated before the first; of a
        partial tokenizer, what it may grow to."""
        if self._table.is_file():
            return _PARTIAL_NBYTES
        return self._measured or self.spec.vocab * _BYTES_PER_TOKEN[self.spec.architecture]

    def load(self) -> None:
        """Loads the tables, if they are not loaded.

        Raises:
            CorruptBlock: the file does not match its sha256.
            ModelError: it is no tokenizer.
        """
        self._loaded()

    @property
    def _table(self) -> Path:
        return self.path.parent / VOCABULARY

    def release(self) -> None:
        """Gives the tables' memory back; the next use loads them again."""
        if self.loaded:
            self._tokenizer = self._partial = None
            gc.collect()
            trim_heap()

    close = release

    def encode_pairs(self, query: str, docs: Sequence[str], max_tokens: int | None = None) -> TokenBatch:
        """Sequences that a reranker scores, one per document.

        Only documents are truncated, with one exception: a query longer than half of what `max_tokens` leaves beside
        special tokens and template is cut to that half, whatever the documents' lengths, so that a score never
        depends on the other candidates. A template's suffix is never cut.

        Args:
            max_tokens: of a whole sequence, prefix and special tokens included; the model's own limit if None.

        Raises:
            InputError: an empty query, text that is not valid Unicode, or a `max_tokens` that leaves no room.
        """
        _check_text(query, "the query")
        if not query.strip():
            raise InputError("the query is empty")
        for number, doc in enumerate(docs):
            _check_text(doc, f"document {number}")
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
        return self._assemble(
            list(self._many(docs, room - len(kept))), opening, types, frame.types[1], after, len(kept) < len(ids)
        )

    def encode_texts(self, texts: Sequence[str], *, query: bool = False, max_tokens: int | None = None) -> TokenBatch:
        """Sequences that an embedder embeds, each truncated at its end.

        Args:
            query: the texts are queries, which instruction-tuned embedders mark with their own prefix.
            max_tokens: of a whole sequence, special tokens included; the model's own limit if None.

        Raises:
            InputError: a text is not valid Unicode or has no token.
        """
        for number, text in enumerate(texts):
            _check_text(text, f"text {number}")
        lead = self.spec.head.query_prefix if query else self.spec.head.document_prefix
        limit = min(max_tokens or self.spec.max_tokens, self.spec.max_tokens)
        frame = self._frame(pair=False)
        if limit <= frame.size:
            raise InputError(f"{limit} tokens leave no room for a text")
        opening = np.array(frame.before[0], np.int32)
        own = list(self._many([lead + text for text in texts] if lead else texts, limit - frame.size))
        batch = self._assemble(own, opening, frame.before[1], frame.types[0], frame.after, False)
        if len(batch) and not batch.lengths.all():
            raise InputError(f"text {int(np.argmin(batch.lengths))} has no tokens")
        return batch

    def _templated(self, query: str, docs: Sequence[str], limit: int) -> TokenBatch:
        head = self.spec.head
        # Byte-level BPE joins a space to the word after it: it belongs to the document's side of the cut, and the
        # ids are then those of the unbroken text.
        infix = head.infix.rstrip(" ")
        space = head.infix[len(infix) :]
        suffix = self._ids(head.suffix, limit)
        room = limit - len(self._ids(head.prefix, limit)) - len(self._ids(infix, limit)) - len(suffix)
        if room < 2:
            raise InputError(f"{limit} tokens leave no room beside the template's {limit - room}")
        clip = Clip(query, room // 2)
        encoding = self._loaded([clip.text]).encode(clip.text, add_special_tokens=False)
        while clip.cut and len(encoding.ids) <= room // 2:
            clip = clip.longer()
            encoding = self._loaded([clip.text]).encode(clip.text, add_special_tokens=False)
        cut = len(encoding.ids) > room // 2
        if cut:
            query = query[: encoding.offsets[room // 2 - 1][1]]
        prefix = self._ids(head.prefix + query + infix, limit)
        own = self._many([space + doc for doc in docs], limit - len(prefix) - len(suffix))
        nothing: list[int] = []
        batch = self._assemble(list(own), np.empty(0, np.int32), nothing, 0, (suffix.tolist(), [0] * len(suffix)), cut)
        return TokenBatch(prefix, batch.tokens, batch.lengths, None, cut)

    def _assemble(
        self,
        own: list[Ids],
        opening: Ids,
        opening_types: list[int],
        own_type: int,
        after: tuple[list[int], list[int]],
        cut: bool,
    ) -> TokenBatch:
        ending = np.array(after[0], np.int32)
        lengths = np.array([len(opening) + len(ids) + len(ending) for ids in own], np.int32)
        tokens = np.concatenate([part for ids in own for part in (opening, ids, ending)] or [opening[:0]])
        types: npt.NDArray[np.uint8] | None = None
        if self.spec.token_types > 1:
            pieces = [[*opening_types, *[own_type] * len(ids), *after[1]] for ids in own]
            types = np.array([kind for piece in pieces for kind in piece], np.uint8)
        return TokenBatch(np.empty(0, np.int32), tokens, lengths, types, cut)

    def _ids(self, text: str, most: int) -> Ids:
        return next(self._many([text], most + 1))

    def _many(self, texts: Sequence[str], most: int) -> Iterator[Ids]:
        """The first `most` ids of each text, without special tokens."""
        for group in _groups([Clip(text, most) for text in texts]):
            for start, ids in zip(group, self._encode([clip.text for clip in group]), strict=True):
                clip = start
                while len(ids) < most and clip.cut:
                    clip = clip.longer()
                    ids = self._encode([clip.text])[0]
                yield ids[:most]

    def _encode(self, texts: list[str]) -> list[Ids]:
        encodings = self._loaded(texts).encode_batch_fast(texts, add_special_tokens=False)
        ids = [np.array(encoding.ids, np.int32) for encoding in encodings]
        return ids if self._partial is None else [self._partial.ids[each] for each in ids]

    def _frame(self, pair: bool) -> _Frame:
        if pair not in self._frames:
            tokenizer = self._loaded(["a", "b"])
            # Of a partial tokenizer too, the special tokens' ids are the model's: its template states them.
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

    def _loaded(self, texts: Sequence[str] = ()) -> Tokenizer:
        """The tokenizer, with all that `texts` need."""
        if not self.loaded:
            # Else the library starts a pool of threads whose size cannot be set per call, whose memory nobody
            # counts, and which it warns about after every fork. One thread encodes a million tokens a second.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            if self._table.is_file():
                self._partial = PartialTokenizer(self._table)
        if self._partial is not None:
            self._partial.provide(texts)
            return self._partial.tokenizer
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            if self._sha256 is not None and self._digest() != self._sha256:
                raise CorruptBlock(f"{self.path} does not match its sha256")
            before = anonymous_resident()
            try:
                tokenizer = Tokenizer.from_file(str(self.path))
            except Exception as error:
                raise ModelError(f"{self.path} cannot be read as a tokenizer ({error})") from error
            # Files carry the settings of whoever saved them: all-MiniLM-L6-v2's pads and cuts to 128 tokens.
            tokenizer.no_truncation()
            tokenizer.no_padding()
            trim_heap()
            self._measured = max(anonymous_resident() - before, self.path.stat().st_size)
            self._tokenizer = tokenizer
        return self._tokenizer

    def _digest(self) -> str:
        try:
            return hashlib.sha256(self.path.read_bytes()).hexdigest()
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from error


def _groups(clips: list[Clip]) -> Iterator[list[Clip]]:
    group: list[Clip] = []
    size = 0
    for clip in clips:
        if group and size + len(clip.text) > _GROUP_CHARS:
            yield group
            group, size = [], 0
        group.append(clip)
        size += len(clip.text)
    if group:
        yield group


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{what} is {type(text).__name__}, text is needed")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{what} is not valid Unicode: character {error.start} is half of a pair") from None
