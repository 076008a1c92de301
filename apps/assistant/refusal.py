"""`Refusal`: tells a generator's fixed refusal from an answer before anything is shown."""

from __future__ import annotations

from edge.apps.assistant.prompts import REFUSAL


class Refusal:
    """Holds a reply back as long as it may turn out to be the refusal that the generator was told to give.

    Attributes:
        said: it was the refusal.
    """

    def __init__(self) -> None:
        self.said = False
        self._held: str | None = ""

    def feed(self, text: str) -> str:
        """What can be shown after this piece."""
        if self._held is None:
            return text
        self._held += text
        begun = " ".join(self._held.split()).strip("\"'*. ").upper()
        if REFUSAL in begun:
            self.said = True
            return ""
        if REFUSAL.startswith(begun):
            return ""
        shown, self._held = self._held, None
        return shown

    def finish(self) -> str:
        """What was held back when the reply has ended."""
        held, self._held = self._held, None
        return held or ""
