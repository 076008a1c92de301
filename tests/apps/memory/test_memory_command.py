"""`edge memory` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import pytest
from naive.program import settings_of

from edge.apps.memory.command import memory as group
from edge.errors import InputError

Edge = Callable[..., click.testing.Result]


@pytest.fixture
def edge(tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edge:
    """Runs a verb with tiny random models; its errors are raised."""
    own = {"EDGE_MODELS_DIR": str(tiny_models), "EDGE_MEMORY": "10GB", "EDGE_THREADS": "1"}
    for name, value in settings_of(tmp_path, **own).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: str = "") -> click.testing.Result:
        verb, *rest = arguments
        result = click.testing.CliRunner().invoke(
            group, [verb, *rest, "--path", str(tmp_path / "m")], input=stdin, standalone_mode=False
        )
        if result.exception is not None:
            raise result.exception
        return result

    return run


def document(result: click.testing.Result) -> Any:
    return json.loads(result.stdout)


def test_what_is_added_is_found_listed_changed_and_deleted(edge: Edge) -> None:
    said = ("I like tea", "-", "--json", "--metadata", '{"a": 1}', "--timestamp", "2023-05-08")
    added = document(edge("add", *said, stdin="and\n\nmilk\n"))
    assert [found["memory"] for found in added["results"]] == ["I like tea", "and", "milk"]
    identifier = added["results"][0]["id"]

    found = edge("search", "tea", "-n", "1", "--no-rerank", "--json")
    assert (document(found)["results"][0]["memory"], found.return_value) == ("I like tea", 0)
    shown = edge("search", "tea", "--no-rerank", "--explain", "--neighbours", "1").stdout
    assert "[2023-05-08T00:00Z] I like tea" in shown
    hit = document(edge("search", "tea", "--no-rerank", "--json"))["results"][0]
    assert f"  1  {hit['score']:.2f}  {hit['id']}  [2023-05-08T00:00Z] I like tea" in shown
    assert "  fused_rank 1\n" in shown or "  fused_rank 1  " in shown
    assert document(edge("search", "tea", "--json", "--filters", '{"a": 2}'))["results"] == []
    assert edge("search", "tea", "--filters", '{"a": 2}').return_value == 1
    assert len(document(edge("search", "tea", "--recency", "0.5", "--importance", "0.5", "--json"))["results"]) == 3

    assert len(edge("list").stdout.splitlines()) == 3
    assert document(edge("get", identifier, "--json"))["metadata"] == {"a": 1}
    assert "I like tea" in edge("get", identifier).stdout
    assert edge("get", "nothing").return_value == 1

    changes = ("I like coffee", "--metadata", '{"b": 2}', "--expires", "2020-01-01", "--pin", "--json")
    changed = document(edge("update", identifier, *changes))
    assert (changed["memory"], changed["metadata"], changed["pinned"]) == ("I like coffee", {"a": 1, "b": 2}, True)
    assert len(document(edge("list", "--json"))["results"]) == 3
    edge("update", identifier, "--unpin")
    assert len(document(edge("list", "--json"))["results"]) == 2
    assert len(document(edge("list", "--json", "--show-expired"))["results"]) == 3
    edge("update", identifier, "--expires", "never", "--forget")
    assert len(document(edge("list", "--json"))["results"]) == 2
    edge("update", identifier, "--recall")
    assert len(document(edge("list", "--json"))["results"]) == 3

    events = [line["event"] for line in document(edge("history", identifier, "--json"))["history"]]
    assert events == ["ADD", "UPDATE", "PIN", "UNPIN", "UPDATE", "FORGET", "RECALL"]
    assert "UPDATE    I like coffee" in edge("history", identifier).stdout
    assert "the history stays" in edge("delete", identifier).stderr
    assert edge("get", identifier).return_value == 1
    erased = document(edge("delete", identifier, "--purge", "--json"))
    assert erased["erased"] == {"memories": 0, "lines of history": 8}
    assert edge("history", identifier).return_value == 1
    printed = edge("delete", "--all", "--purge").stdout
    assert printed.startswith("erased: 2 memories, 2 lines of history\nnot reached, and may still hold the texts:\n  ")
    assert "backups" in printed
    assert document(edge("delete", "--all", "--json")) == {"deleted": "all"}
    assert edge("list").return_value == 1


def test_damaged_vectors_are_made_again(edge: Edge, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no memory"):
        edge("rebuild")
    edge("add", "I like tea", "--user-id", "ada")
    edge("add", "I like rain", "--run-id", "r")
    assert document(edge("rebuild", "--json")) == {"count": 2}
    assert edge("rebuild").stderr == "2 texts embedded again\n"
    assert [hit["memory"] for hit in document(edge("search", "tea", "--user-id", "ada", "--json"))["results"]] == [
        "I like tea"
    ]


def test_export_and_import(edge: Edge, tmp_path: Path) -> None:
    edge("add", "mine")
    edge("add", "hers", "--user-id", "ann")
    assert document(edge("export", str(tmp_path / "mine.jsonl"), "--json")) == {"count": 1}
    assert document(edge("export", str(tmp_path / "all.jsonl"), "--everyone", "--json")) == {"count": 2}
    hers = edge("export", "-", "--user-id", "ann").stdout
    assert json.loads(hers)["memory"] == "hers"
    assert not (tmp_path / "-").exists()
    none = edge("export", "-", "--user-id", "nobody")
    assert (none.stdout, none.stderr) == ("", "edge: no memory has these ids; --everyone writes those of all\n")
    edge("delete", "--all")
    assert document(edge("import", str(tmp_path / "all.jsonl"), "--everyone", "--json")) == {"count": 1}
    assert document(edge("import", str(tmp_path / "mine.jsonl"), "--json")) == {"count": 0}
    edge("delete", "--all", "--user-id", "ann")
    assert edge("import", "-", "--user-id", "ann", stdin=hers).stderr == "1 new memory imported\n"
    with pytest.raises(InputError, match="leave the ids out"):
        edge("export", str(tmp_path / "x.jsonl"), "--everyone", "--user-id", "ann")


@pytest.mark.parametrize(
    "arguments",
    [
        ("add",), ("add", "x", "--metadata", "{"), ("add", "x", "--metadata", "[]"), ("add", "x", "--importance", "2"),
        ("search", "x", "--filters", '{"a": {"near": 1}}'), ("search", ""), ("update", "x"), ("delete",),
        ("delete", "x", "--all"), ("add", "x", "--user-id", " "), ("add", "x", "--expires", "soon"),
        ("add", "--user-id", "\udcff", "x"), ("get", "\udcff"), ("history", "\udcff"), ("delete", "\udcff"),
        ("update", "\udcff", "x"), ("list", "--run-id", "\udcff"), ("list", "--filters", '{"a": "\\ud800"}'),
        ("list", "--filters", '{"a":' * 1_500 + "1" + "}" * 1_500), ("search", "x", "--filters", '{"\\ud800": 1}'),
        ("search", "\udcff"), ("list", "--filters", '{"AND":[' * 1_500 + "]}" * 1_500),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_sentence(edge: Edge, arguments: tuple[str, ...]) -> None:
    edge("add", "mine")
    with pytest.raises(InputError, match=r"^[^\n]+$"):
        edge(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",), ("get", "x"), ("search", "x"), ("history", "x"), ("export", "x.jsonl"), ("update", "x", "y"),
        ("delete", "x"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("there", [True, False])
def test_where_there_is_no_memory_none_is_made(
    edge: Edge, tmp_path: Path, arguments: tuple[str, ...], there: bool
) -> None:
    if there:
        (tmp_path / "m").mkdir()
    before = set(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="there is no memory in"):
        edge(*arguments)
    assert set(tmp_path.rglob("*")) == before


def test_what_is_not_found_is_said_so(edge: Edge) -> None:
    edge("add", "mine")
    for arguments in (("history", "unknown"), ("get", "unknown"), ("list", "--run-id", "r")):
        result = edge(*arguments)
        assert (result.return_value, result.stdout, result.stderr) == (1, "", "edge: nothing found\n")


def test_moments_are_shown_with_their_time_zone(edge: Edge) -> None:
    added = document(edge("add", "we met", "--timestamp", "2026-05-08T23:30-07:00", "--json"))
    assert "[2026-05-08T23:30-07:00] we met" in edge("list").stdout
    assert "Z  ADD " in edge("history", added["results"][0]["id"]).stdout


def test_a_text_known_already_is_said_so(edge: Edge) -> None:
    edge("add", "mine")
    assert "(known already)" in edge("add", "mine").stdout
    assert "much like" in edge("add", "mine", "--metadata", '{"a": 1}').stdout
