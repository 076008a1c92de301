"""Every regular expression of a module takes linear time on texts that are made to slow it down.

The texts are derived from the expression: what stands before a repetition, then the body of the repetition again and
again, then a character that nothing matches. The growth of time is measured, with a wide margin, so that a fast machine
finds what a slow one does.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from re import _compiler as compiler
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
_CALLED = re.compile(r"\bre\.(?:compile|search|match|fullmatch|split|findall|finditer|sub|subn)\(")
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def expressions() -> Iterator[Any]:
    """Every expression, its methods and its longest text: module and name of those that modules have, which are not
    imported before their test runs, and those that stand in calls inside of functions, with the flags named there."""
    paths = [path for room in ("edge", "models", "runtimes", "devices", "apps") for path in (ROOT / room).rglob("*.py")]
    for path in (path for path in sorted(paths) if "training" not in path.parts):
        names = path.relative_to(ROOT).with_suffix("").parts
        source = path.read_text(encoding="utf-8")
        for name in _COMPILED.findall(source):
            called = re.findall(rf"\b{name}\.(\w+)\b", source)
            methods = {each if each in ("match", "fullmatch") else "search" for each in called or ["search"]}
            known = ".".join((*names, name))
            module = ".".join(names if names[0] == "edge" else ("edge", *names))
            yield pytest.param((module, name), methods, BOUNDED.get(known, LONGEST), id=known)
        if not _CALLED.search(source):
            continue
        within = [node for node in ast.walk(ast.parse(source)) if isinstance(node, _FUNCTION)]
        calls = {call for function in within for call in ast.walk(function) if isinstance(call, ast.Call)}
        for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
            pattern = call.args[0] if call.args else None
            if _CALLED.fullmatch(f"{ast.unparse(call.func)}(") and isinstance(pattern, ast.Constant):
                flags = sum({getattr(re, node.attr) for node in ast.walk(call) if isinstance(node, ast.Attribute)
                             and isinstance(getattr(re, node.attr, None), re.RegexFlag)})  # fmt: skip
                name = ast.unparse(call.func).removeprefix("re.")
                method = name if name in ("match", "fullmatch") else "search"
                known = f"{path.relative_to(ROOT).as_posix()}:{call.lineno}"
                yield pytest.param(re.compile(pattern.value, flags), {method}, LONGEST, id=known)


def sample(tree: Any) -> str:
    """A text that an expression matches, as a rule."""
    return "".join(part(tree.state, item) for item in tree)


def part(state: Any, item: Any) -> str:
    """A text that a part of an expression matches; of a class its first character, a letter before all."""
    kind, value = item
    name = str(kind)
    if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        one = compiler.compile(parser.SubPattern(state, [item]))
        return next(char for char in chain("a1 :;-é\n", map(chr, range(sys.maxunicode))) if one.match(char))
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
        before += part(tree.state, item)


def seconds(call: Any, text: Any) -> float:
    started = time.process_time()
    call(text)
    return time.process_time() - started


@pytest.mark.parametrize(("found", "methods", "longest"), list(expressions()))
def test_time_grows_with_the_text(found: Any, methods: set[str], longest: int) -> None:
    expression = getattr(importlib.import_module(found[0]), found[1]) if isinstance(found, tuple) else found
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
