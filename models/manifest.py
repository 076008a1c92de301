"""`edge.json`: the description of a packed model, with a checksum over its own content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.blocks import BlockId, Extent, RowTable
from edge.errors import CorruptBlock, ModelError, StorageError
from edge.files.input_file import read_small
from edge.files.sealed import CHECKSUM, sealed, unsealed
from edge.models.spec import ModelSpec
from edge.models.staging import MANIFEST

FORMAT = "edge-pack"
VERSION = 1
DATA = "model.safetensors"
TOKENIZER = "tokenizer.json"
BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `edge.json`.

    Attributes:
        name: the model's name.
        spec: the model's shapes.
        sources: sha256 of each file that the model was packed from.
        origin: the origin of those files, such as a hub repository and its revision.
        blocks: every block's place and checksum.
        tables: the row tables.
        data_nbytes: size of the data file.
        tokenizer_sha256: sha256 of the tokenizer.json beside `edge.json`.
        vocabulary_sha256: sha256 of the table of the tokenizer's pieces (see `partial`), if there is one.
    """

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
        """Writes `edge.json` into a folder.

        Raises:
            StorageError: the disk refuses.
        """
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
        try:
            (folder / MANIFEST).write_bytes(sealed(content))
        except OSError as error:
            raise StorageError(f"{folder / MANIFEST} cannot be written: {error.strerror}") from error

    @classmethod
    def read(cls, folder: Path) -> tuple[Manifest, str]:
        """Reads `edge.json` of a packed model, and returns it with the digest of its content.

        Raises:
            ModelError: the folder is no packed model, or has a format that this version does not read.
            CorruptBlock: the content does not match its checksum.
        """
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
        blocks = {
            BlockId(item["kind"], item["index"]): Extent(item["offset"], item["nbytes"], item["crc32"])
            for item in content["blocks"]
        }
        manifest = cls(
            name=content["name"],
            spec=ModelSpec.from_json(content["spec"]),
            sources=content["sources"],
            origin=content["origin"],
            blocks=blocks,
            tables={name: RowTable(**table) for name, table in content["tables"].items()},
            data_nbytes=content["data"]["nbytes"],
            tokenizer_sha256=content["tokenizer"]["sha256"],
            vocabulary_sha256=content["tokenizer"].get("vocabulary_sha256"),
        )
        return manifest, content[CHECKSUM]


def remedy(folder: Path) -> str:
    """The command that restores a damaged model, as the end of an error message."""
    if folder.parent == BUNDLED:
        return "this model comes with edge-rag: install edge-rag again"
    return f"get the model in {folder} again with `edge models pull` or `edge models pack`"


def kind_of(spec: ModelSpec) -> str:
    """`reranker` or `embedder`."""
    return "reranker" if spec.head.scores else "embedder"


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file, read a megabyte at a time."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _not_a_pack(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} does not exist, or is not a folder"
    if (folder / "config.json").is_file():
        return f"{folder} is a checkpoint that is not packed yet; pack it with `edge models pack {folder} OUT`"
    return f"{folder} is not a packed model: it has no {MANIFEST}"
