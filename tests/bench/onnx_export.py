"""Exports a cross-encoder's checkpoint to ONNX with torch, in the form in which FlashRank and fastembed read models."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from inspect import signature
from pathlib import Path
from typing import Any

from edge.errors import CapabilityError, ModelError
from edge.models.manifest import file_sha256
from edge.runtimes.onnx_layer import load_onnxruntime

MODEL_NAME = "ms-marco-MiniLM-L-12-v2"
"""A name that FlashRank knows. It opens the folder of this name in its cache folder, whatever model is in it."""

MODEL_FILE = "flashrank-MiniLM-L-12-v2_Q.onnx"
"""The file that FlashRank opens in that folder."""

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OPSET = 17


def fingerprint(checkpoint: Path) -> str:
    """The first digits of the checksum of a checkpoint's weights, so that no export of other weights is used."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (checkpoint / name).is_file():
            raise ModelError(f"{checkpoint} is no checkpoint of a cross-encoder: {name} is missing")
    return file_sha256(checkpoint / "model.safetensors")[:8]


def export(checkpoint: Path, folder: Path, precision: str, max_tokens: int) -> None:
    """Writes the model to `folder`/`MODEL_NAME`, unless it is there, and the settings of its tokenizer. `folder` is
    FlashRank's cache folder; the folder in it is a model folder of fastembed, too."""
    target = folder / MODEL_NAME
    if not target.exists():
        _make(checkpoint, target, precision)
    settings = {"model_max_length": max_tokens, "pad_token": pad_token(checkpoint)}
    (target / "tokenizer_config.json").write_text(json.dumps(settings))


def _make(checkpoint: Path, target: Path, precision: str) -> None:
    folder = target.parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        place = Path(scratch) / MODEL_NAME
        place.mkdir()
        exported = Path(scratch) / "fp32.onnx"
        _trace(checkpoint, exported)
        if precision == "int8":
            load_onnxruntime()  # with its telemetry off
            from onnxruntime import quantization as tool

            kind = tool.QuantType.QInt8
            tool.quantize_dynamic(exported, place / MODEL_FILE, per_channel=True, weight_type=kind)
        else:
            exported.rename(place / MODEL_FILE)
        for name in ("config.json", "tokenizer.json"):
            shutil.copyfile(checkpoint / name, place / name)
        (place / "special_tokens_map.json").write_text("{}")
        os.replace(place, target)


def pad_token(checkpoint: Path) -> str:
    """The token that fills the shorter texts of a batch."""
    from tokenizers import Tokenizer

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return str(tokenizer.id_to_token(int(config.get("pad_token_id") or 0)))


def _trace(checkpoint: Path, path: Path) -> None:
    try:
        import torch
        from transformers import AutoModelForSequenceClassification
    except ImportError as error:
        raise CapabilityError(
            "FlashRank and fastembed get the model by torch: pip install 'edge-rag[bench]'"
        ) from error
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    ids = torch.ones(2, 8, dtype=torch.int64)
    taken = [name for name in _INPUTS if name in signature(model.forward).parameters]
    axes = {name: {0: "batch", 1: "tokens"} for name in taken} | {"logits": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the way of exporting, which needs no further package
        torch.onnx.export(
            model.eval(), (ids, ids, torch.zeros_like(ids))[: len(taken)], str(path), input_names=taken,
            output_names=["logits"], dynamic_axes=axes, opset_version=_OPSET, dynamo=False,
        )  # fmt: skip
