"""A pack as a Hugging Face directory again: what packing read, within the steps of int8."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from edge.models.pack import pack  # noqa: E402
from edge.models.training import unpack  # noqa: E402
from edge.models.training.model import LayeredReranker  # noqa: E402


@pytest.mark.parametrize(("precision", "near"), [("fp32", 0.0), ("int8", 0.02)])
def test_the_weights_of_a_pack_are_those_that_were_packed(
    tiny: Path, tmp_path: Path, precision: str, near: float
) -> None:
    model = LayeredReranker.from_directory(tiny, seed=3)
    model.save(tmp_path / "trained", tiny / "tokenizer.json")
    pack(tmp_path / "trained", tmp_path / "pack", precision)
    assert unpack.main(["--pack", str(tmp_path / "pack"), "--out", str(tmp_path / "again")]) == 0
    again = LayeredReranker.from_directory(tmp_path / "again").bert.state_dict()
    for name, value in model.bert.state_dict().items():
        assert again[name].shape == value.shape, name
        if value.is_floating_point():
            assert (again[name] - value).abs().max() <= near * max(1.0, float(value.abs().max())), name
