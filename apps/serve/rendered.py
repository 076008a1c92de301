"""Markdown as a tree of a few harmless elements, from which the page makes nodes. No text becomes HTML on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

Element = str | dict[str, Any]
"""A text, or an object with `tag`, `children` (elements), and where there are any `lines` (the first and the last) and
`href`."""

_TAGS = {
    "paragraph": "p", "bullet_list": "ul", "ordered_list": "ol", "list_item": "li", "blockquote": "blockquote",
    "table": "table", "thead": "thead", "tbody": "tbody", "tr": "tr", "th": "th", "td": "td", "hr": "hr",
    "strong": "strong", "em": "em", "s": "s",
}  # fmt: skip
_HEADINGS = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}
"""The page has headings of its own above those of a document."""

_SCHEMES = frozenset({"http", "https", "mailto"})
"""Of addresses that a link may lead to. `javascript:` is not among them."""

_FARTHEST = 20
"""More missing lines than this are one blank line: a document may consist of blank lines almost alone."""

MOST_PARSED = 12_000_000
"""Bytes that the elements of a document, and what they are made from, may take."""

_PER_LINE, _PER_MARK, _PER_PIPE = 5_000, 1_300, 400
_MARKS = re.compile(r"[*_`~\[\]()!]")
"""Characters that may begin or end an element. Items of one letter took 3,800 bytes each, stars with one letter between
them 1,100, the pipes of a table 240."""


def parsed_nbytes(lines: Sequence[tuple[int, str]]) -> int:
    """A bound on the memory that `rendered` takes for some lines, in bytes."""
    marks = sum(len(_MARKS.findall(text)) for _, text in lines)
    pipes = sum(text.count("|") for _, text in lines)
    return _PER_LINE * len(lines) + _PER_MARK * marks + _PER_PIPE * pipes + 20 * sum(len(text) for _, text in lines)


def rendered(lines: Sequence[tuple[int, str]]) -> list[Element]:
    """The elements of a part of a Markdown document.

    Args:
        lines: number and text of each. Blank lines are missing among them, as the index does not hold them.
    """
    from markdown_it.tree import SyntaxTreeNode

    numbers: list[int] = []
    texts: list[str] = []
    for number, text in lines:
        if numbers and number > numbers[-1] + 1:
            gap = number - numbers[-1] - 1
            blanks = gap if gap <= _FARTHEST else 1
            numbers += [numbers[-1]] * blanks
            texts += [""] * blanks
        numbers.append(number)
        texts.append(text)
    tree = SyntaxTreeNode(_parser().parse("\n".join(texts)))
    return [element for child in tree.children for element in _elements(child, numbers)]


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def _elements(node: SyntaxTreeNode, numbers: Sequence[int]) -> Iterator[Element]:
    if node.type == "inline":
        for child in node.children:
            yield from _elements(child, numbers)
    elif node.type == "text":
        yield node.content
    elif node.type == "softbreak":
        yield "\n"
    elif node.type == "hardbreak":
        yield _element("br")
    elif node.type == "code_inline":
        yield _element("code", [node.content])
    elif node.type in ("fence", "code_block"):
        code = _element("code", [node.content.rstrip("\n")])
        yield _element("pre", [code], lines=_lines(node, numbers))
    elif node.type == "image":
        yield f"[{node.content or 'image'}]"  # a document's picture may be anywhere, and is not asked for
    else:
        children = [element for child in node.children for element in _elements(child, numbers)]
        if node.type == "link":
            yield from [_element("a", children, href=href)] if (href := _harmless(node)) else children
        elif node.type == "heading":
            yield _element(_HEADINGS[node.tag], children, lines=_lines(node, numbers))
        elif node.type in _TAGS:
            yield _element(_TAGS[node.type], children, lines=_lines(node, numbers))
        else:
            yield from children or [node.content]


def _element(tag: str, children: Sequence[Element] = (), **details: Any) -> Element:
    return {"tag": tag, "children": list(children), **{name: value for name, value in details.items() if value}}


def _lines(node: SyntaxTreeNode, numbers: Sequence[int]) -> list[int] | None:
    if node.map is None:
        return None
    start, end = node.map
    return [numbers[start], numbers[min(max(start, end - 1), len(numbers) - 1)]]


def _harmless(node: SyntaxTreeNode) -> str:
    """Where a link leads; empty unless that is an address elsewhere."""
    href = str(node.attrs.get("href", ""))
    try:
        scheme = urlsplit(href).scheme.lower()
    except ValueError:
        return ""
    return href if scheme in _SCHEMES else ""
