"""Filters in mem0's form, compiled to SQL: `{"category": "food"}`, `{"price": {"gte": 10}}`, `{"OR": [...]}`. Keys are
fields of a memory or keys of its metadata, `{"metadata": {...}}` the latter alone. A missing value equals nothing and
differs from everything, and `NOT` is the exact opposite. `{"conversation_of": id}` means all turns of a memory's
conversation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edge.apps.memory.arguments import SCOPE_FIELDS, check_unicode, parse_day, parse_moment, whole_day
from edge.apps.memory.records import KINDS, SHOWN
from edge.errors import InputError
from edge.ivf.base import Connection

OPERATORS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "contains", "icontains")
_COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_LOGICAL = ("AND", "OR", "NOT")
_COLUMNS: Mapping[str, str] = {
    "id": "uuid", "memory": "text", "hash": "hash", **{name: name for name in SHOWN if name != "local_timestamp"},
}  # fmt: skip
_CONVERSATION = """memories.id IN (
    WITH said AS (SELECT coalesce(conversation, id) AS first FROM memories WHERE uuid = ?)
    SELECT first FROM said UNION ALL SELECT id FROM memories JOIN said ON conversation = first)"""
_DEEPEST = 32
_TOO_DEEP = f"filters are nested deeper than {_DEEPEST}"
_MOST_CONDITIONS = 500
"""The most conditions of a filter. SQLite limits the depth of an expression to 1,000."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a row of `memories`, as SQL with parameters."""

    sql: str
    params: tuple[Any, ...] = ()

    @classmethod
    def all_of(cls, parts: Iterable[Condition]) -> Condition:
        return cls._joined(list(parts), " AND ", "1")

    @classmethod
    def any_of(cls, parts: Iterable[Condition]) -> Condition:
        return cls._joined(list(parts), " OR ", "0")

    def negated(self) -> Condition:
        return Condition(f"NOT ({self.sql})", self.params)

    @classmethod
    def _joined(cls, parts: list[Condition], word: str, empty: str) -> Condition:
        if not parts:
            return cls(empty)
        return cls(word.join(f"({part.sql})" for part in parts), tuple(p for part in parts for p in part.params))


def compile_filters(filters: Mapping[str, Any]) -> Condition:
    left = iter(range(_MOST_CONDITIONS))

    def count() -> None:
        if next(left, None) is None:
            raise InputError(f"filters have more than {_MOST_CONDITIONS} conditions")

    try:
        condition = _compile(filters, 0, count)
    except RecursionError:  # an operand is nested so deeply that a message cannot even show it
        raise InputError(_TOO_DEEP) from None
    for param in condition.params:
        if isinstance(param, str):
            check_unicode(param, f"{param!r} in the filters")
    return condition


def names_scope(filters: Mapping[str, Any]) -> bool:
    """Whether `filters` name a scope by themselves: every memory that passes has a scope id that they name."""
    return any(
        (key in SCOPE_FIELDS and _names(value))
        or (key == "AND" and any(names_scope(part) for part in _parts(key, value)))
        or (key == "OR" and bool(value) and all(names_scope(part) for part in _parts(key, value)))
        for key, value in filters.items()
    )


def register(db: Connection) -> None:
    db.create_scalar_function(
        "edge_casefold", lambda text: text.casefold() if isinstance(text, str) else None, 1, deterministic=True
    )


