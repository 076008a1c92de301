"""The beginning of a long text, cut at a place where no tokenizer joins the characters on the two sides.

To tokenize a document of megabytes takes seconds, and hundreds of times the document's size in memory. A model reads
only the first few hundred tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_CHARS_PER_TOKEN = 8
_GROWTH = 4

_PLAIN = (
    "!-~\u00c0-\u024f\u0400-\u0481"  # ASCII but the space, Latin, Cyrillic
    "\u0e01-\u0e2e\u3041-\u3096\u30a1-\u30fa"  # Thai consonants, kana
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"  # Chinese characters, Hangul syllables
    "\U0001f400-\U0001f64f"  # emoji, but no skin colours
)
_PAIR = re.compile(f"[{_PLAIN}]{{2}}")
"""Two characters that no normalization joins: neither composes with the character before it, and the two do not form
one grapheme."""


class Clip:
    """The beginning of a text that probably has `tokens` tokens.

    Attributes:
        text: the beginning, or the whole text.
        cut: there is more than `text`.
        open: the text after the clip may change the clip's last tokens (see `continuation`).
    """

    __slots__ = ("_chars", "_inseparable", "_lead", "_whole", "cut", "open", "text")

    def __init__(self, whole: str, tokens: int, *, lead: str = "", inseparable: Sequence[str] | None = None) -> None:
        """Takes the first clip.

        Args:
            lead: text that is put before `whole`.
            inseparable: strings that must not be cut in two. None if a cut is allowed only between words; a text
                without spaces is then taken whole.
        """
        self._whole = whole
        self._lead = lead
        self._inseparable = inseparable
        self._chars = (tokens + 1) * _CHARS_PER_TOKEN
        self._take()

    def longer(self) -> Clip:
        """A clip four times as long."""
        longer = Clip.__new__(Clip)
        longer._whole, longer._lead, longer._inseparable = self._whole, self._lead, self._inseparable
        longer._chars = self._chars * _GROWTH
        longer._take()
        return longer

    def _take(self) -> None:
        self.cut = self.open = False
        if len(self._lead) + len(self._whole) <= self._chars:
            self.text = self._lead + self._whole
            return
        margin = max(map(len, self._inseparable or ()), default=0) + 1
        head = self._lead + self._whole[: self._chars + margin]
        end = _word_start(head, self._chars)
        if 2 * end < self._chars and self._inseparable is not None:
            anywhere = _seam(head, self._chars, self._inseparable)
            self.open = anywhere > end
            end = max(end, anywhere)
        self.cut = end > 0
        self.text = head[:end] if self.cut else self._lead + self._whole


def _word_start(head: str, end: int) -> int:
    """The last space before `end` that is followed by a word, 0 if there is none. Tokenizers always split before such a
    space. (In a run of spaces all but the last may be one token, and a combining mark can join the space before it.)"""
    while (end := head.rfind(" ", 0, end)) > 0:
        if head[end + 1].isalnum():
            return end
    return 0


def _seam(head: str, end: int, inseparable: Sequence[str]) -> int:
    """The last place up to `end` that is between two plain characters and inside no inseparable string, 0 if there is
    none."""
    while end > 0:
        starts = (head.find(token, max(0, end + 1 - len(token)), end - 1 + len(token)) for token in inseparable)
        within = min((start for start in starts if start >= 0), default=end)
        if within == end and _PAIR.match(head, end - 1):
            return end
        end = min(within, end - 1)
    return 0
