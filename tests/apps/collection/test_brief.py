"""Brief answers: places and the lines that answer, within characters or tokens, whatever the documents hold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edge.apps.collection.hits import ROOM, Hit, Place, Stages, brief, written
from edge.apps.collection.query import snippet
from edge.apps.documents.base import Mail
from edge.apps.mcp.protocol import _harmless
from edge.text.control_characters import STEERING
from edge.text.tokens import expected_tokens, most_tokens

CODE = "\n".join(f"    value_{number} = compute({number}, *others)" for number in range(40))
HOSTILE = "\n".join(['"\\"\\"\u202e\x1b[2J\u2028' * 20, "compute"] * 5)
TEXTS = {
    "code": CODE,
    "one long line": "compute the value of it and more " * 200,
    "Chinese": "计算这个值。compute " * 300,
    "emoji": "🦀🧮 compute\n" * 200,
    "hostile": HOSTILE,
    "blank": "\n\n\n",
    "a hash": "compute " + "0f3a" * 800,
    "prose": "we compute the government of it\n" * 80,
    "short": "compute",
}


def hit(text: str, path: str = "/home/ada/project/a.py", **more: Any) -> Hit:
    """A result of a search for `compute`, whose lines begin with 7."""
    found = snippet(text, {"comput": 1.0})
    numbers = tuple(range(7, 8 + text.count("\n")))
    made = Hit(
        id=1, path=path, line_start=7, line_end=numbers[-1], page=None, score=0.5, snippet=found.text, text=text,
        title="", kind="text", context="", file=1, ordinals=(0, 0), marks=found.marks, numbers=numbers, line=7,
        stages=Stages(reranker=0.71828),
    )  # fmt: skip
    return replace(made, **more)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize(
    "path", ["/a.py", "/" + "folder/" * 40 + "a.py", "/" + "\u202e\x1b" * 100], ids=["short", "long", "hostile"]
)
@pytest.mark.parametrize("limit", [None, 1, 150, 2000])
@pytest.mark.parametrize("count", [0, 8, 20])
def test_an_answer_fits_its_room_whatever_the_documents_hold(
    text: str, path: str, limit: int | None, count: int
) -> None:
    mail = Mail("ann@example.org", "bob@example.org", "\u202ecompute " * 20, "2026-01-02T03:04:05Z")
    more = tuple(Place(number, number, number, None, 0.5) for number in range(30))
    rich = {"mail": mail, "more": more} if "\u202e" in path else {}
    one = hit(text, path, **rich)
    hits = [replace(one, collection=str(number % 2) if rich else "") for number in range(count)]
    around = "what is sent besides"
    found = brief(hits, top_k=max(1, count), max_tokens=limit, around=around)
    sent = around + written(_harmless(found))
    assert json.loads(written(found)) == found
    assert len(found["results"]) + found["left_out"] == count
    assert not any(STEERING.search(result["text"]) for result in found["results"])
    assert all(result["path"] == path for result in found["results"])
    if found["results"] or limit != 1:
        room = len(sent) if limit is None else most_tokens(expected_tokens(sent))
        assert room <= (ROOM * max(1, count / 8) if limit is None else limit)
    if limit is None and len(path) < 50:
        assert found["results"] or not count


def test_usual_results_all_fit_and_each_line_has_its_number() -> None:
    hits = [hit(CODE, f"/home/ada/project/source/package/module_{number}.py") for number in range(8)]
    found = brief(hits, top_k=8)
    assert (len(found["results"]), found["left_out"]) == (8, 0)
    lines = CODE.split("\n")
    for result in found["results"]:
        assert result.keys() == {"path", "lines", "relevance", "text"}
        shown = [line.partition(": ") for line in result["text"].split("\n")]
        assert len(shown) > 2
        assert all(lines[int(number) - 7] == text for number, _, text in shown)


def test_the_lines_with_the_words_of_the_query_are_shown_and_more_of_few_results() -> None:
    text = "\n".join(
        ["nothing here, and quite a lot of it"] * 30 + ["the answer is compute"] + ["more of nothing"] * 30
    )
    (one,) = brief([hit(text)], top_k=1)["results"]
    assert one["text"].count("\n") > 20
    for result in brief([hit(text)] * 8, top_k=8)["results"]:
        assert "37: the answer is compute" in result["text"]
