"""The question that README asks about the documents is answered from them, with the default reranker."""

from __future__ import annotations

import re
from pathlib import Path

from naive.program import write_tiny_models

from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Collection
from edge.config import Config

ROOT = Path(__file__).parents[3]
PAGES = ("memory-limit", "memory", "models", "serve", "security", "python", "cluster")


def test_the_example_of_the_first_page_is_answered(tmp_path: Path) -> None:
    (question,) = set(re.findall(r'^edge ask "([^"]*)"', (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
    (tmp_path / "models").mkdir()
    write_tiny_models(tmp_path / "models")
    # A random embedder: what is found is found by its words.
    config = Config(
        memory=8 * 10**9, models_dir=str(tmp_path / "models"), embedder="tiny-embedder",
        scratch_dir=str(tmp_path / "scratch"),
    )  # fmt: skip
    with Collection(tmp_path / "collection", config=config) as collection:
        collection.index([ROOT / "docs" / f"{page}.md" for page in PAGES])
        with Assistant(collection) as assistant:
            answer = assistant.ask(question)
    assert answer.found
    assert "anonymous resident memory" in answer.text
    assert answer.citations[0].path.endswith("memory-limit.md")
