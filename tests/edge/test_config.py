"""Sizes that survive a round trip, the order of overrides, and settings that are refused with a sentence."""

from __future__ import annotations

import math
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from edge.config import Config, format_size, parse_size, parse_threshold
from edge.errors import ConfigError


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A project file and a user file, both missing."""
    (tmp_path / ".edge").mkdir()
    return tmp_path / ".edge" / "config.toml", tmp_path / "user.toml"


def load(files: tuple[Path, Path], *, flags: dict[str, Any] | None = None, **environment: str) -> Config:
    return Config.load(flags=flags, environment=environment, project=files[0], user=files[1])


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("300MB", 300 * 10**6), ("300 mb", 300 * 10**6), (" 300M ", 300 * 10**6), ("1.5 GiB", 3 * 2**29),
        ("512MiB", 2**29), ("262144", 262144), ("7 b", 7), ("2kB", 2000), ("1TB", 10**12), ("1 TiB", 2**40),
        ("2.01 GB", 2_010_000_000), (4096, 4096),
    ],
)  # fmt: skip
def test_sizes_people_write(text: str | int, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "-5MB", "300 XB", "1,5GB", "1e9", "inf", "nan", "0", "0MB", 0, -1, "3 0MB"])
def test_sizes_that_are_none(text: str | int) -> None:
    with pytest.raises(ConfigError):
        parse_size(text)


def test_a_long_text_that_is_no_size_takes_linear_time() -> None:
    started = time.process_time()
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size("1" + " " * 60_000 + "!")
    with suppress(ConfigError):
        assert format_size(parse_size("1" + "0" * 400), up=True)
    assert time.process_time() - started < 5, "in the square of its length it would take a minute"


@given(st.integers(1, 10**13))
@example(2_010_000_000)
@example(999_999)
@example(9_999_999_999)
def test_a_size_rounded_up_parses_back_to_at_least_itself(nbytes: int) -> None:
    again = parse_size(format_size(nbytes, up=True))
    assert nbytes <= again <= nbytes * 1.01 + 1


@given(st.integers(1, 10**13))
def test_a_size_shown_is_within_half_a_percent(nbytes: int) -> None:
    assert parse_size(format_size(nbytes)) == pytest.approx(nbytes, rel=0.0051)


def test_sizes_shown_have_three_digits() -> None:
    shown = [format_size(n) for n in (285_000_000, 1_420_000_000, 999, 45_600, 2_010_000_000)]
    assert shown == ["285 MB", "1.42 GB", "999 B", "45.6 kB", "2.01 GB"]


def test_precedence_and_where_each_value_came_from(files: tuple[Path, Path]) -> None:
    project, user = files
    user.write_text('memory = "100MB"\nthreads = 1\nmode = "top-k"\nruntime = "numpy"\n', encoding="utf-8")
    assert (load(files).memory, load(files).sources["memory"]) == (100 * 10**6, str(user))
    project.write_text('memory = "200MB"\nthreads = 2\nthreshold = 0.25\n', encoding="utf-8")
    assert (load(files).memory, load(files).threads) == (200 * 10**6, 2)
    config = load(files, flags={"memory": "400MB", "threads": None}, EDGE_MEMORY="300MB", EDGE_THREADS="3")
    assert (config.memory, config.sources["memory"]) == (400 * 10**6, "flag")
    assert (config.threads, config.sources["threads"]) == (3, "environment EDGE_THREADS")
    assert (config.threshold, config.sources["threshold"]) == ("0.25", str(project))
    assert (config.mode, config.sources["mode"]) == ("top-k", str(user))
    assert (config.reranker, config.sources["reranker"]) == ("", "default")
    assert "sources" not in config.sources


def test_every_setting_can_come_from_every_source(files: tuple[Path, Path]) -> None:
    """A setting that is parsed and never arrives is the bug this looks for."""
    given_: dict[str, tuple[str, Any]] = {
        "memory": ("123MB", 123 * 10**6), "threads": ("5", 5), "reranker": ("r", "r"), "embedder": ("e", "e"),
        "llm": ("l", "l"), "llm_key": ("k", "k"), "llm_remote": ("true", True), "context": ("512", 512),
        "answers": ("3", 3), "generation": ("shared", "shared"), "states": ("anywhere", "anywhere"),
        "gpu_layers": ("9", "9"), "llm_threads": ("1", 1),
        "runtime": ("numpy", "numpy"), "device": ("cpu", "cpu"), "device_memory": ("2GB", "2GB"),
        "mode": ("top-k", "top-k"), "threshold": ("0.5", "0.5"), "models_dir": ("m", "m"), "scratch_dir": ("s", "s"),
        "search_within": ("0.25", 0.25), "server": ("false", False),
    }  # fmt: skip
    assert set(given_) == set(load(files).sources), "a new setting needs a line here"
    for name, (text, value) in [*given_.items(), ("server", ("auto", "auto"))]:
        assert getattr(load(files, **{f"EDGE_{name.upper()}": text}), name) == value
        assert getattr(load(files, flags={name: text}), name) == value
        files[1].write_text(f'{name} = "{text}"', encoding="utf-8")
        assert getattr(load(files), name) == value
        files[1].unlink()


@pytest.mark.parametrize(
    "key",
    [
        "reranker", "embedder", "llm", "llm_key", "llm_remote", "runtime", "models_dir", "scratch_dir", "sources",
        "nonsense",
    ],
)  # fmt: skip
def test_a_project_file_cannot_set_what_a_cloned_folder_must_not(files: tuple[Path, Path], key: str) -> None:
    files[0].write_text(f'{key} = "x"', encoding="utf-8")
    with pytest.raises(ConfigError, match=key) as caught:
        load(files)
    assert str(files[0]) in str(caught.value)


def test_the_default_files_are_those_of_the_folder_and_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platformdirs.user_config_dir", lambda name, **_: str(tmp_path / name))
    (tmp_path / "edge-rag").mkdir()
    (tmp_path / "edge-rag" / "config.toml").write_text("threads = 7", encoding="utf-8")
    (tmp_path / ".edge").mkdir()
    (tmp_path / ".edge" / "config.toml").write_text('memory = "77MB"', encoding="utf-8")
    config = Config.load(environment={})
    assert (config.threads, config.memory) == (7, 77 * 10**6)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name, **_: f"/cache/{name}")
    assert Config().scratch_path == Path("/cache/edge-rag")
    assert Config(scratch_dir="s").scratch_path == Path("s")


@pytest.mark.parametrize(
    "content",
    [b"memory = ", b"= 1", b"\xff\xfe", b"memory = 300MB", b"a = " + b"[" * 5000],
    ids=["no value", "no key", "not utf-8", "no quotes", "very deep"],
)
def test_a_file_that_is_not_toml_is_named(files: tuple[Path, Path], content: bytes) -> None:
    files[0].write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(files)
    assert str(files[0]) in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        'memory = "lots"', "memory = 1.5", "memory = true", "memory = [1]", "memory = {a = 1}", "memory = -5",
        'threads = "two"', "threads = -1", "threads = 100000", "context = -1", 'llm_remote = "perhaps"',
        "threads = 1.5", "threads = true", "threads = [2]", 'mode = "best"', 'threshold = "high"', "threshold = -0.1",
        "threshold = nan", "threshold = [1]", "threshold = true", "mode = 1979-05-27",
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_a_config_error_that_names_the_setting(
    files: tuple[Path, Path], line: str
) -> None:
    files[0].write_text(line, encoding="utf-8")
    with pytest.raises(ConfigError, match=line.split(" =")[0]):
        load(files)


def test_a_bad_value_and_a_folder_in_place_of_a_file_say_where_they_stand(files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="EDGE_MEMORY"):
        load(files, EDGE_MEMORY="lots")
    files[0].write_text('memory = "lots"', encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(str(files[0]))):
        load(files)
    files[0].unlink()
    files[1].mkdir()
    with pytest.raises(ConfigError, match=re.escape(str(files[1]))):
        load(files)


def test_an_empty_variable_counts_as_not_set(files: tuple[Path, Path]) -> None:
    config = load(files, EDGE_MEMORY="", EDGE_MODE="", EDGE_THREADS="")
    assert (config.memory, config.mode, config.threads) == (Config().memory, Config().mode, 0)
    assert Config(memory="300MB").memory == 300 * 10**6, "also one that is made by hand"  # type: ignore[arg-type]


def test_thresholds() -> None:
    assert parse_threshold("auto") is None
    assert parse_threshold("inf") == math.inf
    assert parse_threshold("0.3") == parse_threshold(0.3) == 0.3
    assert parse_threshold(0) == 0.0
    for bad in ("", "Auto?", "-1", "-inf", "nan", math.nan, -0.1):
        with pytest.raises(ConfigError):
            parse_threshold(bad)
