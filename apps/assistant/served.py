"""`ServedAnswer`: an answer that the user's server writes for `edge ask`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from edge.apps.serve.connection import Connection, Lost, Unserved
from edge.control_characters import escaped

_END_S = 10.0
"""If the server has not said within this time that it ends an answer, the command ends without the rest of it."""


class ServedAnswer:
    """An answer that the server writes.

    Attributes:
        begun: whether a part of it has arrived.
        data: after the last text, everything that is printed besides the text.
    """

    def __init__(self, connection: Connection, asked: dict[str, Any]) -> None:
        """`asked`: fields of the request, without the name by which its answer can be ended."""
        self.begun = False
        self.data: dict[str, Any] = {}
        self._connection = connection
        self._asked = {**asked, "name": os.urandom(16).hex()}

    def texts(self) -> Iterator[str]:
        """The pieces of its text, as they arrive. Troubles of the collection are printed before the first one.

        Raises:
            Unserved: the server did not finish the answer.
        """
        for name, data in self._connection.events("/own/ask", self._asked):
            if name not in ("text", "answer"):
                continue
            if not self.begun:
                self.begun = True
                for trouble in data["troubles"]:
                    click.echo(escaped(f"edge: {trouble}"), err=True)
            if name == "answer":
                self.data = data
                return
            yield data["text"]
        raise Lost("the server ended before it had answered")

    def cancel(self) -> None:
        """Ends the answer before its next token. The part that is written, with its citations, still arrives.

        Raises:
            KeyboardInterrupt: the server has not begun to answer, or cannot be told to end the answer. It ends the
                answer when the connection is closed.
        """
        try:
            done = self._connection.ask("/own/end", {"name": self._asked["name"]}, _END_S)
        except Unserved:
            raise KeyboardInterrupt from None
        if not done["ended"] and not self.begun:
            raise KeyboardInterrupt
