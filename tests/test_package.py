"""The installed package: the import is quick, the public names are there, and the promised files are in it."""

from __future__ import annotations

import json
from pathlib import Path

from naive.program import printed

import edge
from edge.models.registry import DEFAULT_RERANKER, resolve

ROOT = Path(__file__).parents[1]


def test_public_names_are_found_and_declared() -> None:
    stub = (ROOT / "edge" / "__init__.pyi").read_text(encoding="utf-8")
    for name in ("Config", "EdgeError", "Embedder", "MemoryBudget", "Ranked", "Reranker"):
        assert getattr(edge, name).__name__ == name
        assert name in dir(edge)
        assert f"import {name} as {name}" in stub


def test_importing_the_library_loads_no_runtime() -> None:
    code = "import sys, json, edge; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(printed(code))
    assert not {"numpy", "onnxruntime", "onnx", "faiss", "torch", "tokenizers"} & set(loaded)


def test_the_default_reranker_comes_with_the_installation(tmp_path: Path) -> None:
    with resolve(DEFAULT_RERANKER, kind="reranker", directory=tmp_path) as model:
        model.verify()
    with edge.Reranker(memory="40GB") as reranker:
        best = reranker.rank("who wrote Hamlet", ["It rains in Spain.", "Hamlet was written by William Shakespeare."])
    assert best[0].index == 1
    assert best[0].score > best[1].score


def test_the_readme_or_a_guide_names_every_verb() -> None:
    from edge.apps.cli import _VERBS

    guides = [page for page in (ROOT / "docs").glob("*.md") if page.name != "commands.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *guides])
    for verb in _VERBS:
        assert f"edge {verb}" in text, f"neither the README nor a guide mentions `edge {verb}`"
