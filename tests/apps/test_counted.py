"""Numbers and their nouns in messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import edge.apps
from edge.config import counted

APPS = Path(edge.apps.__file__).parent
STORES = ("collection", "commands", "memory", "store")
PLURAL = re.compile(r" (\w+ies|\w*[a-rt-z]s)\b")
NEVER_ONE = {"bytes", "characters"}
"""Bytes are counted in whole pages, and characters only where they are too many."""


def test_a_noun_goes_with_its_number() -> None:
    assert [counted(n, "file") for n in (0, 1, 2, 1234)] == ["0 files", "1 file", "2 files", "1,234 files"]
    assert [counted(n, "memory", "memories") for n in (1, 2)] == ["1 memory", "2 memories"]


def plurals(path: Path) -> list[str]:
    """The f-strings of a file that set a plural behind any number. One that is chosen by a condition is right."""
    found = []
    tree = ast.parse(path.read_text("utf-8"))
    chosen = {id(part) for node in ast.walk(tree) if isinstance(node, ast.IfExp) for part in (node.body, node.orelse)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr) or id(node) in chosen:
            continue
        for number, after in zip(node.values, node.values[1:], strict=False):
            if not isinstance(number, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            is_count = number.format_spec is not None and ast.unparse(number.format_spec) == "f','"
            is_constant = isinstance(number.value, ast.Name) and number.value.id.isupper()
            match = PLURAL.match(str(after.value))
            if is_count and not is_constant and match is not None and match[1] not in NEVER_ONE:
                found.append(f"{path.name}:{node.lineno}: {match[1]}")
    return found


def test_no_message_of_a_store_sets_a_plural_behind_a_number_that_may_be_one() -> None:
    files = [path for folder in STORES for path in sorted((APPS / folder).glob("*.py"))]
    assert len(files) > 50
    assert not [found for path in files for found in plurals(path)]
