"""A judged set of a few paragraphs, and tiny random models, for the benches that replay pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click import Command
from making.judged_set import judged_set
from naive.program import output_of, settings_of, write_tiny_models

ARTICLES = {
    "Ombra": [
        "The river Ombra floods its valley in spring. It carries ice until May. Fishermen like the lower river best.",
        "The Ombra has its source in the glacier of Kell. Its water is green there. Nobody knows how old the ice is.",
        "The bridge over the Ombra was built in 1821. Anna Berg drew its plans. It has seven arches of grey stone.",
    ],
    "Kell": [
        "The town of Kell lies at the foot of a glacier. Its mill grinds flour for the valley. The mill is very old.",
        "Anna Berg was born in Kell in the year 1790. She built bridges and mills. Her house is a museum today.",
    ],
}
ASKED = {
    "Ombra#0": [("When does the Ombra flood?", "in spring"), ("Until when is there ice?", "until May")],
    "Ombra#1": [("Where is the source?", "glacier of Kell"), ("What colour is the water?", "green")],
    "Ombra#2": [("When was the bridge built?", "1821"), ("How many arches are there?", "seven")],
    "Kell#0": [("Where does Kell lie?", "foot of a glacier"), ("What does the mill grind?", "flour")],
    "Kell#1": [("When was Anna Berg born?", "1790"), ("What is her house today?", "a museum")],
}


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models directory with the reranker `tiny` and the embedder `tiny-embedder`; not to be changed."""
    return write_tiny_models(tmp_path_factory.mktemp("tiny") / "models")


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """The set in BEIR layout; every question is a test question."""
    documents = [(f"{title}#{i}", title, text) for title, texts in ARTICLES.items() for i, text in enumerate(texts)]
    questions = [(f"{p}-{i}", p, q, a) for p, asked in ASKED.items() for i, (q, a) in enumerate(asked)]
    return judged_set(
        tmp_path / "judged",
        documents,
        {number: text for number, _, text, _ in questions},
        {"test": [(number, paragraph, 1) for number, paragraph, _, _ in questions]},
        {number: [answer] for number, _, _, answer in questions},
    )


@pytest.fixture
def replaying(
    judged: Path, tmp_path: Path, tiny_settings: None, measured_here: Callable[[str], None]
) -> Callable[..., Any]:
    """Runs a benchmark that replays pipelines over the judged set, in no time, and returns its report."""
    measured_here("replay")

    def run(command: Command, *options: str) -> Any:
        common = [
            "--data", str(judged), "--decode", "20000", "--prefill", "1000000", "--warmup", "1", "--work-dir",
            str(tmp_path / "bench"), "--json", "--store", str(tmp_path / "run.json"),
        ]  # fmt: skip
        return json.loads(output_of(command, *common, *options))

    return run


@pytest.fixture
def measured_here(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the measurements of a benchmark run in this process: what a process of its own is for, `process` tests."""

    def here(work: Callable[[dict[str, Any]], dict[str, Any]], task: dict[str, Any], **_: Any) -> dict[str, Any]:
        return work(task) | {"peak_resident": 1}

    return lambda name: monkeypatch.setattr(f"bench.{name}.measure", here)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Writes modules, which every Python that is started looks into first."""

    def write(modules: dict[str, str]) -> None:
        folder = tmp_path / "stand-ins"
        for name, text in modules.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return write


@pytest.fixture
def tiny_settings(tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of this process and of its workers name the tiny models."""
    for name, value in settings_of(tmp_path, EDGE_MODELS_DIR=str(tiny_models), EDGE_THREADS="1").items():
        monkeypatch.setenv(name, value)
