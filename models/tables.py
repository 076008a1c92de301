"""A tokenizer's tables in memory: all of them, or only the pieces in use.

A vocabulary of 250,000 pieces takes 110-220 MB. A piece that is no substring of the text has no effect, so pieces stay
on disk, sorted by checksum, and a small tokenizer grows with its texts."""

from __future__ import annotations

import gc
import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edge.errors import CorruptBlock, ModelError, as_storage_error
from edge.models.clipping import inseparable, settled
from edge.models.manifest import file_sha256, remedy
from edge.models.spec import Architecture, ModelSpec
from edge.resident import anonymous_resident, trim_heap

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Ids = npt.NDArray[np.int32]

VOCABULARY = "vocabulary.npz"
_MEMBER = ".npy"
_TABLES = ("skeleton", "always", "crc", "order", "longest", "ends", "text", "score")
_WORTHWHILE = 60_000
_MOST_CHARS = 400_000
_CHARS_PER_WORD = 8
"""The cost of holding a word, in characters, in addition to the word's own characters."""

_SLICE = 1024
"""The substrings of so many characters are looked up together: about 16 substrings a character, of 270 bytes each."""


def build(tokenizer: Path, target: Path, smallest: int = _WORTHWHILE) -> bool:
    """Writes pieces as `PartialTokenizer` reads them; False if not a Unigram tokenizer of `smallest`."""
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    model = content["model"]
    pieces = model.get("vocab")
    if model.get("type") != "Unigram" or model.get("byte_fallback") or model.get("unk_id") is None:
        return False
    # Added tokens that are matched after normalization cannot be split off before it.
    if len(pieces) < smallest or any(token["normalized"] for token in content["added_tokens"]):
        return False
    model["vocab"] = []
    always = {pieces[model["unk_id"]][0], *(token["content"] for token in content["added_tokens"])}
    # The cost of an unknown character is derived from the lowest score.
    always.add(min(pieces, key=lambda piece: float(piece[1]))[0])
    if not always <= {piece for piece, _ in pieces}:
        return False
    encoded = [piece.encode() for piece, _ in pieces]
    crcs = np.array([zlib.crc32(piece) for piece in encoded], np.uint32)
    order = np.argsort(crcs, kind="stable")
    np.savez(
        target,
        skeleton=np.frombuffer(json.dumps(content).encode(), np.uint8),
        always=np.array([n for n, (piece, _) in enumerate(pieces) if piece in always], np.int32),
        crc=crcs[order],
        order=order.astype(np.int32),
        longest=np.array(max(len(piece) for piece, _ in pieces)),
        ends=np.cumsum([len(piece) for piece in encoded], dtype=np.int64),
        text=np.frombuffer(b"".join(encoded), np.uint8),
        score=np.array([score for _, score in pieces], np.float64),
    )
    return True


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json; ModelError if it is none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path} cannot be read as a tokenizer ({error})") from error


