"""Filters against a plain twin that evaluates them on dictionaries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from apsw import Connection
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.memory.filters import compile_filters, names_scope, register
from edge.apps.memory.records import COLUMNS
from edge.errors import InputError

KEYS = ["a", "b", 'quo"te', "dot.ted", "ключ"]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 2.0, -1e300]),
    st.sampled_from(["", "a", "A", "ab", "Ä", "ä", "*x", "1", "true"]),
)  # fmt: skip
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(st.sampled_from(["k"]), scalars, max_size=1))
metadata = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
numbers_or_text = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 2.0]), st.sampled_from(["", "a", "A", "ä"]))
operations = st.one_of(
    st.tuples(st.sampled_from(["eq", "ne"]), scalars),
    st.tuples(st.sampled_from(["gt", "gte", "lt", "lte", "contains", "icontains"]), numbers_or_text),
    st.tuples(st.sampled_from(["in", "nin"]), st.lists(scalars, max_size=3)),
)
conditions = st.one_of(
    scalars, st.just("*"), st.lists(scalars, max_size=2),
    st.lists(operations, min_size=1, max_size=2).map(dict),
)  # fmt: skip
simple = st.dictionaries(st.sampled_from(KEYS), conditions, max_size=2)
trees = st.recursive(
    simple,
    lambda inner: st.dictionaries(st.sampled_from(["AND", "OR", "NOT"]), st.lists(inner, max_size=3), max_size=2),
    max_leaves=6,
)


def passes(data: dict[str, Any], filters: dict[str, Any]) -> bool:
    """The twin."""
    results = []
    for key, value in filters.items():
        if key == "AND":
            results.append(all(passes(data, part) for part in value))
        elif key == "OR":
            results.append(any(passes(data, part) for part in value))
        elif key == "NOT":
            results.append(not any(passes(data, part) for part in value))
        elif value == "*" and isinstance(value, str):
            results.append(data.get(key) is not None)
        elif isinstance(value, list):
            results.append(holds(data.get(key), "in", value))
        elif isinstance(value, dict):
            results.append(all(holds(data.get(key), operator, operand) for operator, operand in value.items()))
        else:
            results.append(holds(data.get(key), "eq", value))
    return all(results)


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


def holds(value: Any, operator: str, operand: Any) -> bool:
    if operator == "ne":
        return not holds(value, "eq", operand)
    if operator in ("in", "nin"):
        return any(holds(value, "eq", one) for one in operand) == (operator == "in")
    if operator == "eq":
        return kind(value) == kind(operand) and value == operand and kind(value) not in ("list", "dict")
    if operator in ("contains", "icontains"):

        def fold(x: Any) -> Any:
            return x.casefold() if operator == "icontains" and isinstance(x, str) else x

        if isinstance(value, str):
            return isinstance(operand, str) and fold(operand) in fold(value)
        return isinstance(value, list) and any(kind(x) == kind(operand) and fold(x) == fold(operand) for x in value)
    if kind(value) != kind(operand):
        return False
    return bool(
        {"gt": value > operand, "gte": value >= operand, "lt": value < operand, "lte": value <= operand}[operator]
    )


@pytest.fixture(scope="module")
def db() -> Iterator[Connection]:
    connection = Connection(":memory:")
    connection.execute(f"CREATE TABLE memories ({', '.join(COLUMNS)})")
    register(connection)
    yield connection
    connection.close()


def row(db: Connection, filters: dict[str, Any], **columns: Any) -> bool:
    """Whether a row with these columns passes."""
    given_columns = {"metadata": "{}"} | columns
    condition = compile_filters(filters)
    db.execute("DELETE FROM memories")
    marks = ", ".join("?" * len(given_columns))
    db.execute(f"INSERT INTO memories ({', '.join(given_columns)}) VALUES ({marks})", tuple(given_columns.values()))
    (count,) = db.execute(f"SELECT count(*) FROM memories WHERE {condition.sql}", condition.params).fetchone()
    (rest,) = db.execute(f"SELECT count(*) FROM memories WHERE NOT ({condition.sql})", condition.params).fetchone()
    assert count + rest == 1, "a condition is true or false, never unknown"
    return bool(count)


@given(data=metadata, filters=trees)
def test_filters_on_metadata_are_those_of_the_twin(db: Connection, data: dict[str, Any], filters: Any) -> None:
    assert row(db, filters, metadata=json.dumps(data, ensure_ascii=False)) == passes(data, filters)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"user_id": "ann"}, True), ({"user_id": "bob"}, False), ({"user_id": {"in": ["bob", "ann"]}}, True),
        ({"agent_id": 7}, True), ({"agent_id": "7"}, True), ({"run_id": None}, True), ({"run_id": {"ne": "x"}}, True),
        ({"memory": {"icontains": "GRÜN"}}, True), ({"memory": {"contains": "GRÜN"}}, False), ({"pinned": True}, True),
        ({"pinned": False}, False), ({"importance": {"gte": 0.5}}, True), ({"importance": 0.25}, False),
        ({"timestamp": "2023-05-08"}, True), ({"timestamp": {"gt": "2023-05-08"}}, False),
        ({"timestamp": {"gte": "2023-05-08", "lte": "2023-05-08"}}, True), ({"timestamp": {"lt": "2023-05-08"}}, False),
        ({"timestamp": {"lt": "2023-05-09"}}, True), ({"timestamp": {"gte": "2023-05-08T14:00"}}, False),
        ({"timestamp": {"lte": "2023-05-08T14:56+01:00"}}, True), ({"expiration_date": {"gt": "2029-01-01"}}, True),
        ({"created_at": "*"}, False),
        ({"created_at": {"ne": "2023-05-08"}}, True), ({"updated_at": "2023-05-08"}, False),
        ({"metadata": {"role": "x"}}, True), ({"role": "x"}, False),
        ({"metadata": {"role": {"ne": "x"}}}, False), ({}, True), ({"AND": []}, True), ({"OR": []}, False),
        ({"NOT": {"user_id": "ann"}}, False), ({"color": "red", "user_id": "ann"}, False),
    ],
)  # fmt: skip
def test_filters_on_fields(db: Connection, filters: dict[str, Any], expected: bool) -> None:
    found = row(
        db, filters, user_id="ann", agent_id="7", text="alles grün", pinned=1, importance=0.5,
        timestamp="2023-05-08T13:56:00.000000+00:00", expiration_date="2030-01-01", metadata='{"role": "x"}',
    )  # fmt: skip
    assert found is expected


@pytest.mark.parametrize(
    "filters",
    [
        {"a": {"near": 1}}, {"a": {}}, {"a": {"in": 5}}, {"a": {"gt": None}}, {"a": {"gt": True}}, {"a": {"gt": [1]}},
        {"a": {"contains": None}}, {"AND": "x"}, {"OR": [1]}, {"a": float("nan")}, {"a": 2**70}, {"a": object()},
        {"timestamp": "soon"}, {"expiration_date": {"lt": "x"}}, {"conversation_of": None},
        {"OR": [{f"k{n}": n} for n in range(600)]}, "a = 1", {"a": {"eq": 1, "is": 2}}, {"a": {"in": [None] * 600}},
    ],
)  # fmt: skip
def test_filters_that_make_no_sense_are_refused(filters: Any) -> None:
    with pytest.raises(InputError):
        compile_filters(filters)


@pytest.mark.parametrize("key", ["id", "k"])
def test_lists_may_be_long(db: Connection, key: str) -> None:
    many = [f"x{n}" for n in range(3_000)] + list(range(3_000))
    data = json.dumps({"k": "x2999"})
    assert row(db, {key: many}, uuid="x2999", metadata=data)
    assert not row(db, {key: {"nin": many}}, uuid="x2999", metadata=data)
    assert row(db, {key: {"nin": many}}, uuid="x3000", metadata="{}")
    assert row(db, {"memory": {"in": [*many, "a\0b"]}}, text="a\0b")
    assert not row(db, {"memory": {"in": [*many, "a\0b"]}}, text="a")


@pytest.mark.parametrize(
    "most",
    [{"OR": [{}] * 499}, {"AND": [{}] * 499}, {"OR": [{"a": 1}] * 499}, {"metadata": {str(n): n for n in range(499)}}],
)
def test_sqlite_takes_as_many_conditions_as_are_allowed(db: Connection, most: dict[str, Any]) -> None:
    condition = compile_filters(most)
    db.execute(f"SELECT 1 FROM memories WHERE {condition.sql}", condition.params).fetchall()
    ((key, value),) = most.items()
    more = {**value, "x": 1, "y": 1} if isinstance(value, dict) else [*value, *value[:2]]
    with pytest.raises(InputError, match="more than 500 conditions"):
        compile_filters({key: more})


def test_filters_nested_too_deep_are_refused() -> None:
    filters: dict[str, Any] = {"a": 1}
    for _ in range(40):
        filters = {"AND": [filters]}
    with pytest.raises(InputError, match="deeper"):
        compile_filters(filters)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"user_id": "a"}, True), ({"x": 1}, False), ({"user_id": {"ne": "a"}}, False),
        ({"run_id": {"in": ["a"]}}, True),
        ({"user_id": None}, False), ({"user_id": {"eq": None}}, False), ({"AND": [{"x": 1}, {"agent_id": "a"}]}, True),
        ({"OR": [{"user_id": "a"}, {"x": 1}]}, False), ({"OR": [{"user_id": "a"}, {"agent_id": "b"}]}, True),
        ({"OR": []}, False), ({"NOT": [{"user_id": "a"}]}, False), ({"user_id": {"contains": "a"}}, False),
        ({"user_id": ["a", "b"]}, True), ({"user_id": [None]}, False), ({"user_id": ["a", None]}, False),
        ({"user_id": []}, False), ({"user_id": {"in": []}}, False), ({"user_id": {"in": ["a", None]}}, False),
        ({"OR": [{"user_id": "a"}, {"agent_id": [None]}]}, False), ({"user_id": [None], "agent_id": "b"}, True),
    ],
)  # fmt: skip
def test_which_filters_name_a_scope(filters: dict[str, Any], expected: bool) -> None:
    assert names_scope(filters) is expected
