"""Every regular expression of a module takes linear time on texts that are made to slow it down.

The texts are derived from the expression: what stands before a repetition, then the body of the repetition again and
again, then a character that nothing matches. The growth of time is measured, with a wide margin, so that a fast machine
finds what a slow one does.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from re import _parser as parser
from typing import Any

import pytest

LONGEST = 16_000
"""Characters of the longest text. Linear time is some milliseconds, quadratic time is seconds."""

BOUNDED = {"apps.documents.code._CALLABLE": 300, "apps.documents.tables._TOKEN": 255}
"""Expressions that meet shorter texts only: heads of code, whose length `_head_name` looks at first, and formats."""

PATIENCE_S = 0.5
NOTICED_S = 0.02
"""Computing time above which the growth is measured."""

STEP = 4
GROWTH = 9
"""The most that the time may grow over a text of `1 / STEP` of the length; quadratic time grows by 16."""

UNMATCHED = "\x00"


ROOT = Path(__file__).parent.parent
_COMPILED = re.compile(r"^(_*[A-Z][A-Z0-9_]*)(?:: [^=\n]+)? = re\.compile\b", re.MULTILINE)


def expressions() -> Iterator[Any]:
    """Module, name, methods and longest text of every expression. Nothing is imported before its test runs."""
    for room in ("edge", "models", "runtimes", "devices", "apps"):
        for path in sorted((ROOT / room).rglob("*.py")):
            names = path.relative_to(ROOT).with_suffix("").parts
            source = path.read_text(encoding="utf-8")
            for name in [] if "training" in names else _COMPILED.findall(source):
                called = re.findall(rf"\b{name}\.(\w+)\b", source)
                methods = {each if each in ("match", "fullmatch") else "search" for each in called or ["search"]}
                known = ".".join((*names, name))
                module = ".".join(names if room == "edge" else ("edge", *names))
                yield pytest.param(module, name, methods, BOUNDED.get(known, LONGEST), id=known)


_CALLED = re.compile(r"\bre\.(?:compile|search|match|fullmatch|split|findall|finditer|sub|subn)\(")
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def inline() -> Iterator[Any]:
    """The expressions that stand in calls inside of functions, with the flags that are named there."""
    for room in ("edge", "models", "runtimes", "devices", "apps"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if "training" in path.parts:
                continue
            source = path.read_text(encoding="utf-8")
            if not _CALLED.search(source):
                continue
            within = [node for node in ast.walk(ast.parse(source)) if isinstance(node, _FUNCTION)]
            for call in {call for function in within for call in ast.walk(function)}:
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                    continue
                name, pattern = call.func.attr, call.args[0] if call.args else None
                if not (_CALLED.fullmatch(f"{ast.unparse(call.func)}(") and isinstance(pattern, ast.Constant)):
                    continue
                flags = sum({getattr(re, node.attr) for node in ast.walk(call) if isinstance(node, ast.Attribute)
                             and isinstance(getattr(re, node.attr, None), re.RegexFlag)})  # fmt: skip
                method = name if name in ("match", "fullmatch") else "search"
                known = f"{path.relative_to(ROOT).as_posix()}:{call.lineno}"
                yield pytest.param(re.compile(pattern.value, flags), method, id=known)


def character(items: Any) -> str:
    """A character of a class; a letter where the class excludes some."""
    kinds = {str(kind) for kind, _ in items}
    if "NEGATE" in kinds:
        return next(char for char in "a1 :;-é\n" if not any(matches(item, char) for item in items[1:]))
    for kind, value in items:
        if str(kind) == "LITERAL":
            return chr(value)
        if str(kind) == "RANGE":
            return chr(value[0])
        if str(kind) == "CATEGORY":
            return {"CATEGORY_SPACE": " ", "CATEGORY_DIGIT": "1", "CATEGORY_NOT_WORD": " "}.get(str(value), "a")
    return "a"


def matches(item: Any, char: str) -> bool:
    kind, value = item
    if str(kind) == "LITERAL":
        return chr(value) == char
    if str(kind) == "RANGE":
        return value[0] <= ord(char) <= value[1]
    categories = {
        "CATEGORY_SPACE": char.isspace(), "CATEGORY_DIGIT": char.isdigit(), "CATEGORY_WORD": char.isalnum(),
        "CATEGORY_NOT_SPACE": not char.isspace(), "CATEGORY_NOT_DIGIT": not char.isdigit(),
        "CATEGORY_NOT_WORD": not char.isalnum(),
    }  # fmt: skip
    return categories.get(str(value), False)


def sample(tree: Any) -> str:
    """A text that an expression matches, as a rule."""
    return "".join(map(part, tree))


def part(item: Any) -> str:
    kind, value = item
    name = str(kind)
    if name == "LITERAL":
        return chr(value)
    if name == "NOT_LITERAL":
        return "a" if chr(value) != "a" else "b"
    if name == "ANY":
        return "a"
    if name == "IN":
        return character(value)
    if name == "SUBPATTERN":
        return sample(value[-1])
    if name == "BRANCH":
        return sample(value[1][0])
    if "REPEAT" in name:
        return sample(value[2]) * max(1, min(value[0], 50))
    return ""


def pumps(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """For each repetition: what comes before it, and bodies to repeat."""
    for item in tree:
        name, value = str(item[0]), item[1]
        if "REPEAT" in name:
            if value[1] > 50:
                body = sample(value[2])
                yield before, body
                for other in (f"{body} ", f"{body}a", f"{body}\n"):
                    yield before, other
            yield from pumps(value[2], before)
        elif name == "SUBPATTERN":
            yield from pumps(value[-1], before)
        elif name == "BRANCH":
            for branch in value[1]:
                yield from pumps(branch, before)
        before += part(item)


@pytest.mark.parametrize(("module", "name", "methods", "longest"), list(expressions()))
def test_time_grows_with_the_text(module: str, name: str, methods: set[str], longest: int) -> None:
    check_growth(getattr(importlib.import_module(module), name), methods, longest)


@pytest.mark.parametrize(("expression", "method"), sorted(inline(), key=lambda each: str(each.id)))
def test_time_grows_with_the_text_inline(expression: re.Pattern[Any], method: str) -> None:
    check_growth(expression, {method}, LONGEST)


def seconds(call: Any, text: Any) -> float:
    started = time.process_time()
    call(text)
    return time.process_time() - started


def check_growth(expression: re.Pattern[Any], methods: set[str], longest: int) -> None:
    is_bytes = isinstance(expression.pattern, bytes)
    tree = parser.parse(expression.pattern, expression.flags & ~re.UNICODE if is_bytes else expression.flags)
    for before, body in dict.fromkeys(pumps(tree)):
        length = 12
        while body and length < longest:
            text, shorter = (
                made.encode("latin-1", "replace") if is_bytes else made
                for count in (length, length // STEP)
                for made in [before + body * (count // len(body) + 1) + UNMATCHED]
            )
            for method in methods:
                call = getattr(expression, method)
                taken = seconds(call, text)
                slow = f"{taken:.2f} s for {length} characters: {before[:80]!r}, then {body!r}"
                assert taken < PATIENCE_S, slow
                if taken > NOTICED_S:
                    assert min(seconds(call, text) for _ in range(3)) < GROWTH * seconds(call, shorter), slow
            length = length * 5 // 4
