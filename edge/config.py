"""Settings: sizes and durations parsed once, one frozen `Config`, and where each value came from.

Precedence: flag (or argument) > environment `EDGE_*` > project file `.edge/config.toml` > user file > default.
A project file may have come with a cloned folder, so it cannot choose models, runtimes or places to write.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import platformdirs

from edge.errors import ConfigError
from edge.input_file import read_input

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_MODES = ("ranked", "top-k")
_THREADS_PER_CORE, _THREADS = 4, 16
"""Threads that can be asked for: so many on every core, and so many on any machine."""

_PROJECT_KEYS = frozenset({"memory", "threads", "mode", "threshold"})


def parse_size(text: str | int) -> int:
    """Bytes from `300MB`, `1.5 GiB`, `262144`. MB is 10**6 bytes and MiB 2**20, as the standards have it.

    Raises:
        ConfigError: not a positive size.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        if not isinstance(text, str):
            raise ConfigError(f"{text!r} is not a size; write it like 300MB, 1.5GB or 512MiB")
        match = _SIZE.fullmatch(text)
        unit = match and _UNITS.get(match[2].lower())
        if not match or not unit:
            raise ConfigError(f"{text!r} is not a size; write it like 300MB, 1.5GB or 512MiB")
        size = int(Decimal(match[1]) * unit)
    if not 0 < size < 2**63:
        raise ConfigError(f"a memory size must be positive and below 8 EiB, not {str(text)[:40]!r}")
    return size


