"""The HTTP protocol with bounds that uvicorn does not have: time for a request's head, time for taking the answer,
connections in all."""

from __future__ import annotations

import asyncio
from typing import Any

from edge.apps.serve.limits import Limits


def bounded_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol of HTTP/1.1, within `limits`."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class BoundedProtocol(H11Protocol):
        """Drops who is slow, and who is one too many."""

        _head: asyncio.TimerHandle | None = None
        _taking: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= limits.connections:
                transport.abort()
                return
            super().connection_made(transport)
            self._watch_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            if self.transport is not None:  # one that was too many was never ours
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport is None:
                return
            super().data_received(data)
            self._watch_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch_head(quiet=True)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._taking is None:
                self._taking = self.loop.call_later(limits.pause_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._taking is not None:
                self._taking.cancel()
                self._taking = None

        def _watch_head(self, *, quiet: bool = False) -> None:
            """Gives a request's head its time. Between two requests (`quiet`) the idle time of uvicorn counts."""
            waiting = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
            if self._head is not None and not waiting:
                self._head.cancel()
                self._head = None
            elif self._head is None and waiting and not quiet:
                self._head = self.loop.call_later(limits.head_s, self.transport.abort)

        def _stop(self) -> None:
            for timer in (self._head, self._taking):
                if timer is not None:
                    timer.cancel()
            self._head = self._taking = None

    return BoundedProtocol
