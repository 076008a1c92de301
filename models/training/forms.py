"""Questions that the form of a document answers: what stands below a heading, beside an option, in a cell, after "To
do this, run". They teach the reader the lines, rows, options and blocks of code that SQuAD's prose does not have."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .pairs import plain
from .spans import Example

_CELLS = re.compile(r"(?<!\\)\|")
_OPTION = re.compile(
    r"^[ \t]*(?P<option>--?[A-Za-z0-9][^\n]{0,60}?)(?:\n[ \t]{4,}|[ \t]{2,}|\t)"
    r"(?P<said>[A-Z(][^\n]*(?:\n[ \t]{4,}\S[^\n]*)*)",
    re.MULTILINE,
)
_SETTING = re.compile(r"^\s*(?P<key>[A-Za-z_][\w.-]{2,40})\s*[:=]\s*(?P<value>\S[^\n]{0,60}?)\s*$", re.MULTILINE)
_GOAL = r"(?P<goal>[a-z][^,.;:]{6,80}?)"
_BEGIN, _END = r"(?:\A|(?<=[.!?]\s)|\n)", r"(?=\s|$)"
_DO, _MAY, _USE = ("how do I {goal}?", "how to {goal}"), ("how can I {goal}?",), "what is used to {goal}?"
_SENTENCES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(pattern + _END), asked)
    for pattern, asked in (
        (rf"{_BEGIN}To {_GOAL}, (?P<answer>[^\n]{{6,160}}?)[.:]", _DO),
        (rf"{_BEGIN}If you (?:want|need|wish) to {_GOAL}, (?P<answer>[^\n]{{6,160}}?)[.:]", _DO + _MAY),
        (rf"[Yy]ou can {_GOAL} (?P<answer>(?:by|using|with|via) [^.\n]{{6,120}})[.:]", _MAY),
        (
            r"(?P<answer>[A-Z`][^.,;\n]{2,60}?) (?:allows you to|lets you|can be used to|is used to|makes it possible"
            rf" to) {_GOAL}[.,;:]",
            (*_DO, _USE),
        ),
        (
            rf"{_BEGIN}The (?P<goal>[a-z][^.,;:()\n]{{4,60}}?) (?:is|are) (?P<answer>[^.\n]{{2,100}})\.",
            ("what is the {goal}?", "{goal}"),
        ),
        (
            rf"{_BEGIN}(?:(?:The|An?) )?(?P<goal>[A-Z`][^.,;:()\n]{{2,40}}?) is (?P<answer>an? [^.\n]{{10,160}})\.",
            ("what is {goal}?", "{goal}", "define {goal}"),
        ),
        (
            r"(?P<goal>[a-z`][^.,;:()\n]{2,50}?) (?:defaults to|is set to|is limited to)"
            r" (?P<answer>[^.,;\n]{1,60})[.,;]",
            ("what is the default of {goal}?", "what is {goal} by default?", "what is the limit of {goal}?"),
        ),
        (r"(?P<goal>[a-z][^.,;:()\n]{8,80}?) (?P<answer>because [^.\n]{10,140})\.", ("why {goal}?",)),
        (r"(?:\A|\n)- (?P<goal>[A-Z][^\n]{8,90}?):\s+(?P<answer>`[^\n]+`)", (*_DO, "{goal}", "command to {goal}")),
    )
)
_VERB = re.compile(
    r"(?!Th|If|When|Us[ei]|See|Same|Default|An?\b|As|For|In|On|Only|By|No[nt]?e?\b|With|It|Specif|[A-Z][a-z]+(?:al|ed|ing)\b)"
    r"(?P<verb>[A-Z][a-z]+?)(?:(?<=[sxh])es|(?<![su])s)?(?P<rest> [^.]*)"
)
"""A sentence that says what an option does, in the imperative or the third person."""
_EMPTY = re.compile(
    r"\b(?:here|this|that|these|those|it|its|his|such|above|below|following|example \d|source code|release notes)\b"
    r"|ms\.\w+|^(?:what is |how do i )?(?:synopsis|description|bugs|history|notes?|remarks|examples?|see also|authors?"
    r"|options|files|name|parameters?|if|new|last|title|conclusion|summary|overview|introduction|module)\b"
    r"|\b(?:which|where)$|how do i (?:if|in|for|we|the|an?|let|used|see|note|some|you|and)\b",
    re.IGNORECASE,
)
"""Questions that name nothing, because what they mean stands before the sentence or all over the document."""


@dataclass(frozen=True)
class Passage:
    """A passage as it is indexed: the titles and headings above it, its text, and the kind, start and end of each of
    its parts."""

    domain: str
    context: str
    text: str
    parts: tuple[tuple[str, int, int], ...]


def passages(path: Path) -> list[Passage]:
    """The passages of a file of JSON lines, each `[domain, context, text, [[kind, start, end], ...]]`."""
    with path.open(encoding="utf-8") as lines:
        return [Passage(d, c, t, tuple(map(tuple, parts))) for d, c, t, parts in map(json.loads, lines)]


def questions(passage: Passage, rng: random.Random) -> list[Example]:
    """Questions about a passage, each with the place of its answer."""
    found = []
    for question, start, end in [*_below(passage), *_options(passage), *_cells(passage), *_said(passage, rng)]:
        question = " ".join(plain(question).split())
        if (
            3 <= len(question.split()) <= 25
            and not re.match(r"how do I \S+$", question)
            and not _EMPTY.search(question)
            and start < end <= start + 600
        ):
            found.append(Example(_varied(question, passage, rng), passage.text, ((start, end),), passage.domain))
    return found


def _varied(question: str, passage: Passage, rng: random.Random) -> str:
    topic = re.split(r" > | — | \| |\.\w{2,4}(?:\.\w+)?$", passage.context)[0].strip()
    if topic and len(topic.split()) <= 4 and rng.random() < 0.25:
        question = f"{question.rstrip('?')} {rng.choice(('in', 'with', 'for'))} {topic}?"
    question = question if rng.random() < 0.7 else question.rstrip("?.").lower()
    return question[:1].upper() + question[1:] if rng.random() < 0.5 else question


def _below(passage: Passage) -> Iterator[tuple[str, int, int]]:
    """The block of code, or the first sentence or item, below a heading; and the code after a sentence with a colon."""
    for (kind, start, end), (below, first, last) in zip(passage.parts, passage.parts[1:], strict=False):
        name = plain(passage.text[start:end].strip()).strip("# =-*¶:")
        if kind == "heading" and below in ("sentence", "item", "code", "command") and 1 <= len(name.split()) <= 9:
            if re.match(r"[a-z]+ing\b", name, re.I):
                yield name, first, last
            elif below in ("code", "command") or re.match(r"How|To\b", name, re.I):
                yield re.sub(r"^(how to|to) ", "", f"how do I {name}?", flags=re.I), first, last
            else:
                yield (f"what is {name}?" if len(name.split()) <= 3 else name), first, last
        if (
            kind == "sentence"
            and below in ("code", "command")
            and name
            and passage.text[start:end].rstrip().endswith(":")
        ):
            yield f"{name}?" if name.lower().startswith(("how", "what")) else f"how do I {_goal(name)}?", first, last


def _goal(said: str) -> str:
    """What a sentence that leads to code says one can do with it."""
    match = re.search(r"\b(?:to|can|could|you(?:'ll| will)) ((?!be\b)[a-z]+ [^,:]{4,80})", said)
    return match[1] if match else said[:1].lower() + said[1:]


def _options(passage: Passage) -> Iterator[tuple[str, int, int]]:
    for match in _OPTION.finditer(passage.text):
        first = match["said"].split(". ")[0].rstrip(".")
        verb = _VERB.match(" ".join(first.split()))
        if verb is None or not 3 <= len(first.split()) <= 20:
            continue
        deed, start = f"{verb['verb'].lower()}{verb['rest']}", match.start("said")
        yield f"which option to {deed}?", *match.span("option")
        yield f"how do I {deed}?", match.start("option"), start + len(first)
        yield f"what does {match['option'].split(',')[0].split()[0]} do?", start, start + len(first)


def _cells(passage: Passage) -> Iterator[tuple[str, int, int]]:
    columns: list[str] = []
    for kind, start, end in passage.parts:
        text = passage.text[start:end]
        if kind == "columns":
            columns = [cell.strip() for cell in _CELLS.split(text.strip().strip("|"))]
        elif kind == "row" and columns:
            at, cells = start + len(text) - len(text.lstrip()), list[tuple[str, int]]()
            for cell in _CELLS.split(passage.text[at:end]):
                if cell.strip():
                    cells.append((cell.strip(), at + len(cell) - len(cell.lstrip())))
                at += len(cell) + 1
            if len(cells) == len(columns) >= 2:
                for name, (value, where) in list(zip(columns, cells, strict=True))[1:3]:
                    yield f"what is the {name} of {cells[0][0]}?", where, where + len(value)
        elif kind == "setting" and (match := _SETTING.search(text)):
            yield f"what is {match['key']} set to?", start + match.start("value"), start + match.end("value")


def _said(passage: Passage, rng: random.Random) -> Iterator[tuple[str, int, int]]:
    for pattern, asked in _SENTENCES:
        for match in list(pattern.finditer(passage.text))[:2]:
            goal = " ".join(match["goal"].split())
            goal = goal if goal[1:2].isupper() else goal[:1].lower() + goal[1:]
            yield rng.choice(asked).format(goal=goal), *match.span("answer")
