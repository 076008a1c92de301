"""What a user gets: the import is quick, the public names are there, the installation carries what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {"numpy", "onnxruntime", "onnx", "faiss", "torch", "tokenizers"} & set(loaded)


def test_the_default_reranker_comes_with_the_installation(tmp_path: Path) -> None:
    with resolve(DEFAULT_RERANKER, kind="reranker", directory=tmp_path) as model:
        model.verify()
    with edge.Reranker(memory="4GB") as reranker:
        best = reranker.rank("who wrote Hamlet", ["It rains in Spain.", "Hamlet was written by William Shakespeare."])
    assert best[0].index == 1
    assert best[0].score > best[1].score


def test_readme_names_every_verb() -> None:
    from edge.apps.cli import _VERBS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in _VERBS:
        assert f"edge {verb}" in readme, f"the README does not mention `edge {verb}`"
