"""`search-peers`: naive stand-ins for the peers search the same documents, in a Python of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from making.synth import synth_checkpoint
from naive.program import output_of

from bench.command import bench
from bench.run_record import RunRecord
from bench.search import Sample
from edge.models.training.corpora import load

WORDS = '''
"""Ranks documents by the words that they share with a query."""
import json
from pathlib import Path


def store(folder, documents):
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "naive.json").write_text(json.dumps(documents))


def best(folder, query, count):
    documents = json.loads((Path(folder) / "naive.json").read_text())
    words = set(query.lower().strip("?").split())
    shared = {name: len(words & set(text.lower().replace(".", "").split())) for name, text in documents}
    return sorted(shared, key=shared.get, reverse=True)[:count]
'''
TXTAI = """
import naive

class Embeddings:
    def __init__(self, path=None, hybrid=False, content=False):
        pass

    def index(self, rows):
        self.rows = [(name, text) for name, text, tags in rows]

    def save(self, folder):
        naive.store(folder, self.rows)

    def load(self, folder):
        self.folder = folder

    def search(self, query, count):
        return [{"id": name} for name in naive.best(self.folder, query, count)]

    def close(self):
        print("a line of a library")
"""
LEANN = """
import os, time
import naive

class LeannBuilder:
    def __init__(self, backend_name, embedding_model, embedding_mode, is_recompute, is_compact):
        self.rows, self.slow = [], is_recompute

    def add_text(self, text, metadata):
        self.rows.append((metadata["id"], text))

    def build_index(self, path):
        naive.store(os.path.dirname(path), self.rows)

class Row:
    def __init__(self, id):
        self.id = id

class LeannSearcher:
    def __init__(self, path, recompute_embeddings, use_daemon):
        self.folder, self.slow = os.path.dirname(path), recompute_embeddings

    def search(self, query, top_k, vector_weight):
        if self.slow:
            time.sleep(1.2)
        return [Row(name) for name in naive.best(self.folder, query, top_k)]

    def cleanup(self):
        pass
"""


@pytest.fixture
def peers(stand_ins: Callable[[dict[str, str]], None]) -> None:
    """Stand-ins for both peers."""
    stand_ins({"naive.py": WORDS, "txtai.py": TXTAI, "leann.py": LEANN})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return synth_checkpoint("tiny-bert-embedder", tmp_path / "tiny")


def run(*arguments: str | Path) -> Any:
    shown = output_of(bench, "search-peers", *map(str, arguments))
    return json.loads(shown) if "--json" in arguments else shown


@pytest.mark.usefixtures("peers", "tiny_settings")
def test_every_program_indexes_and_is_asked(judged: Path, model: Path, tmp_path: Path) -> None:
    stored, work = tmp_path / "run.json", tmp_path / "work"
    options = [judged, "--model", model, "--memory", "10GB", "--rounds", "1", "--work-dir", work, "--longest", "1"]
    report = run(*options, "--json", "--store", stored, "--leann-python", sys.executable)
    systems = report["systems"]
    assert list(systems) == ["edge", "edge, no reranking", "txtai", "leann", "leann, vectors stored, hybrid"]
    assert report["conditions"]["documents"] == 5
    assert 0.5 < systems["txtai"]["ndcg"] <= 1.0
    assert systems["leann, vectors stored, hybrid"]["ndcg"] == systems["txtai"]["ndcg"]
    assert systems["leann"]["asked"] == 1, "a search takes longer than all of them may take"
    assert "ndcg" not in systems["leann"]
    for name, found in systems.items():
        assert len(found["seconds"]) == len(found["peak"]) == 1
        assert ("nbytes" in found) == (name != "edge, no reranking"), "it searches the index of the line above"
    figures = RunRecord.load(stored).figures
    assert {figure.row for figure in figures if not figure.peer} == {"edge", "edge, no reranking"}
    again = run(*options, "--json")["systems"]
    assert again["txtai"]["index_seconds"] == systems["txtai"]["index_seconds"], "a peer's index is kept"
    assert again["edge"]["index_seconds"] != systems["edge"]["index_seconds"]
    without = run(*options, "--json", "--txtai-python", tmp_path / "no-python")["systems"]
    assert list(without) == [name for name in systems if name != "txtai"], "it has an index, and cannot be asked"


@pytest.mark.usefixtures("tiny_settings")
def test_peers_that_are_not_installed_are_left_out(
    judged: Path, model: Path, tmp_path: Path, stand_ins: Callable[[dict[str, str]], None]
) -> None:
    stand_ins({f"{name}.py": "import a_module_that_nobody_has" for name in ("txtai", "leann")})
    stored = tmp_path / "run.json"
    options = [judged, "--model", model, "--memory", "10GB", "--rounds", "1", "--work-dir", tmp_path / "work"]
    shown = run(*options, "--store", stored)
    assert "edge, no reranking" in shown
    assert "txtai" not in shown
    assert len(RunRecord.load(stored).notes) == 3


def test_a_sample_holds_what_answers_its_questions(judged: Path) -> None:
    corpus = load(judged)
    sample = Sample.of(corpus, 3, 2)
    assert len(sample.documents) == 3
    assert len(sample.queries) == len(sample.grades) == 2
    assert {name for grades in sample.grades for name in grades} <= {row[0] for row in sample.documents}
    assert sample == Sample.of(corpus, 3, 2)
    whole = Sample.of(corpus, 999, 999)
    assert [row[0] for row in whole.documents] == corpus.ids
    assert len(whole.queries) == 10
    fewest = Sample.of(corpus, 1, 10)
    assert len(fewest.documents) == 5, "every paragraph answers a question, and is kept"
