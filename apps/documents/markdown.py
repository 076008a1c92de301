"""Markdown: only the block structure is parsed, and chunks hold the unchanged source with its line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from edge.apps.documents.base import Block, DocumentBlocks, Outline, first_heading
from edge.apps.documents.kinds import COLUMNS, ITEM, ROW, Part, Parts
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.plain import paragraphs

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_KINDS = {"fence": "code", "code_block": "code", "table_open": "table", "html_block": "lines"}
_CLOSING = re.compile(r"[ \t>]*(?:`{3,}|~{3,})\s*")
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n(?:[^\n]*\n){0,400}?\1[ \t]*(?:\n|$)")
_FRONT_TITLE = re.compile(r"^title[ \t]*[:=][ \t]*[\"']?([^\n\"']{1,200})", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_LONGEST_HEADING = 300

_TAGS = re.compile(
    r"<!--(?:(?!-->)[\s\S]){0,5000}-->|^[ \t]*(?:</?[a-zA-Z][^<>]*>[ \t]*){1,9}|(?:</?[a-zA-Z][^<>]*>[ \t]*){1,9}$",
    re.MULTILINE,
)
"""Comments, and tags at either end of a line. The bounds keep the time linear."""

_MARKERS = re.compile(r"[ \t]*(?:(?:[-+*>]|\d{1,9}[.)])[ \t]*)*")
_MARKER = re.compile(r"[-+*>.)]")  # Markers of lists and quotations at the beginning of a line. Several markers nest.
_MOST = 10_000  # The most tokens of a part. A token takes up to 1.5 kB.


def extract(file: OpenedFile) -> DocumentBlocks:
    text = file.text()
    lines = text.split("\n")
    front = _FRONT_MATTER.match(text)
    blocks: list[Block] = []
    title, first = "", 0
    if front is not None:
        first = front[0].rstrip("\n").count("\n") + 1
        blocks += paragraphs(lines, 0, first, (), kind="settings")
        titled = _FRONT_TITLE.search(front[0])
        title = titled[1].strip() if titled else ""
    blocks += markdown_blocks(lines, Outline(), first)
    return DocumentBlocks(title or first_heading(blocks), blocks)


def markdown_blocks(lines: list[str], outline: Outline, first: int = 0, *, most: int = _MOST) -> Iterator[Block]:
    """Blocks from line `first` (counted from 0) to the end, which together hold all visible characters. The lines are
    parsed in parts, to bound the memory of tokens. The last block of a part may continue, so the next part begins with
    it. A block that is longer than a part becomes several blocks, unless it is a fence."""
    start = first
    while start < len(lines):
        end = _reach(lines, start, most)
        tokens = _parser().parse("\n".join(lines[start:end]))
        found = [
            (index, token, token.map)
            for index, token in enumerate(tokens)
            if not token.level and token.map is not None and token.type.endswith(("_open", "fence", "_block"))
        ]
        rest = end  # lines from `end` to here belong to the last block
        if end < len(lines) and found:
            _, last, (begin, _) = found[-1]
            if len(found) > 1:
                found.pop()
                rest = end = start + begin
            elif last.type == "fence":
                rest = _behind_fence(lines, end, last.markup)
            elif last.type == "table_open":
                rest = next((at for at in range(end, len(lines)) if not lines[at].strip()), len(lines))
            elif last.type in ("bullet_list_open", "ordered_list_open"):
                rest = end = start + _last_item(tokens, end - start)
        done = start
        for index, token, (at, behind) in found:
            opened, ended = start + at, min(start + behind, end)
            if ended == end:
                ended = rest
            yield from paragraphs(lines, done, opened, outline.path, kind="lines")  # link definitions leave no token
            done = ended
            while ended > opened and not lines[ended - 1].strip():
                ended -= 1
            text = "\n".join(lines[opened:ended]).rstrip()
            if token.type == "heading_open":
                path = outline.enter(int(token.tag[1:]), _heading(tokens[index + 1].content))
                yield Block(text, opened + 1, ended, kind="heading", path=path)
            elif ended > opened:
                kind = _KINDS.get(token.type, "prose")
                parts = _parts(text, tokens, index, opened - start)
                yield Block(text, opened + 1, ended, kind=kind, path=outline.path, parts=parts)
        yield from paragraphs(lines, done, rest, outline.path, kind="lines")
        start = rest


def _parts(text: str, tokens: list[Token], index: int, first: int) -> tuple[Part, ...]:
    parts = Parts(text)
    starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text)]
    block = tokens[index]
    in_item = in_head = in_table = False
    end = 0
    for token in tokens[index:]:
        if token.type == "list_item_open":
            in_item = True
        elif token.type in ("thead_open", "thead_close"):
            in_head = token.nesting == 1
        elif token.type in ("table_open", "table_close"):
            in_table = token.nesting == 1
        if token.map is not None:
            begins = starts[min(token.map[0] - first, len(starts) - 1)]
            ends = starts[min(token.map[1] - first, len(starts) - 1)]
            if token.type == "fence":
                ends = len(text) if token is block else ends  # it may go on beyond the tokens
                body = text[begins:ends].rstrip("\n")
                last = body.rfind("\n")
                closed = last >= 0 and _CLOSING.fullmatch(body, last + 1) is not None
                parts.fence(min(begins + body.find("\n") + 1, ends), begins + last if closed else ends)
            elif token.type == "code_block":
                parts.fence(begins, ends)
            elif token.type == "html_block":
                _html(parts, begins, ends)
            elif token.type == "tr_open":
                parts.add(COLUMNS if in_head else ROW, begins, ends)
            elif token.type == "inline" and not in_table:  # a row is one part
                if in_item:
                    parts.whole(ITEM, begins, ends)
                else:
                    parts.sentences(begins, ends)
                in_item = False
            end = max(end, ends if token is not block else 0)
        if token.level == block.level and token.nesting <= 0:
            break
    if block.type == "table_open":  # rows beyond the tokens
        parts.lines(ROW, max(end, 0), len(text))
    return tuple(parts.found)


def _html(parts: Parts, start: int, end: int) -> None:
    """Adds what is shown of HTML: without comments, and without the tags that begin and end lines."""
    in_code = False
    for tags in [*_TAGS.finditer(parts.text, start, end), None]:
        stop = end if tags is None else tags.start()
        if start < stop:
            (parts.fence if in_code else parts.plain)(start, stop)
        if tags is not None:
            start = tags.end()
            in_code = (in_code or "<pre" in tags[0].lower()) and "</pre" not in tags[0].lower()


def _reach(lines: list[str], start: int, most: int) -> int:
    """The line after the last one that fits into a part from `start`, of at least one line."""
    for at in range(start, len(lines)):
        markers = _MARKERS.match(lines[at])
        # A marker or cell opened by a line has a token at its start and one at its end, and a paragraph has three.
        most -= 3 + 6 * len(_MARKER.findall(markers[0] if markers else "")) + 3 * lines[at].count("|")
        if most < 0:
            return max(at, start + 1)
    return len(lines)


def _behind_fence(lines: list[str], start: int, markup: str) -> int:
    closing = re.compile(rf" {{0,3}}{re.escape(markup[0])}{{{len(markup)},}}[ \t]*$")
    return next((at + 1 for at in range(start, len(lines)) if closing.match(lines[at])), len(lines))


def _last_item(tokens: list[Token], end: int) -> int:
    """The first line of a list's last item, which may continue; `end` if there is only one item."""
    items = [token.map[0] for token in tokens if token.type == "list_item_open" and token.level == 1 and token.map]
    return items[-1] if items and items[-1] else end


def _heading(source: str) -> str:
    text = _LINK.sub(r"\1", source[:_LONGEST_HEADING])
    return " ".join(re.sub(r"[*`]|<[^<>]*>", "", text).split())


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.disable(["inline", "text_join"])
    return parser
