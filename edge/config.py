"""Settings: parsed sizes and durations, one frozen `Config`, and the source of each value.

Precedence: flag (or argument) > environment `EDGE_*` > project file `.edge/config.toml` > user file > default.
A project file may have come with a cloned folder. Therefore it cannot choose models, runtimes or folders to write to.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import platformdirs

from edge.errors import ConfigError
from edge.files.named_file import read_small

_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_CHOICES = {
    "mode": ("ranked", "top-k"), "generation": ("auto", "exact", "shared"),
    "states": ("auto", "exact", "anywhere"),
}  # fmt: skip
"""The values of settings that have few."""

AUTO = "auto"
"""The device that is chosen by measurement (`edge.plugins`)."""

_THREADS_PER_CORE, _THREADS = 4, 16
"""Largest number of threads: the larger of 4 per core and 16."""

_PROJECT_KEYS = frozenset({"memory", "threads", "mode", "threshold"})


def parse_size(text: str | int) -> int:
    """Bytes from `300MB`, `1.5 GiB`, `262144`. MB is 10**6 bytes and MiB 2**20, as the standards define them.

    Raises:
        ConfigError: the text is not a positive size.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        if not isinstance(text, str):
            raise ConfigError(f"{text!r} is not a size; write it like 300MB, 1.5GB or 512MiB")
        match = _SIZE.fullmatch(text.strip())
        unit = match and _UNITS.get(match[2].lower())
        if not match or not unit:
            raise ConfigError(f"{text!r} is not a size; write it like 300MB, 1.5GB or 512MiB")
        size = int(Decimal(match[1]) * unit)
    if not 0 < size < 2**63:
        raise ConfigError(f"a memory size must be positive and below 8 EiB, not {str(text)[:40]!r}")
    return size


