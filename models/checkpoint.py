"""A Hugging Face checkpoint, read a few rows at a time through the safetensors header, without mapping: a container's
limit would count mapped pages."""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.errors import ModelError, StorageError, as_storage_error
from edge.resident import Closing

Floats = npt.NDArray[np.float32]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MODULE = re.compile(r"(0_\w+|\d+_(Pooling|Dense|Normalize))/")
DESCRIPTIONS = (
    "config.json", "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json",
    "tokenizer_config.json", "tokenizer.json",
)  # fmt: skip
"""The files of a Hugging Face folder, or of one of its modules, that a pack needs, except the weights."""

_MAX_HEADER = 100 << 20
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class WeightSource(Protocol):
    """Where weights come from: a checkpoint on disk, or a random model."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of all tensors."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Floats:
        """Rows start ... stop of a tensor as fp32 [stop - start, ...]. ModelError for NaN or infinity."""


@dataclass(frozen=True, slots=True)
class _SafeTensor:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Checkpoint(Closing):
    """The safetensors file, or files, of one folder, open for reading."""

    def __init__(self, folder: str | Path) -> None:
        """Reads the headers. ModelError if there is no intact safetensors file."""
        self.folder = Path(folder)
        self.files = _weight_files(self.folder)
        self._entries: dict[str, _SafeTensor] = {}
        self._open: dict[Path, FileIO] = {}
        for path in self.files:
            entries = _header(path)
            if again := self._entries.keys() & entries.keys():
                raise ModelError(f"{path} has tensor {min(again)}, which is in another file as well")
            self._entries.update(entries)
        self._shapes = {name: entry.shape for name, entry in self._entries.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Floats:
        entry = self._entries[name]
        if entry.dtype not in _DTYPES:
            raise ModelError(f"{entry.path}: tensor {name} has type {entry.dtype}, which cannot be packed")
        dtype = np.dtype(_DTYPES[entry.dtype])
        rows = entry.shape[0] if entry.shape else 1
        stop = rows if stop is None else stop
        width = int(np.prod(entry.shape[1:], dtype=np.int64))
        raw = np.empty(((stop - start) * width,), dtype)
        self._pread(entry, name, raw.data.cast("B"), entry.offset + start * width * dtype.itemsize)
        values: Floats
        if entry.dtype == "BF16":
            wide = raw.astype(np.uint32)
            wide <<= 16
            values = wide.view(np.float32)
        else:
            with np.errstate(over="ignore"):
                values = raw.astype(np.float32, copy=False)
        if values.size and not (np.isfinite(values.min()) and np.isfinite(values.max())):
            raise ModelError(f"{entry.path}: tensor {name} has NaN or infinite values")
        return values.reshape(stop - start, *entry.shape[1:])

    def part(self, fused: Mapping[str, tuple[str, ...]]) -> None:
        """Replaces tensors that hold several in rows of equal number by their parts (see `Family.fused`)."""
        for name, entry in list(self._entries.items()):
            for ending, parts in fused.items():
                if name.endswith(ending) and entry.dtype in _DTYPES and entry.shape and not entry.shape[0] % len(parts):
                    shape = (entry.shape[0] // len(parts), *entry.shape[1:])
                    nbytes = math.prod(shape) * np.dtype(_DTYPES[entry.dtype]).itemsize
                    del self._entries[name], self._shapes[name]
                    for number, part in enumerate(parts):
                        own = name.removesuffix(ending) + part
                        self._entries[own] = replace(entry, shape=shape, offset=entry.offset + number * nbytes)
                        self._shapes[own] = shape

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _pread(self, entry: _SafeTensor, name: str, view: memoryview, offset: int) -> None:
        with as_storage_error(f"{entry.path}: reading tensor {name} failed"):
            file = self._open.get(entry.path)
            if file is None:
                file = self._open[entry.path] = entry.path.open("rb", buffering=0)
            file.seek(offset)
            done = 0
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise ModelError(f"{entry.path} ends inside tensor {name}")
                done += count


def _weight_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise ModelError(f"{folder / INDEX} has no weight_map from tensors to files")
        names = sorted(set(places.values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ModelError(f"{folder / INDEX} names {name!r}, which is not a safetensors file beside it")
            if not (folder / name).is_file():
                raise ModelError(f"{folder} lacks {name}, which {INDEX} names: the checkpoint is incomplete")
        if names:
            return [folder / name for name in names]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        raise ModelError(
            f"{folder} has PyTorch pickle weights only, and loading a pickle runs code from it; "
            "save the model again with `model.save_pretrained(folder)`, which writes model.safetensors"
        )
    raise ModelError(f"{folder} has no {SINGLE}")


def _header(path: Path) -> dict[str, _SafeTensor]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > min(size, _MAX_HEADER):
                raise ModelError(f"{path} is not a safetensors file, or its download is incomplete")
            header = json.loads(file.read(length))
            entries = {}
            places: list[tuple[int, int, str]] = []
            for name, item in header.items():
                if name == "__metadata__":
                    continue
                begin, end = item["data_offsets"]
                shape = tuple(item["shape"])
                if any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
                    raise ValueError(f"tensor {name} has a size or a position that is no whole number")
                if 8 + length + end > size:
                    raise ModelError(f"{path} is truncated: tensor {name} ends past the end of the file")
                entry = _SafeTensor(path, str(item["dtype"]), shape, 8 + length + begin)
                if entry.dtype in _DTYPES:
                    expected = math.prod(shape) * np.dtype(_DTYPES[entry.dtype]).itemsize
                    if end - begin != expected:
                        raise ModelError(f"{path}: tensor {name} has {end - begin} bytes, its shape needs {expected}")
                entries[name] = entry
                places.append((begin, end, name))
        for (_, end, name), (begin, _, other) in itertools.pairwise(sorted(places)):
            if begin < end:
                raise ModelError(f"{path}: tensors {name} and {other} overlap")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} has a broken safetensors header ({error})") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    return entries


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ModelError if there is none."""
    data = read_any_json(path)
    if not isinstance(data, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return data


def read_any_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error})") from error


def wanted(names: Iterable[str]) -> list[str]:
    """The files of a Hugging Face folder that a pack needs, small ones first, shards only without one file."""
    present = set(names)
    places = ("", *sorted({found[0] for name in present if (found := _MODULE.match(name))}))
    chosen = [place + name for place in places for name in DESCRIPTIONS if place + name in present]
    for place in places:
        if place + SINGLE in present:
            chosen.append(place + SINGLE)
            continue
        shard = re.compile(re.escape(place) + r"model-[^/]*\.safetensors")
        chosen += sorted(name for name in present if name == place + INDEX or shard.fullmatch(name))
    return chosen
