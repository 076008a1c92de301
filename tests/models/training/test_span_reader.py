"""The training of the reader: its loss, its gradient, and that it learns and is stored as it was trained."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from edge.models import evidence  # noqa: E402
from edge.models.pack import pack  # noqa: E402
from edge.models.packed import PackedModel  # noqa: E402
from edge.models.reader import EVIDENCE, SIGNALS, Reader  # noqa: E402
from edge.models.training import reader, spans  # noqa: E402
from edge.models.training.model import LayeredReranker, padded, pair_tokenizer  # noqa: E402
from edge.models.training.spans import Example  # noqa: E402

EXAMPLES = [
    Example("tiger", "lake stone tiger bread", ((11, 16),), "s"),
    Example("violin", "violin copper market", ((0, 6),), "s"),
    Example("garden", "lake river stone", (), "s"),
] * 4


@pytest.fixture
def base(tiny: Path, tmp_path: Path) -> Path:
    LayeredReranker.from_directory(tiny, seed=3).save(tmp_path / "trained", tiny / "tokenizer.json")
    return tmp_path / "trained"


def test_right_tokens_are_those_of_the_answer_or_the_first(tiny: Path) -> None:
    tokenizer = pair_tokenizer(tiny / "tokenizer.json", 8)
    encoded = [tokenizer.encode(e.question, e.passage) for e in EXAMPLES[:3]]
    assert [reader.right_tokens(*pair) for pair in zip(EXAMPLES, encoded, strict=False)] == [
        ([5], [5]),
        ([3], [3]),
        ([0], [0]),
    ]
    cut = Example("tiger", "lake stone river bread copper tiger", ((30, 35),), "s")
    assert reader.right_tokens(cut, tokenizer.encode(cut.question, cut.passage)) == ([0], [0])


def test_the_loss_counts_all_places_of_an_answer_and_no_token_of_the_question() -> None:
    scores = torch.zeros(1, 5, 2)
    scores[0, 1] = 50.0  # a token of the question
    mask, types = torch.ones(1, 5), torch.tensor([[0, 0, 1, 1, 1]])
    right = torch.zeros(2, 1, 5, dtype=torch.bool)
    right[:, 0, 2:4] = True
    assert reader.span_loss(scores, mask, types, right) == pytest.approx(float(torch.log(torch.tensor(2.0))), abs=1e-5)


def test_training_learns_and_is_stored_beside_the_pack(
    base: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count(0, 0.015)  # a step looks twice, so it learns the same on a busy machine
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    packed = tmp_path / "pack"
    pack(base, packed, "fp32").close()
    spans.write(tmp_path / "data.gz", EXAMPLES)
    arguments = ["--data", str(tmp_path / "data.gz"), "--base", str(base), "--out", str(tmp_path / "out")]
    arguments += ["--shared", "1", "--own", "2", "--rate", "3e-3", "--batch-tokens", "40", "--precision", "float32"]
    stored = ["--pack", str(packed), "--held", str(tmp_path / "data.gz")]
    assert reader.main([*arguments, "--minutes", "0.1", *stored]) == 0
    model = reader.SpanReader(base, 1, 2)
    model.load_state_dict(load_file(tmp_path / "out" / reader.RESULT))
    tokenizer = pair_tokenizer(base / "tokenizer.json", 64)
    margins, right = reader.margins(model, EXAMPLES[:3], tokenizer)
    assert right == [True, True, False]
    assert min(margins[:2]) > margins[2]
    with PackedModel.open(packed) as opened:
        fitted = evidence.load(opened, EVIDENCE, SIGNALS)
        assert fitted.probability((margins[0],)) > 0.5 > fitted.probability((margins[2],))
        with Reader.open(opened) as kept:  # type: ignore[union-attr]
            assert kept.shared == 1
            weight = kept.load(kept.layers[1])["down.weight"]
        assert (model.layers[1].output.dense.weight == torch.from_numpy(weight).T).all()
    again = tmp_path / "again"
    shutil.copytree(packed, again)
    (again / "reader.json").unlink()
    start = ["--start", str(tmp_path / "out" / reader.RESULT), "--minutes", "0", "--pack", str(again), *stored[2:]]
    assert reader.main([*arguments, *start]) == 0
    assert (again / "reader.json").read_bytes() == (packed / "reader.json").read_bytes()


def test_layers_start_as_copies_and_the_shared_ones_stay(base: Path) -> None:
    whole = LayeredReranker.from_directory(base).bert.bert
    model = reader.SpanReader(base, 1, 2)
    encoded = pair_tokenizer(base / "tokenizer.json", 64).encode("tiger", "lake tiger")
    ids, mask, types = padded([encoded])
    wanted = whole(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    assert torch.allclose(model(ids, mask, types), model.out(wanted), atol=1e-5)
    assert all(name.startswith(("layers.", "out.")) for name, _ in model.named_parameters())
    small = reader.SpanReader(base, 2, 1)  # its layers become the last ones
    weights = {name: value + 1 for name, value in small.state_dict().items()}
    first = {name: value.clone() for name, value in model.layers[0].state_dict().items()}
    reader.begin(model, weights)
    assert all(torch.equal(value, first[name]) for name, value in model.layers[0].state_dict().items())
    last = model.layers[1].state_dict().items()
    assert all(torch.equal(value, weights[f"layers.0.{name}"]) for name, value in last)
    assert torch.equal(model.out.weight, weights["out.weight"])
