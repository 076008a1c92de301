"""The beginning of a long text, cut where no tokenizer joins what stands on the two sides.

A document of megabytes costs as much time and hundreds of times its size in memory to tokenize, and a model reads its
first few hundred tokens only.
"""

from __future__ import annotations

_CHARS_PER_TOKEN = 8
_GROWTH = 4


class Clip:
    """The beginning of a text that probably has `tokens` tokens.

    Attributes:
        text: the beginning, or the whole text.
        cut: there is more than `text`.
    """

    __slots__ = ("_chars", "_whole", "cut", "text")

    def __init__(self, whole: str, tokens: int) -> None:
        self._whole = whole
        self._chars = (tokens + 1) * _CHARS_PER_TOKEN
        self._take()

    def longer(self) -> Clip:
        """A clip four times as long."""
        longer = Clip.__new__(Clip)
        longer._whole = self._whole
        longer._chars = self._chars * _GROWTH
        longer._take()
        return longer

    def _take(self) -> None:
        end = self._boundary()
        self.text = self._whole[:end]
        self.cut = end < len(self._whole)

    def _boundary(self) -> int:
        """The last space within reach that a word follows: tokenizers split before it whatever comes after. (A run of
        spaces may be one token but for its last, and a mark after a space can combine with it.) A text without such a
        place is taken whole."""
        whole = self._whole
        if len(whole) <= self._chars:
            return len(whole)
        end = self._chars
        while (end := whole.rfind(" ", 0, end)) > 0:
            if whole[end + 1].isalnum():
                return end
        return len(whole)