def _names(value: Any) -> bool:
    """Whether a condition on a scope field matches named ids only: null and `*` match others."""
    if isinstance(value, Mapping):
        return any(operator in ("eq", "in") and _names(operand) for operator, operand in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return bool(value) and None not in value
    return value not in (None, "*")


def _compile(filters: Any, depth: int, count: Callable[[], None]) -> Condition:
    if not isinstance(filters, Mapping):
        raise InputError(f"filters are a mapping such as {{'category': 'food'}}, not {filters!r}")
    if depth > _DEEPEST:
        raise InputError(_TOO_DEEP)
    if not filters:
        count()  # a filter without a key is a condition, too: SQLite bounds how many it joins
    parts: list[Condition] = []
    for key, value in filters.items():
        count()
        if key in _LOGICAL:
            inner = [_compile(part, depth + 1, count) for part in _parts(key, value)]
            joined = Condition.all_of(inner) if key == "AND" else Condition.any_of(inner)
            parts.append(joined.negated() if key == "NOT" else joined)
        elif key == "metadata" and isinstance(value, Mapping) and not (value and set(OPERATORS).issuperset(value)):
            for name, operand in value.items():
                count()
                parts.append(_field(_Field(str(name)), operand))
        elif key == "conversation_of":
            parts.append(Condition(_CONVERSATION, (check_unicode(value, "the id in the filter conversation_of"),)))
        else:
            parts.append(_field(_Field(str(key), _COLUMNS.get(key, "")), value))
    return Condition.all_of(parts)


def _parts(key: str, value: Any) -> list[Mapping[str, Any]]:
    """The filters inside AND, OR or NOT, which take one filter or a list of filters."""
    parts = [value] if isinstance(value, Mapping) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, Mapping) for part in parts):
        raise InputError(f"{key} takes a list of filters, not {value!r}")
    return list(parts)


@dataclass(frozen=True, slots=True)
class _Field:
    """A condition's left side: a column of `memories`, with the form in which its values are stored, or a top-level key
    of a memory's metadata, which may be any text."""

    name: str
    column: str = ""

    def test(self, predicate: str, params: tuple[Any, ...] = ()) -> Condition:
        """A condition from a predicate over `{value}` and `{type}`; false where the field is missing."""
        if self.column:
            kind = "'true'" if self.name == "pinned" else f"typeof(memories.{self.column})"
            sql = predicate.replace("{value}", f"memories.{self.column}").replace("{type}", kind)
            return Condition(f"coalesce({sql}, 0)", params)
        sql = predicate.replace("{value}", "field.value").replace("{type}", "field.type")
        return Condition(
            f"EXISTS (SELECT 1 FROM json_each(memories.metadata) AS field WHERE field.key = ? AND ({sql}))",
            (self.name, *params),
        )

    def test_day(self, sign: str, operand: Any) -> Condition | None:
        """A comparison by day, where a time is compared with a day: "until" a day means until its end. A timestamp's
        day is that in its own time zone."""
        day = whole_day(operand) if self.column and KINDS.get(self.name) == "moment" else None
        if day is None:
            return None
        local = "coalesce(memories.local_timestamp, {value})" if self.name == "timestamp" else "{value}"
        return self.test(f"substr({local}, 1, 10) {sign} ?", (day,))

    def present(self) -> Condition:
        return self.test("{type} <> 'null'")

    def operand(self, value: Any) -> Any:
        read = _READ.get(KINDS.get(self.name, "")) if self.column else None
        if read is not None and value is not None:
            return read(value, self.name)
        if self.column and self.name in SCOPE_FIELDS:
            value = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
            return value.strip() if isinstance(value, str) else value
        return value


_READ: Mapping[str, Callable[[Any, str], str]] = {"moment": parse_moment, "day": parse_day}


def _field(field: _Field, value: Any) -> Condition:
    """The condition of one key. A bare value means equality, a list means membership, and `*` means any value."""
    if value == "*":
        return field.present()
    if isinstance(value, list | tuple | set | frozenset):
        return _apply(field, "in", value)
    if not isinstance(value, Mapping):
        return _apply(field, "eq", value)
    if not value:
        raise InputError(f"the filter on {field.name!r} is empty; operators are {', '.join(OPERATORS)}")
    return Condition.all_of(_apply(field, str(operator), operand) for operator, operand in value.items())


def _apply(field: _Field, operator: str, operand: Any) -> Condition:
    if operator not in OPERATORS:
        raise InputError(f"{operator!r} is no operator of a filter; they are {', '.join(OPERATORS)}, AND, OR and NOT")
    if operator in ("in", "nin"):
        if not isinstance(operand, list | tuple | set | frozenset):
            raise InputError(f"{operator} takes a list, not {operand!r}")
        found = _member(field, operand)
        return found if operator == "in" else found.negated()
    if operator in ("eq", "ne"):
        found = _equal(field, operand)
        return found if operator == "eq" else found.negated()
    if operator in _COMPARISONS:
        return _compare(field, operator, operand)
    return _contains(field, operand, fold=operator == "icontains")


