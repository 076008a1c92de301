"""Texts of drawings in office files: charts, SmartArt, shapes, and descriptions of pictures (DrawingML)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from edge.apps.documents.archive import Archive, local, outermost
from edge.apps.documents.decoding import clean

_DRAWINGS = frozenset({"chart", "chartEx", "diagramData"})


def drawings(archive: Archive, relations: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The texts of the charts and the SmartArt among the parts to which a part refers, each a paragraph.

    Raises:
        InputError: a drawing is damaged.
    """
    for kind, part in relations:
        if kind in _DRAWINGS and part in archive.names:
            root = archive.xml(part)
            yield from paragraphs(root)
            yield from _series(root)


def paragraphs(element: Any) -> Iterator[str]:
    """The paragraphs of the text below an element that are not empty."""
    return filter(None, map(paragraph_text, outermost(element, {"p"}, {"Fallback"})))


def paragraph_text(paragraph: Any) -> str:
    found = paragraph.iter("{*}t", "{*}br", "{*}tab")
    return shown_lines("".join({"br": "\n", "tab": "\t"}.get(local(each)) or each.text or "" for each in found))


def shown_lines(text: str) -> str:
    """The lines of a text that are not blank, without white space around them."""
    lines = (line.strip() for line in clean(text).split("\n"))
    return "\n".join(line for line in lines if line)


def description(shape: Any) -> str:
    """The alternative text of a picture or another shape; empty if it has none."""
    found = next(shape.iter("{*}cNvPr", "{*}docPr"), None)
    return "" if found is None else " ".join(clean(found.get("descr", "")).split())


def _series(chart: Any) -> Iterator[str]:
    """The rows of a chart: the name of a series, and its values with their categories."""
    for series in chart.iter("{*}ser"):
        names, categories, values = (
            [" ".join(clean(value.text or "").split()) for part in parts for each in series.findall(part)
             for value in each.iter("{*}v")]
            for parts in (["{*}tx"], ["{*}cat", "{*}xVal"], ["{*}val", "{*}yVal"])
        )  # fmt: skip
        pairs = (" ".join(filter(None, pair)) for pair in zip_longest(categories, values, fillvalue=""))
        text = ": ".join(filter(None, (" ".join(names), ", ".join(filter(None, pairs)))))
        if text:
            yield text