class PartialTokenizer:
    """A tokenizer that holds the pieces which the texts so far can use. Its ids are positions in `ids`, which has those
    of the whole vocabulary; `longest` is its longest piece, in characters."""

    def __init__(self, path: Path) -> None:
        """Reads the description, and the pieces that are always needed. CorruptBlock if the file is damaged."""
        self._path = path
        tables = self._tables("skeleton", "always", "longest")
        self._skeleton: dict[str, Any] = json.loads(tables["skeleton"].tobytes())
        self._always = tables["always"]
        self.longest = int(tables["longest"])
        contents = [re.escape(token["content"]) for token in self._skeleton["added_tokens"]]
        self._added = re.compile("|".join(sorted(contents, key=len, reverse=True)))
        self._unknown = int(self._skeleton["model"]["unk_id"])
        self._forget()

    def provide(self, texts: Iterable[str]) -> None:
        """Adds the pieces that `texts` can use. A tokenizer that would become too large drops all earlier pieces."""
        words = self._words_of(texts)
        new = words - self._words
        if not new:
            return
        if self._held + _size(new) > _MOST_CHARS:
            self._forget()
            new = words
        found = np.union1d(self.ids, self._find(new))
        self._words |= new
        self._held += _size(new)
        if len(found) > len(self.ids):
            self._rebuild(found.astype(np.int32))

    def _forget(self) -> None:
        self._words: set[str] = set()
        self._held = 0
        self._rebuild(self._always)

    def _rebuild(self, ids: npt.NDArray[np.int32]) -> None:
        from tokenizers import Tokenizer

        tables = self._tables("ends", "text", "score")
        pieces = [[_bytes(tables, n).decode(), float(tables["score"][n])] for n in ids.tolist()]
        position = {piece[0]: n for n, piece in enumerate(pieces)}
        model = {**self._skeleton["model"], "vocab": pieces, "unk_id": int(np.searchsorted(ids, self._unknown))}
        added = [{**token, "id": position[token["content"]]} for token in self._skeleton["added_tokens"]]
        content = {**self._skeleton, "model": model, "added_tokens": added, "truncation": None, "padding": None}
        try:
            self.tokenizer: Tokenizer = Tokenizer.from_str(json.dumps(content))
        except Exception as error:
            raise ModelError(f"{self._path} cannot be read as a tokenizer ({error})") from error
        self.ids = ids

    def _words_of(self, texts: Iterable[str]) -> set[str]:
        normalizer, splitter = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer
        words: set[str] = set()
        for text in texts:
            for part in self._added.split(text):
                part = normalizer.normalize_str(part) if normalizer is not None else part
                words.update(word for word, _ in splitter.pre_tokenize_str(part)) if splitter else words.add(part)
        return words

    def _find(self, words: Iterable[str]) -> npt.NDArray[np.int32]:
        tables = self._tables("crc", "order", "ends", "text")
        found: set[int] = set()
        for parts in _slices(words, self.longest):
            found |= _found(tables, parts, self.longest)
        return np.array(sorted(found), np.int32)

    def _tables(self, *names: str) -> dict[str, npt.NDArray[Any]]:
        return read_tables(self._path, names)


def _size(words: Iterable[str]) -> int:
    return sum(len(word) + _CHARS_PER_WORD for word in words)


def _slices(words: Iterable[str], longest: int) -> Iterator[list[str]]:
    """Splits words into lists of about `_SLICE` characters, in parts that overlap by the longest piece."""
    parts: list[str] = []
    size = 0
    for word in words:
        for start in range(0, max(1, len(word) - longest + 1), _SLICE):
            part = word[start : start + _SLICE + longest - 1]
            parts.append(part)
            size += len(part)
            if size >= _SLICE:
                yield parts
                parts, size = [], 0
    yield parts


def _found(tables: dict[str, npt.NDArray[Any]], words: Iterable[str], longest: int) -> set[int]:
    """The pieces that are substrings of `words`, as positions in the vocabulary."""
    substrings = {
        word[start:end]
        for word in words
        for start in range(len(word))
        for end in range(start + 1, min(start + longest, len(word)) + 1)
    }
    encoded = [substring.encode() for substring in substrings]
    crcs = np.array([zlib.crc32(substring) for substring in encoded], np.uint32)
    first = np.searchsorted(tables["crc"], crcs, "left")
    last = np.searchsorted(tables["crc"], crcs, "right")
    return {
        candidate
        for n in np.flatnonzero(last > first).tolist()
        for candidate in tables["order"][first[n] : last[n]].tolist()
        # Different pieces may share a checksum: the text decides.
        if _bytes(tables, candidate) == encoded[n]
    }


def read_tables(path: Path, names: Iterable[str] = _TABLES) -> dict[str, npt.NDArray[Any]]:
    """The named tables of the file. CorruptBlock if it is damaged."""
    try:
        # The archive holds a checksum of every member, which zipfile compares only when the whole member is read. numpy
        # reads less if a damaged header names a smaller table.
        with zipfile.ZipFile(path) as archive:
            return {name: _table(archive.read(name + _MEMBER)) for name in names}
    except Exception as error:
        raise CorruptBlock(f"{path} is corrupt ({error}); {remedy(path.parent)}") from error


