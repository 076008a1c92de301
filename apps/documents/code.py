"""Splits source code of any language by its layout: blank lines, indentation, and lines that look like the head of a
function or type.

A block begins after a blank line at the left margin, and its name comes from the first head in it. Comments above a
head belong to the head's block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edge.apps.documents.base import Block

_LONGEST_HEAD = 300
_KEYWORD = re.compile(
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|inline|extern|unsafe|virtual"
    r"|override|open|sealed|data|pub(?:\([a-z]+\))?|const|local)\s+){0,6}"
    r"(?:class|struct|enum|union|trait|impl|interface|module|namespace|package|object|record|protocol|extension|type"
    r"|def|defmodule|defp|func|function|fun|fn|sub|proc|procedure|macro_rules!|macro|theorem|lemma|data|instance)"
    r"(?:<[^<>]{0,80}>)?\s+"
    r"(?:\([^()]{0,80}\)\s*)?(?:<[^<>]{0,80}>\s*)?([A-Za-z_$][\w$.:-]*)"
)
_CALLABLE = re.compile(r"(?:[A-Za-z_][\w:<>,\[\]~]*[\s*&]+){1,8}([A-Za-z_~][\w:~]*)\s*\([^;=]*$")
_BOUND = re.compile(r"(?:export\s+)?(?:const|let|var)\s+([A-Za-z_$][\w$]*)\s*=\s*(?:async\s*)?(?:function\b|\()")
_SECTION = re.compile(r"\[{1,2}([\w .:\"/-]{1,80})\]{1,2}\s*(?:[#;].*)?")
_CREATE = re.compile(
    r"create\s+(?:or\s+replace\s+)?(?:\w+\s+){0,2}?(?:table|view|function|procedure|trigger|index)\s+"
    r"(?:if\s+not\s+exists\s+)?([\w.\"`\[\]]+)",
    re.IGNORECASE,
)
_HEADS = (_KEYWORD, _BOUND, _CALLABLE, _SECTION, _CREATE)
_NOT_NAMES = frozenset({"if", "for", "while", "switch", "return", "else", "catch", "do", "new", "sizeof", "assert"})


def code_blocks(lines: Sequence[str], first: int, end: int, path: tuple[str, ...]) -> Iterator[Block]:
    """Blocks of the lines from `first` up to `end` (counted from 0). Together they hold all visible characters.

    Args:
        path: the names above the lines.
    """
    start = first
    for at in range(first + 1, end + 1):
        if at == end or (not lines[at - 1].strip() and _begins(lines[at])):
            for block in whole_lines(lines, start, at, path):
                name = _name(block.text)
                yield replace(block, path=(*path, name)) if name else block
            start = at


def whole_lines(lines: Sequence[str], first: int, end: int, path: tuple[str, ...]) -> Iterator[Block]:
    """Lines that are not split further, as one block without surrounding blank lines; no block if all are blank."""
    while first < end and not lines[first].strip():
        first += 1
    text = "\n".join(lines[first:end]).rstrip()
    if text:
        yield Block(text, first + 1, first + 1 + text.count("\n"), kind="lines", path=path)


def _begins(line: str) -> bool:
    """Whether a line may begin a block: it has no indentation and closes no bracket."""
    return bool(line) and not line[0].isspace() and line[0] not in ")]}"


def _name(text: str) -> str:
    """The name of the first function or type in a block; empty if there is none."""
    for line in text.split("\n", 60)[:60]:
        if not line or line[0].isspace() or line[0] in "#/*;-%'\"" or len(line) > _LONGEST_HEAD:
            continue
        for head in _HEADS:
            found = head.match(line)
            if found and found[1] not in _NOT_NAMES:
                return found[1].strip()
    return ""
