"""The options of requests: one field is enough for the command line, JSON, schemas and Python calls."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import datetime
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from edge.apps.collection.filters import Filters
from edge.apps.verbs.requests import AskOptions, RequestOptions, SearchOptions, search_options
from edge.errors import ArgumentError, InputError

KINDS = [SearchOptions, AskOptions]


def other(name: str, member: dict[str, Any]) -> Any:
    """A valid value that is not the default."""
    if member["type"] == "array":
        return ["type:pdf"]
    if member["type"] == "boolean":
        return not member["default"]
    return 1 if member.get("default") != 1 else 2


def given(options: type[RequestOptions], arguments: list[str]) -> RequestOptions:
    """What a command gets for some arguments."""
    found: list[RequestOptions] = []

    @click.command()
    @options.add_to
    def command(options: RequestOptions) -> None:
        found.append(options)

    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_an_option_of_the_command_line_and_of_json(kind: Any) -> None:
    assert [each.name for each, _ in kind.options().values()] == [each.name for each in fields(kind)]
    for name, member in kind.schema().items():
        each, option = kind.options()[name]
        value = other(name, member)
        changed = kind.from_json({name: value, "query": "river", "other": None})
        assert changed != kind()
        assert changed == kind.of(**{each.name: value})
        assert kind.from_json(json.loads(json.dumps(changed.to_json()))) == changed
        flags = (
            [option.flags[-1].split("/")[0]]
            if member["type"] == "boolean"
            else [option.flags[-1], str(np.ravel(value)[0])]
        )
        assert given(kind, flags) == changed
        assert member["description"]
    assert given(kind, []) == kind() == kind.from_json({})
    assert kind().to_json() == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_the_wrong_type_or_outside_its_bounds_is_refused(kind: Any) -> None:
    for name, member in kind.schema().items():
        for wrong in ({}, {"k": 1}, "text" if member["type"] != "array" else 3, float("nan")):
            with pytest.raises(InputError, match=f"the field `{name}` must be"):
                kind.from_json({name: wrong})
        each, option = kind.options()[name]
        for bound, step in (("minimum", -1), ("maximum", 1)):
            if bound in member:
                with pytest.raises(InputError, match=f"{option.what} must be"):
                    kind.of(**{each.name: member[bound] + step})
    with pytest.raises(ArgumentError, match="no option 'depth'; there are"):
        kind.of(depth=3)
    with pytest.raises(ArgumentError, match="rerank must be bool"):
        kind.of(rerank="no")


def test_options_together_are_changed_by_options_one_by_one() -> None:
    options = SearchOptions(top_k=3, rerank=False)
    assert search_options(None, options, {}) is options
    assert search_options(5, options, {"pool": np.int64(7)}) == SearchOptions(top_k=5, pool=7, rerank=False)
    assert type(SearchOptions(pool=np.int64(7)).pool) is int


def test_a_pool_holds_what_is_asked_for() -> None:
    assert AskOptions(passages=50).pool == 50
    assert (SearchOptions(top_k=50).candidates, SearchOptions(top_k=5, rerank=False).candidates) == (100, 10)


def test_filters_are_the_same_in_another_process(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filters = Filters(
        paths=("./docs/", "*.md"), kinds=("pdf",), after=datetime(2024, 1, 31, 18, 30), larger=20_000, smaller=2**40
    )
    texts = SearchOptions(where=filters).to_json()["filters"]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    there = SearchOptions.from_json({"filters": texts}).filters
    assert there.paths == (f"{tmp_path}/docs", "*.md")
    assert (there.kinds, there.after, there.larger, there.smaller) == (("pdf",), filters.after, 20_000, 2**40)
