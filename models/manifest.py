"""`edge.json`: what a packed model says about itself, with a checksum over its own content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.blocks import BlockId, Extent, RowTable
from edge.errors import CorruptBlock, ModelError, StorageError
from edge.models.spec import ModelSpec
from edge.models.staging import MANIFEST

FORMAT = "edge-pack"
VERSION = 1
DATA = "model.safetensors"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `edge.json`.

    Attributes:
        name: what the model is called.
        spec: its description.
        sources: sha256 of each file it was packed from.
        origin: where those files came from, such as a hub repository and its revision.
        blocks: every block's place and checksum.
        tables: the row tables.
        data_nbytes: size of the data file.
        tokenizer_sha256: of the tokenizer.json beside it.
    """

    name: str
    spec: ModelSpec
    sources: Mapping[str, str]
    origin: Mapping[str, str]
    blocks: Mapping[BlockId, Extent]
    tables: Mapping[str, RowTable]
    data_nbytes: int
    tokenizer_sha256: str

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
        content["sha256"] = _digest(content)
        try:
            (folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{folder / MANIFEST} cannot be written: {error.strerror}") from error

    @classmethod
    def read(cls, folder: Path) -> tuple[Manifest, str]:
        """Reads `edge.json` of a packed model, and returns it with the digest of its content.

        Raises:
            ModelError: the folder is no packed model, or one of a format that this version does not read.
            CorruptBlock: the content does not match its checksum.
        """
        path = folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(_not_a_pack(folder)) from None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise CorruptBlock(f"{path} is corrupt: it is not JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ModelError(f"{path} does not describe a packed model (its format is not {FORMAT!r})")
        if content.get("version") != VERSION:
            raise ModelError(
                f"{path} has format version {content.get('version')}, this program reads version {VERSION}; "
                "pack the model again with `edge models pack`"
            )
        digest = content.pop("sha256", None)
        try:
            intact = digest == _digest(content)
        except RecursionError:  # nested just so deeply that it could be read
            intact = False
        if not intact:
            raise CorruptBlock(f"{path} is corrupt: its content does not match its checksum")
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
        )
        return manifest, digest


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


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _not_a_pack(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} does not exist, or is not a folder"
    if (folder / "config.json").is_file():
        return f"{folder} is a checkpoint that is not packed yet; pack it with `edge models pack {folder} OUT`"
    return f"{folder} is not a packed model: it has no {MANIFEST}"
