"""Source code of any language. Where its parser is installed (see `syntax`), by its syntax; else by what can be seen
without one: blank lines, indentation, and lines that look like the head of a function or a type.

A block is a stretch of lines that begins after a blank line at the left margin; its name is that of the first head in
it. Comments above a head belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from edge.apps.documents.base import Block, Document, Reason, Skipped
from edge.apps.documents.opened import OpenedFile

_LONGEST_HEAD = 300
_MINIFIED_LINE = 500
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


def extract(file: OpenedFile) -> Document:
    """Reads a source file.

    Raises:
        Skipped: it is minified, and nobody reads it as text.
    """
    from edge.apps.documents.syntax import syntax_blocks  # which cuts what it does not know as this module does

    decoded = file.text()
    lines = decoded.text.split("\n")
    full = [line for line in lines if line.strip()]
    if full and sum(map(len, full)) > _MINIFIED_LINE * len(full):
        raise Skipped(Reason.UNSUPPORTED, "minified or generated code")
    blocks = syntax_blocks(decoded.text, file.suffix)
    if blocks is None:
        blocks = list(code_blocks(lines, 0, len(lines), ()))
    return Document("", blocks, decoded.encoding)


def code_blocks(lines: Sequence[str], first: int, end: int, path: tuple[str, ...]) -> Iterator[Block]:
    """Blocks of the lines from `first` up to `end` (counted from 0), all of their visible characters in them.

    Args:
        path: what the lines stand under.
    """
    start = first
    for at in range(first + 1, end + 1):
        if at == end or (not lines[at - 1].strip() and _begins(lines[at])):
            text = "\n".join(lines[start:at]).rstrip()
            if text.strip():
                skipped = 0
                while not lines[start + skipped].strip():
                    skipped += 1
                text = "\n".join(lines[start + skipped : at]).rstrip()
                name = _name(text)
                yield Block(
                    text,
                    start + skipped + 1,
                    start + skipped + 1 + text.count("\n"),
                    kind="lines",
                    path=(*path, name) if name else path,
                )
            start = at


def _begins(line: str) -> bool:
    """Whether a line may begin a block: it stands at the margin and closes nothing."""
    return bool(line) and not line[0].isspace() and line[0] not in ")]}"


def _name(text: str) -> str:
    """The name of the first function or type whose head is in a block."""
    for line in text.split("\n", 60)[:60]:
        if not line or line[0].isspace() or line[0] in "#/*;-%'\"" or len(line) > _LONGEST_HEAD:
            continue
        for head in _HEADS:
            found = head.match(line)
            if found and found[1] not in _NOT_NAMES:
                return found[1].strip()
    return ""
