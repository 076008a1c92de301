"""`tune`: the choice and the sweep over a small set, their figures and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench.tune import figures, tune, work
from bench.vectors import NEIGHBOURS, VectorSet, embeddings
from edge.errors import InputError


def mixture(count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    middle = np.random.default_rng(1).standard_normal((20, 8))
    rows = middle[random.integers(20, size=count)] + random.standard_normal((count, 8))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_choice_and_sweep(tmp_path: Path) -> None:
    made = VectorSet.given(tmp_path / "set", mixture(500, 2), mixture(80, 3), "some")
    assert made == VectorSet.stored(tmp_path / "set")
    assert set(made.truth[0].tolist()) == set(np.argsort(-(made.mapped() @ made.queries[0]))[:NEIGHBOURS].tolist())
    (tmp_path / "index").mkdir()
    report = work({
        "set": str(made.folder), "index": str(tmp_path / "index"), "memory": 10**10, "recalls": [0.7, 0.9],
        "timed": 2, "rounds": 1, "threads": 1,
    })  # fmt: skip
    assert (report["rows"], report["questions"], report["held_out"]) == (500, 40, 40)
    assert len(report["indexes"]) == 2
    for row, index in zip(report["goals"], report["indexes"], strict=True):
        assert row["sample_recall"] >= row["goal"]
        assert all(point["recall"] >= row["goal"] for point in row["sweep"])
        assert row["points"] == len(row["sweep"]) > 10
        assert row["ratio"] == row["chosen"]["seconds"] / row["fastest"]["seconds"] > 0
        assert row["fastest"]["parameters"] in [point["parameters"] for point in row["sweep"]]
        assert 0 < index["recall"] <= 1
        assert index["codec"] == row["chosen"]["parameters"]["codec"]
    found = list(figures(report | {"peak_resident": 7}))
    assert len({figure.key for figure in found}) == len(found) == 16


def test_vectors_and_questions_of_different_widths_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", mixture(200, 2))
    np.save(tmp_path / "questions.npy", mixture(80, 3)[:, :4])
    arguments = ["--vectors", str(tmp_path / "vectors.npy"), "--work-dir", str(tmp_path / "work")]
    done = CliRunner().invoke(tune, [*arguments, "--questions", str(tmp_path / "questions.npy")])
    assert isinstance(done.exception, InputError)
    assert "do not fit each other" in str(done.exception)
    assert "go together" in str(CliRunner().invoke(tune, arguments).exception)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--recall", "2"], "at most 1, not 2.0"), (["--queries", "59"], "at least 60 are needed, not 59")],
)
def test_wrong_numbers_are_refused_before_vectors_are_made(tmp_path: Path, arguments: list[str], reason: str) -> None:
    done = CliRunner().invoke(tune, [*arguments, "--work-dir", str(tmp_path / "work")])
    assert isinstance(done.exception, InputError)
    assert reason in str(done.exception)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("content", [b"", b"no numbers", "text", "names", "one", "nan"])
def test_a_file_without_vectors_is_refused(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "vectors.npy"
    tables = {
        "text": np.array([["a", "b"]]), "names": np.array([["a", 1]], object), "one": np.zeros(3, np.float32),
        "nan": np.full((3, 2), np.nan),
    }  # fmt: skip
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, tables[content])
    with pytest.raises(InputError, match=r"vectors\.npy cannot be read as a \.npy file of vectors: \w"):
        embeddings(path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="devices are files on Unix")
def test_a_device_with_vectors_is_refused() -> None:
    with pytest.raises(InputError, match="it is a pipe, a device or a socket"):
        embeddings(Path("/dev/zero"))