def format_size(nbytes: int, *, up: bool = False) -> str:
    """`285 MB`, `1.42 GB`: a size in three digits. With `up`, rounded up, so that parsing gives at least `nbytes`."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= unit:
            value = nbytes / unit
            digits = 2 if value < 10 else 1 if value < 100 else 0
            factor = 10**digits
            value = math.ceil(value * factor) / factor if up else round(value * factor) / factor
            return f"{value:.{digits}f} {name}"
    return f"{nbytes} B"


def format_duration(seconds: float) -> str:
    """A duration as text, such as `12.3 ms` or `2.47 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def counted(count: int, noun: str, nouns: str = "") -> str:
    """A number and the form of the noun that goes with it: `1 file`, `2,000 files`.

    Args:
        noun: the singular.
        nouns: the plural, if it is not the singular with an s.
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


@dataclass(frozen=True, slots=True)
class Config:
    """Resolved settings.

    Attributes:
        memory: bytes the whole process may hold (anonymous resident memory).
        threads: compute threads, 0 for one per physical core this process may use.
        reranker, embedder: model names or paths; empty takes the default models.
        llm: the generator of answers: a GGUF file, the name of a pulled generator, the http:// address of a server on
            this machine, or `extractive` (also if empty), which takes the best sentences of the documents.
        llm_key: bearer token for the server, if it needs one.
        llm_remote: allows a server on another machine, to which questions and documents are then sent.
        context: tokens of prompt and answer together; 0 for the length the model was trained for, at most 4,096.
        answers: answers that a language model in this process writes at a time; further ones wait.
        llm_threads: compute threads of a language model in this process, 0 for as many as `threads`.
        gpu_layers: layers of a language model that lie on the GPU of the device `cuda`: `auto` (as many as its memory
            limit allows, none without such a device) or a number.
        generation: `exact` (a text does not depend on those that are written beside it), `shared` (they share steps
            and documents' states, which is faster), or `auto`: shared in a server that has the memory, else exact.
        states: `exact` (a document's states are used again after the same documents), `anywhere` (after any others,
            which changes some texts), or `auto`: anywhere if answers are shared, else exact.
        runtime: the library that executes layers: `native`, `onnx`, `mlx` or an installed plug-in; `auto`
            takes `native` if it runs the model, else `onnx`.
        device: a further device, with its options, such as `cuda`, `limited:cap=64MB` or `remote:cap=200MB`. It holds
            and searches lists of vectors, and runs layers if it can. Empty for the host alone; `auto` for a card that
            `edge doctor` has measured to be faster.
        device_memory: limit of the device's own memory, such as `2GB`; empty for its default.
        mode: `ranked` (the best K in full depth's order) or `top-k` (the best K as a set; winners stop early, too).
        threshold: dispersion at which pruning starts: `auto` (calibrated), `inf` (never), or a number.
        models_dir: folder of packed models; empty takes the platform's folder for user data.
        search_within: the seconds in which 90 % of the searches of a collection's vectors should end, waiting included,
            when a long-lived process such as a server searches. It holds the lists in memory that this needs, before
            other caches. 0 leaves the memory to the caches that save most time.
        server: lets commands use the server that this user has started (`edge serve`), if one is running. With `auto`
            they start one if there is none; it ends when it was not used for ten minutes.
        scratch_dir: folder for offloaded hidden states (on a real disk, not a memory file system); empty takes the
            platform's cache directory.
        sources: for each setting, the source of its value.
    """

    memory: int = 10**9
    threads: int = 0
    reranker: str = ""
    embedder: str = ""
    llm: str = ""
    llm_key: str = field(default="", repr=False)
    llm_remote: bool = False
    context: int = 0
    answers: int = 4
    llm_threads: int = 0
    gpu_layers: str = "auto"
    generation: str = "auto"
    states: str = "auto"
    runtime: str = "auto"
    device: str = ""
    device_memory: str = ""
    mode: str = "ranked"
    threshold: str = "auto"
    models_dir: str = ""
    scratch_dir: str = ""
    search_within: float = 0.0
    server: bool | str = True
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", parse_size(self.memory))
        _check_threads(self.threads)
        _check_threads(self.llm_threads)
        if self.context < 0:
            raise ConfigError(f"a context has 0 tokens (what the model holds) or more, not {self.context}")
        if not 1 <= self.answers <= 32:
            raise ConfigError(f"1 to 32 answers are written at a time, not {self.answers}")
        if self.gpu_layers != "auto" and not (self.gpu_layers.isdecimal() and self.gpu_layers.isascii()):
            raise ConfigError(f"gpu_layers is `auto` or a whole number of at least 0, not {self.gpu_layers!r}")
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"{name} is {_listed(choices)}, not {value!r}")
        if not 0 <= self.search_within < math.inf:
            raise ConfigError(f"searches end within 0 (no deadline) or more seconds, not {self.search_within}")
        parse_threshold(self.threshold)
        if self.device_memory:
            parse_size(self.device_memory)

    @classmethod
    def load(
        cls,
        *,
        flags: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        project: Path | None = None,
        user: Path | None = None,
    ) -> Config:
        """Merges all sources. A value of None counts as not given.

        Args:
            flags: settings by field name, with the highest precedence.
            environment: variables `EDGE_<FIELD>`; the process's own if not given.
            project: project file; if not given, `.edge/config.toml` of the working directory.
            user: user file; if not given, `config.toml` in the platform's configuration directory.

        Raises:
            ConfigError: a file is not TOML, a key is unknown or not allowed there, or a value cannot be parsed.
        """
        environment = os.environ if environment is None else environment
        known = {f.name for f in fields(cls)} - {"sources"}
        layers: list[tuple[str, Mapping[str, Any]]] = []
        user = user or user_file()
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
    def automatic(self) -> bool:
        return self.device.partition(":")[0] == AUTO

    @property
    def opened_device(self) -> str:
        """The device with all its options, as it is opened; empty for the host alone.

        Raises:
            ConfigError: there is a limit of device memory, and no device.
        """
        device = self.device
        if self.automatic:
            from edge.plugins import AutomaticDevice

            if not (name := AutomaticDevice.stored().name):
                return ""
            device = name + device.removeprefix(AUTO)
        if not self.device_memory:
            return device
        if not device:
            raise ConfigError("a limit of device memory needs a device: --device NAME")
        return f"{device}{',' if ':' in device else ':'}cap={self.device_memory}"

    @property
    def scratch_path(self) -> Path:
        """Directory for offloaded hidden states."""
        return Path(self.scratch_dir or platformdirs.user_cache_dir("edge-rag", appauthor=False))


def user_file() -> Path:
    """The user's settings file, which need not exist."""
    return Path(platformdirs.user_config_dir("edge-rag", appauthor=False)) / "config.toml"


def parse_threshold(text: str | float) -> float | None:
    """None for `auto`, infinity for `inf`, else the number.

    Raises:
        ConfigError: the text is not a threshold.
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
        text = read_small(path).decode("utf-8-sig")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    data = parsed(text, path)
    for key in data:
        if key not in allowed:
            raise ConfigError(f"{path} may not set {key!r}; allowed there: {', '.join(sorted(allowed))}")
    return data


def parsed(text: str, path: Path) -> dict[str, Any]:
    """The settings in the text of a file at `path`.

    Raises:
        ConfigError: it is not TOML.
    """
    import tomllib

    try:
        data: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return data


def _listed(choices: Sequence[str]) -> str:
    *others, last = (f"`{choice}`" for choice in choices)
    return f"{', '.join(others)} or {last}"


def _convert(name: str, value: Any, source: str) -> Any:
    try:
        if name == "memory":
            return parse_size(value)
        if name in ("threads", "llm_threads"):
            number = None if isinstance(value, bool | float) else int(value)
            if number is None:
                raise ValueError
            _check_threads(number)
            return number
        if name in ("context", "answers"):
            if isinstance(value, bool | float) or int(value) < (name == "answers"):
                raise ValueError
            return int(value)
        if name == "search_within":
            if isinstance(value, bool) or not 0 <= float(value) < math.inf:
                raise ConfigError(f"it is a number of seconds of at least 0, not {value!r}")
            return float(value)
        if name in ("llm_remote", "server"):
            known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
            if name == "server" and value == "auto":
                return value
            if str(value).casefold() not in known:
                raise ConfigError(f"it is true{', auto' * (name == 'server')} or false, not {value!r}")
            return known[str(value).casefold()]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError(f"{value!r} is not text")
        if name == "threshold":
            parse_threshold(str(value))
        if name in _CHOICES and value not in _CHOICES[name]:
            raise ConfigError(f"it is {_listed(_CHOICES[name])}, not {value!r}")
        return str(value)
    except ConfigError as error:
        raise ConfigError(f"{name} ({source}): {error}") from None
    except (TypeError, ValueError):
        least = int(name == "answers")
        raise ConfigError(f"{name} ({source}): a whole number of at least {least} is needed, not {value!r}") from None


def _check_threads(number: int) -> None:
    """Checks the number of threads. Each has its own stack and buffers, so more than can be useful are refused."""
    most = max(_THREADS, _THREADS_PER_CORE * (os.cpu_count() or 1))
    if not 0 <= number <= most:
        raise ConfigError(f"threads is 0 (one per physical core) or up to {most} on this machine, not {number}")
