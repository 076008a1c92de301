"""Packing: turns a Hugging Face folder into a directory that the runtime streams layer by layer."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edge.errors import ModelError, StorageError
from edge.models.architectures import detect_head, family_of, token_limit
from edge.models.checkpoint import DESCRIPTIONS, INDEX, Checkpoint, WeightSource, read_json
from edge.models.family import Family
from edge.models.layout import Layout, PackWriter, Progress, header_of
from edge.models.manifest import DATA, TOKENIZER, Manifest, file_sha256
from edge.models.packed import PackedModel
from edge.models.partial import VOCABULARY, build
from edge.models.spec import MATRIX_DTYPE, HeadSpec, ModelSpec, Precision
from edge.models.staging import Staging
from edge.models.weights import WeightPacker


def pack(
    source_dir: str | Path,
    out_dir: str | Path,
    precision: Precision = "int8",
    *,
    name: str | None = None,
    head: HeadSpec | None = None,
    origin: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> PackedModel:
    """Packs a Hugging Face checkpoint. Packing takes about 120 MB of memory for a model of any size. Before that, the
    check of the tokenizer takes as much as the loaded tokenizer (250 MB for the largest).

    Args:
        source_dir: folder with config.json, model.safetensors (or shards) and tokenizer.json.
        out_dir: directory of the pack, which appears whole or not at all. An older pack there is replaced.
        precision: of the matrices and the embedding table; int8 is symmetric per output column and per row.
        name: the model's name; the source folder's name if None.
        head: the part that scores or embeds; read from the folder if None.
        origin: the origin of the folder, kept in `edge.json`.
        progress: called with the bytes written and the total bytes.

    Raises:
        ModelError: the checkpoint is incomplete, of an unknown architecture or has unusable weights.
        StorageError: the disk refused; nothing is left behind.
    """
    folder = Path(source_dir)
    check_precision(precision)
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    config = read_json(folder / "config.json")
    family = family_of(config)
    with Staging(out_dir) as staging, Checkpoint(folder) as checkpoint:
        if head is None:
            head = detect_head(folder, family, family.canonical(checkpoint.shapes))
        spec = family.spec_from_config(config, head, precision)
        spec = replace(spec, max_tokens=token_limit(folder, spec.max_tokens))
        files = [*checkpoint.files, *(folder / file for file in (*DESCRIPTIONS, INDEX) if (folder / file).is_file())]
        sources = {file.relative_to(folder).as_posix(): file_sha256(file) for file in files}
        pack_weights(
            staging,
            checkpoint,
            family,
            spec,
            tokenizer=folder / TOKENIZER,
            name=name or folder.resolve().name,
            sources=sources,
            origin=origin or {},
            progress=progress,
        )
    return PackedModel.open(out_dir)


def check_precision(precision: str) -> None:
    """Refuses an unknown precision.

    Raises:
        ModelError: the precision is unknown; the message names the known ones.
    """
    if precision not in MATRIX_DTYPE:
        raise ModelError(f"precision {precision!r} is not known; choose one of {', '.join(MATRIX_DTYPE)}")


def pack_weights(
    staging: Staging,
    source: WeightSource,
    family: Family,
    spec: ModelSpec,
    *,
    tokenizer: Path,
    name: str,
    sources: Mapping[str, str],
    origin: Mapping[str, str],
    progress: Progress | None = None,
) -> None:
    """Writes and commits a pack of the weights from `source`.

    Raises:
        ModelError, StorageError: as `pack`.
    """
    packer = WeightPacker(source, family, spec, _token_rows(tokenizer, spec))
    header = header_of(spec)
    layout = Layout.of(spec, len(header))
    with PackWriter(staging.path / DATA, layout, header, progress) as writer:
        packer.write(writer, layout)
    try:
        if tokenizer.parent != staging.path:
            shutil.copyfile(tokenizer, staging.path / TOKENIZER)
        partial = build(staging.path / TOKENIZER, staging.path / VOCABULARY)
    except OSError as error:
        raise StorageError(f"{tokenizer} cannot be copied: {error.strerror}") from error
    Manifest(
        name=name,
        spec=spec,
        sources=sources,
        origin=origin,
        blocks=writer.extents,
        tables=layout.tables,
        data_nbytes=layout.nbytes,
        tokenizer_sha256=file_sha256(staging.path / TOKENIZER),
        vocabulary_sha256=file_sha256(staging.path / VOCABULARY) if partial else None,
    ).write(staging.path)
    staging.commit()


def _token_rows(path: Path, spec: ModelSpec) -> tuple[int, int] | None:
    """Checks that the tokenizer belongs to the model, and finds the ids of the `no` and `yes` tokens."""
    if not path.is_file():
        raise ModelError(f"{path.parent} has no {TOKENIZER}; a fast tokenizer's save_pretrained writes one")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path} cannot be read as a tokenizer ({error})") from error
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > spec.vocab:
        raise ModelError(f"{path} has {size:,} tokens, the embedding table only {spec.vocab:,} rows")
    if spec.head.kind != "yes-no":
        return None
    no, yes = tokenizer.token_to_id(spec.head.no_token), tokenizer.token_to_id(spec.head.yes_token)
    if no is None or yes is None:
        raise ModelError(f"{path} lacks the tokens {spec.head.no_token!r} and {spec.head.yes_token!r}")
    return no, yes
