"""Packing holds a slab, never the model: measured on checkpoints that are sparse files of zeros."""

from __future__ import annotations

import json
import math
import struct
import sys
from pathlib import Path

import pytest
from making.random_tokenizer import wordpiece
from making.synth import SHAPES, RandomWeights
from naive.program import printed

from edge.models.architectures import family_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads RssAnon")

MEGABYTE = 1 << 20


def sparse_checkpoint(folder: Path, **config: int) -> int:
    """A BERT reranker's checkpoint whose file has a size but no content; returns the size."""
    shape = SHAPES["ms-marco-minilm-l6"]
    content = {**shape.config, **config}
    family = family_of(content)
    shapes = RandomWeights(family, family.spec_from_config(content, shape.head, "fp32"), 0).shapes
    header, cursor = {}, 0
    for name, size in shapes.items():
        end = cursor + 4 * math.prod(size)
        header[name] = {"dtype": "F32", "shape": list(size), "data_offsets": [cursor, end]}
        cursor = end
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(content))
    wordpiece(folder / "tokenizer.json", 2000)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + cursor)
    return cursor


def peak_of_packing(folder: Path, precision: str) -> int:
    """High-water mark of RssAnon of a process that packs, in bytes."""
    program = f"""
        from edge.resident import ResidentWatch, small_pages
        small_pages()
        with ResidentWatch(0.002) as watch:
            from edge.models.pack import pack
            pack({str(folder)!r}, {str(folder.parent / "pack")!r}, {precision!r}).close()
        print(watch.high_water)
    """
    return int(printed(program, folder=folder.parent))


@pytest.mark.parametrize(
    ("precision", "config"),
    [
        # Many layers of 12.6 M weights and a wide table, as in bge-reranker-v2-m3.
        ("int8", {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "vocab_size": 70_000}),
        # One layer of 113 M weights, whose matrices have up to 151 MB: bounded by panels, not by their size.
        (
            "fp16",
            {
                "hidden_size": 3072,
                "intermediate_size": 12288,
                "num_attention_heads": 32,
                "num_hidden_layers": 1,
                "vocab_size": 2000,
            },
        ),
    ],
)
def test_peak_memory_is_far_below_the_checkpoint(tmp_path: Path, precision: str, config: dict[str, int]) -> None:
    size = sparse_checkpoint(tmp_path / "checkpoint", **config)
    assert size > 440 * MEGABYTE
    peak = peak_of_packing(tmp_path / "checkpoint", precision)
    assert peak < 170 * MEGABYTE, f"{peak / MEGABYTE:.0f} MB to pack {size / MEGABYTE:.0f} MB"