def _equal(field: _Field, operand: Any) -> Condition:
    if operand is None:
        return field.present().negated()
    if on_day := field.test_day("=", operand):
        return on_day
    operand = field.operand(operand)
    if isinstance(operand, bool):
        if field.column:
            return field.test("{type} = 'true' AND {value} = ?", (int(operand),))
        return field.test("{type} = ?", ("true" if operand else "false",))
    if isinstance(operand, int | float):
        return field.test("{type} IN ('integer', 'real') AND {value} = ?", (_number(operand),))
    if isinstance(operand, str):
        return field.test("{type} = 'text' AND {value} = ?", (operand,))
    raise InputError(f"a filter compares with text, numbers, true, false and null, not {operand!r}")


def _member(field: _Field, operands: Iterable[Any]) -> Condition:
    """Equality with one of `operands`. All texts are one condition, and so are all numbers."""
    texts: list[str] = []
    numbers: list[int | float] = []
    parts: list[Condition] = []
    for operand in operands:
        if field.test_day("=", operand):
            parts.append(_equal(field, operand))
            continue
        value = field.operand(operand)
        if isinstance(value, str) and "\0" not in value:  # json_each would end a text at NUL
            texts.append(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers.append(_number(value))
        else:
            parts.append(_equal(field, operand))
    if len(parts) > _MOST_CONDITIONS:
        raise InputError(
            f"a list of a filter has more than {_MOST_CONDITIONS} days, or values that are no text or number"
        )
    for values, kind in ((texts, "= 'text'"), (numbers, "IN ('integer', 'real')")):
        if values:
            sql = f"{{type}} {kind} AND {{value}} IN (SELECT json_each.value FROM json_each(?))"
            parts.append(field.test(sql, (json.dumps(values, ensure_ascii=False),)))
    return Condition.any_of(parts)


def _compare(field: _Field, operator: str, operand: Any) -> Condition:
    sign = _COMPARISONS[operator]
    if by_day := field.test_day(sign, operand):
        return by_day
    operand = field.operand(operand)
    if isinstance(operand, bool) or not isinstance(operand, int | float | str):
        raise InputError(f"{operator} takes a number or text, not {operand!r}")
    if isinstance(operand, str):
        return field.test(f"{{type}} = 'text' AND {{value}} {sign} ?", (operand,))
    return field.test(f"{{type}} IN ('integer', 'real') AND {{value}} {sign} ?", (_number(operand),))


def _contains(field: _Field, operand: Any, *, fold: bool) -> Condition:
    if isinstance(operand, bool) or not isinstance(operand, int | float | str):
        raise InputError(f"contains takes text or a number, not {operand!r}")
    folded = "edge_casefold({})" if fold else "{}"
    if isinstance(operand, str):
        operand = operand.casefold() if fold else operand
        text = f"{{type}} = 'text' AND instr({folded.replace('{}', '{value}')}, ?) > 0"
        member = f"json_each.type = 'text' AND {folded.replace('{}', 'json_each.value')} = ?"
    else:
        operand = _number(operand)
        text = "{type} = 'text' AND ? IS NULL"
        member = "json_each.type IN ('integer', 'real') AND json_each.value = ?"
    if field.column:
        return field.test(text, (operand,))
    # CASE, because SQLite might parse a text as JSON before it has checked that the value is an array.
    array = "json_each(CASE {type} WHEN 'array' THEN {value} ELSE '[]' END)"
    return field.test(f"({text}) OR EXISTS (SELECT 1 FROM {array} WHERE {member})", (operand, operand))


def _number(value: int | float) -> int | float:
    if not math.isfinite(value) if isinstance(value, float) else abs(value) >= 2**63:
        raise InputError(f"{value!r} cannot be compared with: it is no finite 64-bit number")
    return value
