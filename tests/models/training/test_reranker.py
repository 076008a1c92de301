"""The program that trains: which pools give how much, and a run over gathered texts from end to end."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from edge.models.training import reranker, wide  # noqa: E402
from edge.models.training.documents import Document, write  # noqa: E402
from edge.models.training.loss import LossConfig  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905
SHARES = {"one.judged": 0.3, "one.title": 0.1, "oneself.judged": 0.4, "docs.mined": 0.2}


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranker, "SHARES", SHARES)


def pools(directory: Path, **sizes: int) -> Path:
    for name, size in sizes.items():
        (directory / f"wide.{name}.npz").write_bytes(bytes(size))
    return directory


@pytest.mark.usefixtures("shares")
def test_shares_without_gathered_texts_are_those_of_the_table(tmp_path: Path) -> None:
    assert reranker.shares_of(tmp_path, 0.0, []) == pytest.approx(SHARES)
    left = reranker.shares_of(tmp_path, 0.0, ["one"])
    assert left == pytest.approx({"oneself.judged": 2 / 3, "docs.mined": 1 / 3})


@pytest.mark.usefixtures("shares")
def test_gathered_texts_share_by_the_root_of_their_size_and_stand_for_documentation(tmp_path: Path) -> None:
    directory = pools(tmp_path, big=900, small=100, one=400, docstrings=1600)
    found = reranker.shares_of(directory, 0.5, [])
    assert found == pytest.approx(
        {"one.judged": 0.1875, "one.title": 0.0625, "oneself.judged": 0.25}
        | {"wide.big": 0.15, "wide.docstrings": 0.2, "wide.one": 0.1, "wide.small": 0.05}
    )
    assert set(reranker.shares_of(directory, 1.0, ["one"])) == {"wide.big", "wide.docstrings", "wide.small"}
    assert "wide.docstrings" in reranker.shares_of(directory, 0.5, ["docs"])


@pytest.mark.usefixtures("shares")
@pytest.mark.parametrize(
    ("share", "left_out", "said"),
    [
        (1.5, [], "from 0 to 1, not 1.5"),
        (0.0, ["oneselves"], "no pool is of oneselves"),
        (0.0, ["one", "oneself", "docs"], "every pool is left out"),
        (0.5, [], "no pools over gathered texts"),
    ],
)
def test_what_cannot_be_shared_is_said(
    share: float, left_out: list[str], said: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ["--data", str(tmp_path), "--base", str(tiny), "--out", str(tmp_path / "out"), "--steps", "1"]
    with pytest.raises(SystemExit) as ended:
        reranker.main([*fixed, "--wide", str(share), *(word for name in left_out for word in ("--leave-out", name))])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_gathered_texts_train_a_model_that_a_second_stage_starts_from(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker processes change no weight."""
    rng = random.Random(0)

    def text() -> str:
        return " The ".join(" ".join(rng.choices(WORDS, k=9)) + "." for _ in range(4))

    documents = [Document("set", f"title {n}", (("", text()), ("more", text()))) for n in range(24)]
    write(tmp_path / "texts.jsonl", documents)
    directory = tmp_path / "pools"
    assert wide.main(["--texts", str(tmp_path / "texts.jsonl"), "--base", str(tiny), "--out", str(directory)]) == 0
    monkeypatch.setattr(reranker, "LossConfig", lambda: LossConfig(layers=(0.2, 0.5, 1.0)))
    fixed = ["--data", str(tmp_path), "--base", str(tiny), "--pools", str(directory), "--wide", "1"]
    fixed += ["--max-tokens", "32", "--lists", "3", "--candidates", "4", "--log-steps", "2", "--precision", "float32"]

    def run(name: str, *words: str) -> dict[str, torch.Tensor]:
        assert reranker.main([*fixed, "--out", str(tmp_path / name), *words]) == 0
        return load_file(tmp_path / name / "mean" / "model.safetensors")

    whole = run("whole", "--steps", "6")
    again = run("again", "--steps", "6", *(() if sys.platform == "win32" else ("--workers", "2")))
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    log = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [2, 4, 6]
    assert all(line["pairs"] == 2 * 3 * 4 for line in log)
    (recipe,) = [json.loads(line) for line in (tmp_path / "whole" / "recipe.jsonl").read_text().splitlines()]
    assert (recipe["shares"], recipe["device"], recipe["lists"]["candidates"]) == ({"wide.set": 1.0}, "cpu", 4)
    fixed[3] = str(tmp_path / "whole" / "mean")
    second = run("second", "--steps", "2")
    assert second.keys() == whole.keys()
    words = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(second[words], whole[words])
    assert not torch.equal(second["classifier.weight"], whole["classifier.weight"])
