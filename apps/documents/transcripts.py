"""What was said when: subtitles (SubRip, WebVTT) and transcripts of speech recognition (Whisper's JSON).

Lines are seconds since the beginning, which people see as `00:03:12`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edge.apps.documents.base import Block, DocumentBlocks
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.plain import extract as extract_text

_TIME = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{1,2})[.,]\d{1,3}"
_CUE = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_VOICE = re.compile(r"<v(?:\.[\w.-]*)?[ \t]+([^<>]{1,100})>")
_TAG = re.compile(r"</?[a-zA-Z0-9][^<>\n]{0,200}>|\{\\[^{}\n]{0,200}\}")
_PAUSE = 4
"""Seconds without words that end a paragraph."""

_MOST_LINES = 60
_REPEATED = 3
"""Lines that a rolling subtitle may show again."""


@dataclass(frozen=True, slots=True)
class Said:
    """Words with the seconds of their beginning and end."""

    text: str
    begin: int
    end: int


def extract(file: OpenedFile) -> DocumentBlocks:
    """Reads subtitles; as plain text if there are none."""
    decoded = file.text()
    blocks = list(said_blocks(_without_repetitions(_cues(decoded.text))))
    return DocumentBlocks("", blocks, decoded.encoding) if blocks else extract_text(file)


def _cues(text: str) -> Iterator[Said]:
    """The lines of subtitles. Behind a cue's times they go on to a blank line."""
    begin = end = -1
    for line in text.split("\n"):
        if (cue := _CUE.match(line)) is not None:
            times = [int(part or 0) for part in cue.groups()]
            begin, end = ((hours * 60 + minutes) * 60 + seconds for hours, minutes, seconds in (times[:3], times[3:]))
        elif not line.strip():
            begin = -1
        elif begin >= 0:
            words = " ".join(html.unescape(_TAG.sub("", _VOICE.sub(r"\1: ", line))).split())
            if words:
                yield Said(words, begin, end)


def _without_repetitions(said: Iterable[Said]) -> Iterator[Said]:
    """Without lines that stand on the screen while the next ones come."""
    before: list[str] = []
    for each in said:
        if each.text not in before:
            yield each
        before = [*before[1 - _REPEATED :], each.text]


def said_blocks(said: Iterable[Said]) -> Iterator[Block]:
    """Paragraphs of what was said, which end where nobody speaks for a while."""
    open_: list[Said] = []
    for each in sorted(said, key=lambda each: each.begin):
        if open_ and (each.begin - open_[-1].end >= _PAUSE or len(open_) == _MOST_LINES):
            yield _paragraph(open_)
            open_ = []
        open_.append(each)
    if open_:
        yield _paragraph(open_)


def _paragraph(said: list[Said]) -> Block:
    lines = tuple(max(1, each.begin) for each in said)
    return Block("\n".join(each.text for each in said), lines[0], lines[-1], kind="paragraph", lines=lines)
