"""Newer encoders: which of their layers are local, and which runtimes run them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from making import synth as making

from edge.errors import CapabilityError
from edge.models.packed import PackedModel
from edge.runtimes.base import runtime_for


def test_layers_are_local_by_their_own_tensor(tmp_path: Path) -> None:
    with making.synth("tiny-modernbert", tmp_path / "pack", "int8") as model:
        kinds = [model.spec.layer.kind(model.load(block)) for block in model.layer_blocks]
        assert kinds == [(False, False), (True, True), (True, True), (False, True)]
    with PackedModel.open(tmp_path / "pack") as model:
        assert model.spec.local_layers == (1, 2)


def test_other_runtimes_refuse_it_by_name(tmp_path: Path, layers: Any) -> None:
    assert runtime_for("auto", layers.MODERN).name == "onnx"
    with pytest.raises(CapabilityError, match="native runtime"):
        runtime_for("native", layers.MODERN).layer_kernel(layers.MODERN, threads=1)
    with pytest.raises(CapabilityError, match="cuda runtime does not run layers with local attention"):
        runtime_for("cuda", layers.MODERN).layer_kernel(layers.MODERN, threads=1)
    mpnet = replace(layers.LAYERS["mpnet"], precision="int8")
    assert runtime_for("auto", mpnet).name == "onnx"
    for name in ("mpnet", "deberta"):
        assert runtime_for("native", layers.LAYERS[name]).refusal(replace(layers.LAYERS[name], precision="int8"))
    with pytest.raises(CapabilityError, match="cuda runtime does not run layers with biases of distances"):
        runtime_for("cuda", mpnet).layer_kernel(mpnet, threads=1)
