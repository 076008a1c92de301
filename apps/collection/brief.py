"""`brief`: the results of a search for a reader that pays for every word: places, and the lines that answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from edge.apps.collection.hits import Hit
from edge.text.control_characters import harmless
from edge.text.tokens import expected_tokens, most_tokens

ROOM = 2_500
"""Characters of an answer of `_RESULTS` results or fewer, if no number of tokens is given."""

_RESULTS = 8
_SHORTEST = {len: 60.0, expected_tokens: 20.0}  # A result with no room for so much of its lines is left out.
_MORE = 5

Size = Callable[[str], float]


def brief(hits: Sequence[Hit], *, top_k: int, max_tokens: int | None = None, around: str = "") -> dict[str, Any]:
    """The best of `hits` that fit, which share the room, and the number `left_out`. `max_tokens` (as `most_tokens`
    bounds them) replaces the characters. From the ninth of `top_k` results on, each adds its part to the room. `around`
    is what is sent beside the JSON, and counts, too."""
    size: Size = len if max_tokens is None else expected_tokens
    # The largest n with n + 2 sqrt(n) <= max_tokens.
    room = ROOM * max(1.0, top_k / _RESULTS) if max_tokens is None else (math.sqrt(max_tokens + 1) - 1) ** 2
    several = len({hit.collection for hit in hits}) > 1
    left = room - size(around) - size(written({"results": [], "left_out": len(hits)}))
    results: list[dict[str, Any]] = []
    for rest, hit in zip(range(len(hits), 0, -1), hits, strict=True):
        place = _place(hit, several)
        fixed = size(_shown({**place, "text": ""})) + 1
        text = _lines(hit, max(left / rest - fixed, _SHORTEST[size]), size)
        spent = fixed + size(written(text)[1:-1])
        if spent <= left:
            left -= spent
            results.append({**place, "text": text})

    def fits() -> bool:
        text = f"{around}{','.join(map(_shown, results))}{written({'results': [], 'left_out': len(hits)})}"
        return len(text) <= room if max_tokens is None else most_tokens(expected_tokens(text)) <= max_tokens

    while results and not fits():  # how many tokens a text has depends on all of its words
        results.pop()
    return {"results": results, "left_out": len(hits) - len(results)}


def written(value: object) -> str:
    """The JSON of an answer, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _shown(result: dict[str, Any]) -> str:
    return written({name: harmless(value) if isinstance(value, str) else value for name, value in result.items()})


def _place(hit: Hit, several: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"path": hit.path, "lines": f"{hit.line_start}-{hit.line_end}"}
    if hit.page is not None:
        found["page"] = hit.page
    if hit.relevance is not None:
        found["relevance"] = round(hit.relevance, 2)
    if several:
        found["collection"] = hit.collection
    if hit.mail is not None:
        found |= {"from": hit.mail.sender, "sent": hit.mail.sent[:10], "subject": hit.mail.subject}
    if hit.more:
        found["more"] = [place.name(hit.kind) for place in hit.more[:_MORE]]
    return found


def _lines(hit: Hit, room: float, size: Size) -> str:
    """The line with the most words of the query and those around it that fit, numbered; of a line that is longer, the
    snippet."""
    texts = harmless(hit.text).split("\n")
    numbers = (*hit.numbers, *range(hit.line_start + len(hit.numbers), hit.line_start + len(texts)))
    shown = [(number, text) for number, text in zip(numbers, texts, strict=False) if text.strip()]
    lines = shown or [(hit.line_start, "")]
    words = {hit.snippet[start:end].lower() for start, end in hit.marks}
    matches = [(sum(word in text.lower() for word in words), number == hit.line) for number, text in lines]
    first = last = matches.index(max(matches))
    numbered = [f"{number}: {text}" for number, text in lines]
    cost = [size(written(line)[1:-1] + "\\n") for line in numbered]
    left = room - cost[first]
    if left < 0:
        text = f"{lines[first][0]}: {harmless(hit.snippet)}"
        while len(text) > 1 and (spent := size(written(text)[1:-1])) > room:
            text = text[: min(len(text) - 2, int(len(text) * room / spent))] + "…"
        return text
    for _ in lines:
        for at in (last + 1, first - 1):
            if 0 <= at < len(lines) and cost[at] <= left:
                left -= cost[at]
                first, last = min(first, at), max(last, at)
    return "\n".join(numbered[first : last + 1])
