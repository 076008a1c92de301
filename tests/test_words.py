"""Sentences have a subject: few of them are built around `what` and `who`.

A headless clause ("what nobody leased is leased") hides its subject, and a reader reads it twice. Comparable libraries
hold up to two of these words in a thousand of their docstrings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADLESS = re.compile(r"\b(what|who|whoever|whatever)\b", re.IGNORECASE)
MOST = 3.0
"""Of a thousand words."""

DOCUMENTS = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if path.name != "CHANGELOG.md"]


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def per_thousand(texts: list[str]) -> float:
    words = sum(len(text.split()) for text in texts)
    return 1000 * sum(len(HEADLESS.findall(text)) for text in texts) / words


@pytest.mark.parametrize("folder", ["edge", "models", "runtimes", "devices", "apps"])
def test_docstrings(folder: str) -> None:
    texts = [text for path in sorted((ROOT / folder).rglob("*.py")) for text in docstrings(path)]
    assert per_thousand(texts) < MOST


def test_documents() -> None:
    texts = [re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL) for path in DOCUMENTS]
    assert len(texts) > 20
    assert per_thousand(texts) < MOST
