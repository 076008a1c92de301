"""A passage's text laid out for picking sentences from it: one unit of meaning per paragraph.

A passage keeps its file's lines. Wrapped lines are joined again, headings, list items and rows of tables stand alone,
and of code only the line stays that a sentence leads up to with a colon. A passage that holds no sentence is left line
by line.
"""

from __future__ import annotations

import re

_ENDED = re.compile(r"[.!?:;…][\"'”’)\]]*$")
_ITEM = re.compile(r"^\s*(?:[-*•–+]|\d{1,3}[.)]|\(\w\)|[A-Za-z][.)])\s+")
_CODE = re.compile(
    r"^(?:\s{4,}|\t|\s*[$>%]\s|\s*>>>|\s*(?://|#include|/\*|\*/|<\w+[^>]*>$|[{}()\[\];]+$)"
    r"|\s*(?:fn|let|def|class|import|use|pub|impl|return|const|var|public|static|if|for|while)\b.*[{;:(]$"
    r"|.*(?:[;{}]|\)\s*->.*|=>.*)$|.*\w\(.*\)\s*$)"
)
_ROW = re.compile(r"^\s*\|")
_RULE = re.compile(r"^\s*\|?\s*:?-{2,}[\s:|-]*$")
"""What parts the head of a table from its rows."""

_COMMAND = re.compile(r"^\s*(?:[$%]|>>>)\s+")
_LONE_MARK = re.compile(r"(?<=\s)([?!.:;])(?=\s)")
_WRAPPED = 60
_CONTINUED = 25
"""A line that does not end a sentence goes on in the next: if it is as long as wrapped lines are, or the next begins
with a small letter and this one is not as short as a label."""

_SHORT_CODE = 3
_LONGEST_CODE = 100
_SENTENCE_WORDS = 6


def prose(text: str) -> str:
    """Paragraphs, separated by empty lines.

    >>> prose("Running it\\nType this in order to run no more than\\nonly one test:\\n$ cargo test one\\nok\\n")
    'Running it\\n\\nType this in order to run no more than only one test: `cargo test one`\\n\\nok'
    """
    lines = text.expandtabs(4).split("\n")
    units: list[str] = []
    code: list[str] = []
    last = ""
    for line in [*lines, "."]:
        if _CODE.match(line) and not continues(last, line):
            code.append(line)
            last = ""
        elif not line.strip() or _RULE.match(line):
            last = ""
        else:
            _add_code(units, code)
            code = []
            if continues(last, line):
                units[-1] += " " + line.strip()
            else:
                units.append(line.strip())
            last = line.rstrip()
    del units[-1]  # the full stop that ended the text
    if not any(len(unit.split()) >= _SENTENCE_WORDS for unit in units):
        units = [line.strip() for line in lines if line.strip()]
    return "\n\n".join(_LONE_MARK.sub(r"`\1`", unit) for unit in units)


def continues(last: str, line: str) -> bool:
    """Whether a line continues the sentence of the one before."""
    if not last or _ENDED.search(last) or _ITEM.match(line) or _ROW.match(line) or _ROW.match(last) or line == ".":
        return False
    return len(last) >= _WRAPPED or (len(last) >= _CONTINUED and line.lstrip()[:1].islower())


def _add_code(units: list[str], code: list[str]) -> None:
    """Puts code behind the sentence that announces it: a command, or a few lines' first."""
    if not units or not units[-1].endswith(":") or not code:
        return
    first = code[0].strip()
    if len(first) <= _LONGEST_CODE and (_COMMAND.match(first) or len(code) <= _SHORT_CODE):
        units[-1] += f" `{_COMMAND.sub('', first)}`"