def _table(member: bytes) -> npt.NDArray[Any]:
    """The array that `numpy.savez` wrote, as a view of its bytes."""
    file = io.BytesIO(member)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return np.frombuffer(member, dtype, offset=file.tell()).reshape(shape)


def _bytes(tables: dict[str, npt.NDArray[Any]], number: int) -> bytes:
    start = int(tables["ends"][number - 1]) if number else 0
    return tables["text"][start : int(tables["ends"][number])].tobytes()


_BYTES_PER_TOKEN: dict[Architecture, tuple[int, int]] = {
    **dict.fromkeys(("bert", "distilbert", "electra", "mpnet", "nomic-bert"), (260, 300)),
    **dict.fromkeys(("jina-bert", "modernbert", "qwen2", "qwen3"), (330, 720)),
    **dict.fromkeys(("deberta", "gemma3", "gte", "xlm-roberta"), (900, 940)),
}
"""Memory of a tokenizer per token of its vocabulary, measured with tokenizers 0.23: when it is loaded, and while it is
being loaded, when the text of its file and the parsed tables exist at the same time."""
_PARTIAL_NBYTES = 16 << 20
"""Memory of a partial tokenizer: its pieces after a few requests, and the tables it reads to find new pieces."""


class Tables:
    """The tokenizer of a tokenizer.json. It is loaded at first use, and again after `release`. Not thread-safe."""

    def __init__(self, path: Path, spec: ModelSpec, sha256: str | None = None) -> None:
        """Reads no file yet. The table of a large vocabulary's pieces may lie beside `path`, the tokenizer.json."""
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
        return self._tokenizer is not None or self._partial is not None

    @property
    def nbytes(self) -> int:
        """Bytes of the loaded tables: measured, or estimated; of a partial tokenizer what it may grow to."""
        if self._pieces.is_file():
            return _PARTIAL_NBYTES
        return self._measured or self._spec.vocab * _BYTES_PER_TOKEN[self._spec.architecture][0]

    @property
    def loading_nbytes(self) -> int:
        """Upper bound on the bytes of memory while the tables are being loaded."""
        if self._pieces.is_file():
            return _PARTIAL_NBYTES
        return max(self._measured, self._spec.vocab * _BYTES_PER_TOKEN[self._spec.architecture][1])

    @property
    def inseparable(self) -> list[str] | None:
        """The strings that must not be cut in two, see `clipping.inseparable`."""
        if not self._looked:
            self._inseparable = inseparable(self.ready())
            self._looked = True
        return self._inseparable

    def ready(self, texts: Sequence[str] = ()) -> Tokenizer:
        """The tokenizer with all pieces that `texts` need. CorruptBlock or ModelError."""
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
        if self.loaded:
            self._tokenizer = self._partial = None
            gc.collect()
            trim_heap()

    @property
    def _pieces(self) -> Path:
        return self._path.parent / VOCABULARY

    def _whole(self) -> Tokenizer:
        with as_storage_error(f"{self._path} cannot be read"):
            changed = self._sha256 is not None and file_sha256(self._path) != self._sha256
        if changed:
            raise CorruptBlock(f"{self._path} does not match its sha256; {remedy(self._path.parent)}")
        before = anonymous_resident()
        tokenizer = read_tokenizer(self._path)
        # Files keep the settings with which they were saved: that of all-MiniLM-L6-v2 pads and truncates to 128 tokens.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        trim_heap()
        self._measured = max(anonymous_resident() - before, self._path.stat().st_size)
        return tokenizer

    def _longest_piece(self) -> int:
        if self._partial is not None:
            return self._partial.longest
        if not self._longest:
            tokenizer = self.ready()
            # A dictionary of the whole vocabulary would take tens of megabytes, so the pieces are read one by one.
            pieces = (tokenizer.id_to_token(n) for n in range(tokenizer.get_vocab_size()))
            self._longest = max(len(piece or "") for piece in pieces)
        return self._longest
