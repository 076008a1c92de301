"""The folder of a packed model, described by `edge.json`: built beside its target, flushed, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from glob import escape
from pathlib import Path
from typing import Any

from edge.blocks import BlockId, Extent, RowTable
from edge.errors import CorruptBlock, ModelError, StorageError, as_storage_error
from edge.files.named_file import make_folder, read_small
from edge.files.sealed import CHECKSUM, flush, is_abandoned, sealed, unsealed
from edge.models.spec import ModelSpec

MANIFEST = "edge.json"
_PREVIOUS = ".previous"
_READERS = 5
"""The number of times that readers may restore the old pack during one swap before the swap fails."""


class Staging:
    """A temporary sibling directory of `target`, removed on exit without `commit`.

    The swap is two renames. After a kill between them the old pack is left under a hidden name; every reader first
    calls `is_pack` or `recover`."""

    def __init__(self, target: str | Path) -> None:
        """Prepares to write `target`. StorageError if it is neither a pack nor an empty directory."""
        self.target = Path(os.path.abspath(target))
        if self.target.exists() and not _replaceable(self.target):
            raise StorageError(f"{self.target} exists and is not a packed model; it is not overwritten")
        self.path = self.target.parent / f".{self.target.name}.packing-{os.getpid()}"

    def __enter__(self) -> Staging:
        with as_storage_error(f"{self.path} cannot be created"):
            recover(self.target)
            self._remove_abandoned()
            shutil.rmtree(self.path, ignore_errors=True)
            make_folder(self.path.parent)
            self.path.mkdir()
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self) -> None:
        """Renames the directory to `target`. StorageError if the disk refuses; the old pack is still there."""
        previous = _previous(self.target)
        with as_storage_error(f"{self.target} cannot be put in place"):
            for file in self.path.iterdir():
                flush(file)
            flush(self.path)
            replaced = self.target.exists()
            if replaced:
                shutil.rmtree(previous, ignore_errors=True)
                os.rename(self.target, previous)
            try:
                self._appear(previous)
            except OSError:
                if replaced:
                    recover(self.target)
                raise
            flush(self.target.parent)
            shutil.rmtree(previous, ignore_errors=True)

    def _appear(self, previous: Path) -> None:
        """Renames the new directory to `target`, and an old pack that a reader has restored meanwhile aside."""
        for _ in range(_READERS):
            with suppress(OSError):
                os.rename(self.path, self.target)
                return
            if previous.exists() or not _replaceable(self.target):
                break
            os.rename(self.target, previous)
        os.rename(self.path, self.target)

    def _remove_abandoned(self) -> None:
        for path in self.target.parent.glob(f".{escape(self.target.name)}.packing-*"):
            if is_abandoned(path, "-"):
                shutil.rmtree(path, ignore_errors=True)


def recover(target: Path) -> None:
    """Renames a pack back to `target` if a process was killed in the middle of a swap."""
    previous = _previous(target)
    if os.path.isdir(previous) and not os.path.exists(target):  # Path's methods raise OSError if a name is too long
        try:
            os.rename(previous, target)
        except OSError as error:
            if target.exists():
                return  # another process has renamed it
            raise StorageError(
                f"replacing {target} was interrupted, and {previous} cannot be renamed back to it: {error.strerror}"
            ) from error


def recover_all(folder: Path) -> None:
    for previous in sorted(folder.glob(f".*{_PREVIOUS}")):
        recover(folder / previous.name[1 : -len(_PREVIOUS)])


def is_pack(target: Path) -> bool:
    """Whether there is a packed model at a path; first undoes an interrupted replacement."""
    recover(target)
    return os.path.isfile(target / MANIFEST)


def _previous(target: Path) -> Path:
    return target.parent / f".{target.name}{_PREVIOUS}"


def _replaceable(target: Path) -> bool:
    return target.is_dir() and ((target / MANIFEST).is_file() or not any(target.iterdir()))


FORMAT = "edge-pack"
VERSION = 1
DATA = "model.safetensors"
TOKENIZER = "tokenizer.json"
BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True, slots=True)
class PackManifest:
    """The content of `edge.json`: `sources` are the sha256 of the files it was packed from, `vocabulary_sha256` that of
    the table of the tokenizer's pieces, if there is one."""

    name: str
    spec: ModelSpec
    sources: Mapping[str, str]
    origin: Mapping[str, str]
    blocks: Mapping[BlockId, Extent]
    tables: Mapping[str, RowTable]
    data_nbytes: int
    tokenizer_sha256: str
    vocabulary_sha256: str | None = None

    def write(self, folder: Path) -> None:
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "kind": kind_of(self.spec),
            "precision": self.spec.layer.precision,
            "spec": self.spec.to_json(),
            "sources": dict(self.sources),
            "origin": dict(self.origin),
            "data": {"file": DATA, "nbytes": self.data_nbytes},
            "tokenizer": {"file": TOKENIZER, "sha256": self.tokenizer_sha256},
            "blocks": [{"kind": b.kind, "index": b.index, **asdict(e)} for b, e in self.blocks.items()],
            "tables": {name: asdict(table) for name, table in self.tables.items()},
        }
        if self.vocabulary_sha256 is not None:
            content["tokenizer"]["vocabulary_sha256"] = self.vocabulary_sha256
        with as_storage_error(f"{folder / MANIFEST} cannot be written"):
            (folder / MANIFEST).write_bytes(sealed(content))

    @classmethod
    def read(cls, folder: Path) -> tuple[PackManifest, str]:
        """Reads `edge.json`; returns it with the digest of its content. ModelError for no pack or another format,
        CorruptBlock for a wrong checksum."""
        path = folder / MANIFEST
        try:
            data = read_small(path)
            content = json.loads(data)
        except FileNotFoundError:
            raise ModelError(_not_a_pack(folder)) from None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise CorruptBlock(f"{path} is corrupt: it is not JSON ({error}); {remedy(folder)}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ModelError(f"{path} does not describe a packed model (its format is not {FORMAT!r})")
        if content.get("version") != VERSION:
            raise ModelError(
                f"{path} has format version {content.get('version')}, this program reads version {VERSION}; "
                "pack the model again with `edge models pack`"
            )
        try:
            unsealed(data)
        except ValueError as error:
            raise CorruptBlock(f"{path} is corrupt: {error}; {remedy(folder)}") from error
        try:
            manifest = cls(
                name=_text(content["name"]),
                spec=ModelSpec.from_json(content["spec"]),
                sources=_texts(content["sources"]),
                origin=_texts(content["origin"]),
                blocks={
                    BlockId(_text(item["kind"]), item["index"]): Extent(item["offset"], item["nbytes"], item["crc32"])
                    for item in content["blocks"]
                },
                tables={name: RowTable(**table) for name, table in content["tables"].items()},
                data_nbytes=content["data"]["nbytes"],
                tokenizer_sha256=_text(content["tokenizer"]["sha256"]),
                vocabulary_sha256=content["tokenizer"].get("vocabulary_sha256"),
            )
            for block, extent in manifest.blocks.items():
                _counts((block.index, *astuple(extent)))
            for table in manifest.tables.values():
                _counts(astuple(table))
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(f"{path} does not describe a packed model ({error!r}); {remedy(folder)}") from None
        return manifest, content[CHECKSUM]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _texts(value: Mapping[str, str]) -> Mapping[str, str]:
    return {_text(key): _text(text) for key, text in value.items()}


def _counts(values: Iterable[object]) -> None:
    for value in values:
        if type(value) is not int or value < 0:
            raise TypeError(f"{value!r:.40} is no size or position")


def remedy(folder: Path) -> str:
    """The command that restores a damaged model, as the end of an error message."""
    if folder.parent == BUNDLED:
        return "this model comes with edge-rag: install edge-rag again"
    return f"get the model in {folder} again with `edge models pull` or `edge models pack`"


def kind_of(spec: ModelSpec) -> str:
    """`reranker` or `embedder`."""
    return "reranker" if spec.head.scores else "embedder"


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _not_a_pack(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} does not exist, or is not a folder"
    if (folder / "config.json").is_file() or (folder / "modules.json").is_file():
        return f"{folder} is a checkpoint that is not packed yet; pack it with `edge models pack {folder} OUT`"
    return f"{folder} is not a packed model: it has no {MANIFEST}"
