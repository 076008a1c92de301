"""`edge cluster load`: passages and vectors that exist already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from naive.program import output_of
from naive.spread import invented

from edge.apps.cli import edge
from edge.errors import InputError


@pytest.fixture
def there(home: Path) -> list[str]:
    """The options that name an empty collection in two shards."""
    options = ["-c", str(home / "all"), "--cluster", "here"]
    output_of(edge, "cluster", "create", *options, "--shard", f"a={home / 'a'}", "--shard", f"b={home / 'b'}")
    return options


@pytest.fixture
def given(home: Path) -> list[dict[str, str]]:
    """Passages of 30 documents, with their vectors beside them."""
    texts = list(invented(1, 90).values())
    passages = [{"path": f"doc-{at // 3}", "title": f"Part {at // 3}", "text": text} for at, text in enumerate(texts)]
    write(home, passages)
    (home / "plain.txt").write_text("".join(f"{text.split(chr(10))[0]}\n" for text in texts), encoding="utf-8")
    output_of(edge, "embed", "--docs", str(home / "plain.txt"), "--out", str(home / "v.npy"))
    return passages


def write(home: Path, passages: list[Any]) -> None:
    (home / "p.jsonl").write_text("".join(json.dumps(one) + "\n" for one in passages), encoding="utf-8")


def loaded(home: Path, there: list[str]) -> Any:
    words = ["cluster", "load", *there, "--vectors", str(home / "v.npy"), str(home / "p.jsonl")]
    return CliRunner().invoke(edge, words, standalone_mode=False)


def test_passages_are_found_by_the_vectors_that_came_with_them(
    home: Path, there: list[str], given: list[dict[str, str]]
) -> None:
    assert "30 documents added, 0 replaced, 0 there" in loaded(home, there).stderr
    (home / "q.txt").write_text("old ice", encoding="utf-8")
    output_of(edge, "embed", "--query", "--docs", str(home / "q.txt"), "--out", str(home / "q.npy"))
    found = json.loads(output_of(edge, "search", *there, "--json", "--no-rerank", "vec: old ice"))
    best = int(np.argmax(np.load(home / "v.npy") @ np.load(home / "q.npy")[0]))
    assert found["results"][0]["path"] == given[best]["path"]


def test_a_load_is_repeated_and_changes_only_what_differs(
    home: Path, there: list[str], given: list[dict[str, str]]
) -> None:
    loaded(home, there)
    assert "0 documents added, 0 replaced, 30 there" in loaded(home, there).stderr
    given[4]["text"] += " and more"
    write(home, given)
    assert "0 documents added, 1 replaced, 29 there" in loaded(home, there).stderr
    state = json.loads(output_of(edge, "cluster", "status", *there, "--json"))
    assert sum(shard["passages"] for shard in state["shards"].values()) == 90


def test_a_path_that_comes_again_is_counted_as_replaced(
    home: Path, there: list[str], given: list[dict[str, str]]
) -> None:
    vectors = np.load(home / "v.npy")
    np.save(home / "v.npy", vectors[:0])
    write(home, [])
    assert "0 documents added, 0 replaced, 0 there" in loaded(home, there).stderr
    np.save(home / "v.npy", vectors)
    given[-1]["path"] = given[0]["path"]
    write(home, given)
    assert "30 documents added, 1 replaced, 0 there" in loaded(home, there).stderr
    state = json.loads(output_of(edge, "cluster", "status", *there, "--json"))
    assert sum(shard["passages"] for shard in state["shards"].values()) == 87


def test_files_that_do_not_fit_are_refused(home: Path, there: list[str], given: list[dict[str, str]]) -> None:
    vectors = np.load(home / "v.npy")
    for rows, told in (
        (vectors[:89], "has 90 passages, and .* has 89 vectors"),
        (vectors[:, 1:], r"vectors of the collection's model: float32, \[n, \d+\]"),
        (vectors.astype(np.float64), "float32"),
        (vectors * np.where(np.arange(90) == 7, np.nan, 1)[:, None].astype(np.float32), "row 7 is no vector of length"),
        (vectors * 2, "row 0 is no vector of length 1"),
        (np.array([{}]), "cannot be read as .npy"),
    ):
        np.save(home / "v.npy", rows)
        with pytest.raises(InputError, match=told):
            raise loaded(home, there).exception
    np.save(home / "v.npy", vectors)
    for passage in (
        {"path": "x"},
        {"text": "x", "path": ""},
        {"text": 1, "path": "x"},
        [],
        {"path": "x", "text": None},
    ):
        write(home, [*given[:2], passage, *given[3:]])
        with pytest.raises(InputError, match=r"p\.jsonl, line 3: no object of JSON"):
            raise loaded(home, there).exception
    state = json.loads(output_of(edge, "cluster", "status", *there, "--json"))
    assert sum(shard["passages"] for shard in state["shards"].values()) == 0