def format_size(nbytes: int, *, up: bool = False) -> str:
    """`285 MB`, `1.42 GB`: three digits. With `up`, rounded so that parsing it again gives at least `nbytes`."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= unit:
            value = nbytes / unit
            digits = 2 if value < 10 else 1 if value < 100 else 0
            factor = 10**digits
            value = math.ceil(value * factor) / factor if up else round(value * factor) / factor
            return f"{value:.{digits}f} {name}"
    return f"{nbytes} B"


@dataclass(frozen=True, slots=True)
class Config:
    """Resolved settings.

    Attributes:
        memory: bytes the whole process may hold (anonymous resident memory).
        threads: compute threads, 0 for one per physical core this process may use.
        reranker, embedder: model names or paths; empty takes the default models.
        llm: what writes answers: a GGUF file, the name of a pulled generator, the http:// address of a server on this
            machine, or `extractive` (also if empty), the best sentences of the documents.
        llm_key: what the server asks for as a bearer token, if anything.
        llm_remote: allows a server that is not this machine: questions and documents are sent there.
        context: tokens that prompt and answer may have; 0 for what the model was trained for, at most 4,096.
        runtime: what executes layers: `native`, `onnx`, `numpy`, `mlx` or an installed plug-in; `auto` takes `native`
            where it runs the model, else `onnx`.
        device: a further device that holds and searches lists of vectors, with its options, such as
            `limited:cap=64MB` or `remote:cap=200MB`; empty for the host alone.
        mode: `ranked` (exact order of the best K) or `top-k` (the best K as a set, where winners stop early too).
        threshold: dispersion at which pruning starts: `auto` (calibrated), `inf` (never), or a number.
        models_dir: where packed models live; empty takes the platform's place for user data.
        scratch_dir: where hidden states are offloaded (a real disk, not a memory file system); empty takes the
            platform's cache directory.
        sources: for each setting, where its value came from.
    """

    memory: int = 10**9
    threads: int = 0
    reranker: str = ""
    embedder: str = ""
    llm: str = ""
    llm_key: str = field(default="", repr=False)
    llm_remote: bool = False
    context: int = 0
    runtime: str = "auto"
    device: str = ""
    mode: str = "ranked"
    threshold: str = "auto"
    models_dir: str = ""
    scratch_dir: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", parse_size(self.memory))
        _check_threads(self.threads)
        if self.context < 0:
            raise ConfigError(f"a context has 0 tokens (what the model holds) or more, not {self.context}")
        if self.mode not in _MODES:
            raise ConfigError(f"mode is `top-k` or `ranked`, not {self.mode!r}")
        parse_threshold(self.threshold)

    @classmethod
    def load(
        cls,
        *,
        flags: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        project: Path | None = None,
        user: Path | None = None,
    ) -> Config:
        """Merges all sources; values that are None count as not given.

        Args:
            flags: highest precedence, by field name.
            environment: variables `EDGE_<FIELD>`; the process's own if not given.
            project: project file, `.edge/config.toml` of the working directory if not given.
            user: user file, `config.toml` in the platform's configuration directory if not given.

        Raises:
            ConfigError: a file is not TOML, a key is unknown or not allowed there, a value cannot be parsed.
        """
        environment = os.environ if environment is None else environment
        known = {f.name for f in fields(cls)} - {"sources"}
        layers: list[tuple[str, Mapping[str, Any]]] = []
        user = user or Path(platformdirs.user_config_dir("edge-rag", appauthor=False)) / "config.toml"
        layers.append((str(user), _read_file(user, known)))
        project = project or Path(".edge") / "config.toml"
        layers.append((str(project), _read_file(project, known & _PROJECT_KEYS)))
        # An empty variable counts as not set.
        from_environment = {name: environment.get(f"EDGE_{name.upper()}") or None for name in known}
        layers.append(("environment", from_environment))
        layers.append(("flag", {name: value for name, value in (flags or {}).items() if name in known}))

        values: dict[str, Any] = {}
        sources = dict.fromkeys(sorted(known), "default")
        for source, layer in layers:
            for name, value in layer.items():
                if value is not None:
                    sources[name] = f"environment EDGE_{name.upper()}" if source == "environment" else source
                    values[name] = _convert(name, value, sources[name])
        return cls(**values, sources=sources)

    @property
    def scratch_path(self) -> Path:
        """Directory for offloaded hidden states."""
        return Path(self.scratch_dir or platformdirs.user_cache_dir("edge-rag", appauthor=False))


def parse_threshold(text: str | float) -> float | None:
    """None for `auto`, infinity for `inf`, else the number.

    Raises:
        ConfigError: not a threshold.
    """
    if text == "auto":
        return None
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value) or value < 0:
        raise ConfigError(f"a threshold is `auto`, `inf` or a number of at least 0, not {text!r}")
    return value


def _read_file(path: Path, allowed: set[str] | frozenset[str]) -> dict[str, Any]:
    try:
        data: dict[str, Any] = tomllib.loads(read_input(path, pipes=False).decode())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    for key in data:
        if key not in allowed:
            raise ConfigError(f"{path} may not set {key!r}; allowed there: {', '.join(sorted(allowed))}")
    return data


def _convert(name: str, value: Any, source: str) -> Any:
    """A setting's value as its field's type.

    Raises:
        ConfigError: names the setting, where it stands, and what it may be.
    """
    try:
        if name == "memory":
            return parse_size(value)
        if name == "threads":
            number = None if isinstance(value, bool | float) else int(value)
            if number is None:
                raise ValueError
            _check_threads(number)
            return number
        if name == "context":
            if isinstance(value, bool | float) or int(value) < 0:
                raise ValueError
            return int(value)
        if name == "llm_remote":
            known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
            if str(value).casefold() not in known:
                raise ConfigError(f"it is true or false, not {value!r}")
            return known[str(value).casefold()]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError(f"{value!r} is not text")
        if name == "threshold":
            parse_threshold(str(value))
        if name == "mode" and value not in _MODES:
            raise ConfigError(f"it is `ranked` or `top-k`, not {value!r}")
        return str(value)
    except ConfigError as error:
        raise ConfigError(f"{name} ({source}): {error}") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{name} ({source}): a whole number of at least 0 is needed, not {value!r}") from None


def _check_threads(number: int) -> None:
    """Every thread has a stack and buffers of its own, so no more than can be of use are taken.

    Raises:
        ConfigError: there are too many, or less than none.
    """
    most = max(_THREADS, _THREADS_PER_CORE * (os.cpu_count() or 1))
    if not 0 <= number <= most:
        raise ConfigError(f"threads is 0 (one per physical core) or up to {most} on this machine, not {number}")
