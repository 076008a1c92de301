"""Names in code: those of files, folders and definitions raise what a query asks for by their words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from naive.program import config_of

from edge.apps.collection import query as naming
from edge.apps.collection.collection import Collection
from edge.apps.collection.query import Names, whole_files
from tests.apps.collection.test_brief import hit

PLAIN = "return 1"


def raised(query: str, text: str = PLAIN, path: str = "/project/x.py", kind: str = "code") -> float:
    return Names(query).raised(replace(hit(text, path), kind=kind))


BETTER = [
    ("radix tree path matching", {"path": "/project/tree.go"}, {"path": "/project/mux.go"}),
    ("request timeout middleware", {"path": "/middleware/timeout.go"}, {"path": "/other/timeout.go"}),
    ("how are request timeouts enforced", {"path": "/requestTimeout.ts"}, {"path": "/requestLogging.ts"}),
    ("parseHeaders", {"text": "def parse_headers(lines):"}, {"text": "parse_headers(lines)"}),
    ("Mux", {"text": "type Mux struct {"}, {"text": "type Chain struct {"}),
    ("serve HTTP", {"text": "func (mx *Mux) ServeHTTP(w http.ResponseWriter) {"}, {"text": "mx.ServeHTTP(w)"}),
    ("parse header values", {"text": "fn parse_header() {}"}, {"text": "fn parse() {}"}),
]


@pytest.mark.parametrize(("query", "better", "worse"), BETTER, ids=[query for query, _, _ in BETTER])
def test_the_names_that_a_query_has_raise_a_score(query: str, better: dict[str, str], worse: dict[str, str]) -> None:
    assert 0.5 <= raised(query, **worse) < raised(query, **better) <= 1


@pytest.mark.parametrize("query", ["", "the of and", "?!", "\u202e\ud800", "x" * 10_000])
@pytest.mark.parametrize(
    "text", ["", "def " * 20_000, "def (" * 20_000, "class " + "A" * 20_000, "func (((((" * 9_000, "\x00\ud800"]
)
def test_nothing_is_raised_where_there_are_no_names(query: str, text: str) -> None:
    assert raised(query, text) == 0.5


def test_only_code_is_raised_and_never_above_1() -> None:
    query, text, path = "parse headers", "def parse_headers(): pass", "/parse_headers/parse_headers.py"
    assert raised(query, text, path, kind="markdown") == 0.5
    assert 0.5 < raised(query, text, path) < 1
    assert Names(query).raised(replace(hit(text, path), kind="code", score=1.0)) == 1


def test_a_search_puts_the_definition_before_its_uses(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    uses = "\n".join("    # parse headers: parse the headers, parse all headers" for _ in range(8))
    for number in range(5):
        (folder / f"use{number}.py").write_text(f"{uses}\nparse headers {number}\n")
    (folder / "reading.py").write_text(
        "def parse_headers(lines):\n    return dict(line.split(':') for line in lines)\n"
    )
    with Collection(tmp_path / "c", config=config_of(tiny_models, tmp_path / "scratch")) as collection:
        collection.index([folder])

        def first() -> str:
            hits = collection.search("parse headers", rerank=False)
            scores = [found.score for found in hits]
            assert scores == sorted(scores, reverse=True)
            assert [found.stages.fused_rank for found in hits] == list(range(1, len(hits) + 1))
            assert all(found.score == found.stages.fused_score <= 1 for found in hits)
            return Path(hits[0].path).name

        assert first() == "reading.py"
        for name in ("FILE", "FOLDER", "DEFINED"):
            monkeypatch.setattr(naming, name, 0.0)
        assert first() != "reading.py", "the names decide"


@pytest.mark.parametrize(
    ("scores", "order"),
    [
        ({"a": [0.52], "b": [0.5, 0.5, 0.5]}, "ba"),
        ({"a": [0.9], "b": [0.5, 0.5, 0.5]}, "ab"),
        ({"a": [0.5, 0.5, 0.5], "b": [0.5] * 9}, "ab"),
        ({"a": [0.0], "b": [0.0, 0.0]}, "ab"),
        ({"a": [1.0], "b": [1.0, 1.0]}, "ab"),
    ],
)
def test_a_file_of_code_counts_by_its_best_passages(scores: dict[str, list[float]], order: str) -> None:
    found = [
        (score, replace(hit("x", f"/project/{name}.py"), kind="code", file=ord(name)))
        for name in sorted(scores)
        for score in scores[name]
    ]
    prose = (0.4, replace(hit("x", "/project/c.md"), kind="markdown", file=99))
    raised = whole_files([*found, prose])
    best = sorted(zip(raised, found, strict=False), key=lambda pair: (-pair[0], pair[1][1].path))
    assert "".join(dict.fromkeys(Path(file.path).stem for _, (_, file) in best)) == order
    assert raised[-1] == 0.4
    assert all(before <= after <= 1 for (before, _), after in zip(found, raised, strict=False))


@pytest.mark.parametrize(
    ("suffix", "whole", "names"),
    [("py", 0.0, ["a", "a", "b", "a"]), ("py", naming.WHOLE, ["a", "a", "a", "b"]), ("md", 0.0, ["a", "a", "a", "b"])],
)
def test_a_further_passage_of_a_file_of_code_counts_less(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, whole: float, names: list[str]
) -> None:
    """If the other passages did not speak for the whole file."""
    monkeypatch.setattr(naming, "WHOLE", whole)
    folder = tmp_path / "project"
    folder.mkdir()
    body = {"py": "def part_{0}():\n    return '{1}'\n\n\n", "md": "# Part {0}\n\n{1}\n\n"}[suffix]
    rest = "There are fish and boats and ice. " * 9
    flood = "The river floods the town. "
    (folder / f"a.{suffix}").write_text("".join(body.format(part, 2 * flood + rest) for part in range(3)))
    (folder / f"b.{suffix}").write_text(body.format(9, flood + rest))
    with Collection(tmp_path / "c", config=config_of(tiny_models, tmp_path / "scratch")) as collection:
        collection.index([folder])
        hits = collection.candidates("lex: river floods town")
        assert [Path(found.path).stem for found in hits] == names
        assert [found.score for found in hits] == sorted((found.score for found in hits), reverse=True)


@pytest.mark.parametrize(("code", "prose", "judged"), [(3, 1, False), (2, 2, True), (0, 2, True)])
def test_a_list_of_mostly_code_keeps_the_order_of_retrieval(
    tiny_models: Path, tmp_path: Path, code: int, prose: int, judged: bool
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    for number in range(code):
        (folder / f"{number}.py").write_text(f"def flood_{number}(river):\n    return river + {number}\n")
    for number in range(prose):
        (folder / f"{number}.md").write_text(f"The river floods in year {number}.\n")
    with Collection(tmp_path / "c", config=config_of(tiny_models, tmp_path / "scratch")) as collection:
        collection.index([folder])
        hits = collection.search("river flood")
        assert len(hits) == code + prose
        assert {found.relevance is not None for found in hits} == {judged}
        if not judged:
            assert [found.stages.fused_rank for found in hits] == sorted(found.stages.fused_rank or 0 for found in hits)
            assert all(found.score == found.stages.fused_score for found in hits)
