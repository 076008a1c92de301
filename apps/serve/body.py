"""Reading a request's body: under a lease from its first byte, within bounds of size and time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from edge.apps.mcp.envelope import Envelope, parsed_nbytes
from edge.apps.serve.json_values import LARGE, read, read_at_once, said
from edge.apps.serve.limits import Limits, Shares
from edge.apps.serve.refusals import Refusal
from edge.apps.serve.security import CLIENT
from edge.budget import Lease, MemoryBudget
from edge.config import format_size
from edge.errors import BudgetExceeded

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from starlette.requests import Request

Result = TypeVar("Result")

_LEAST = 128 << 10
"""Memory of a request besides its body: the objects of the HTTP libraries, of its work, a small answer."""

_SMALL = 512 << 10
"""So much of each request is not counted towards its client's share. However much a client holds, others of its address
that bring no key can still send small requests."""

_ROOM = 16 << 20
"""Requests may try for so much together under the smallest limits, too; the budget then decides."""

_RETRY_S = "2"
_DRAINED_S = 2.0
_DRAINED = 4
"""So many times the allowed size is read and thrown away, so that a client that writes first gets to read why it was
refused."""


@dataclass(slots=True)
class _Claim:
    """What a request holds of its client's share.

    Attributes:
        nbytes: of its lease, less the part that is not counted.
    """

    client: str
    nbytes: int = 0


class Requests:
    """The requests that are being read or worked on, as far as their memory goes."""

    def __init__(self, budget: MemoryBudget, limits: Limits, needed: int = 0) -> None:
        """`needed`: bytes of the limit that large requests leave to the work: what the server needs for one search."""
        self.budget = budget
        self.limits = limits
        self._needed = needed
        self._shares = Shares(max(budget.limit - needed, _ROOM))
        self._claims: dict[Lease, _Claim] = {}
        self._aside: CapacityLimiter | None = None

    @property
    def open(self) -> int:
        """How many there are."""
        return len(self._claims)

    @asynccontextmanager
    async def leased(self) -> AsyncIterator[Lease]:
        """Holds the memory that a request takes before its body is read.

        Raises:
            Refusal: 429, as long as others hold the memory; 413 where it would not fit alone.
        """
        lease = self.budget.reserve("requests", 0)
        claim = self._claims[lease] = _Claim(CLIENT.get())
        try:
            self.hold(lease, _LEAST)
            yield lease
        finally:
            del self._claims[lease]
            self._shares.shrinks(claim.client, claim.nbytes)
            lease.release()

    def hold(self, lease: Lease, nbytes: int) -> None:
        """Grows a request's lease. Raises as `leased` does, also if its client holds too much."""
        claim, nbytes = self._claims[lease], max(lease.nbytes, nbytes)
        counted = max(claim.nbytes, nbytes - _SMALL)
        more = counted - claim.nbytes
        if not self._shares.grows(claim.client, more):
            raise self._share_refusal(claim, nbytes, counted)
        try:
            lease.resize(nbytes)
        except BudgetExceeded as error:
            self._shares.shrinks(claim.client, more)
            needed = format_size(max(error.needed, self._needed_for(counted)), up=True)
            if self.open > 1:
                raise Refusal(
                    429,
                    f"the request needs {format_size(nbytes)} of memory, and {self.open - 1} other requests hold it: "
                    f"send it again in {_RETRY_S} seconds, or start the server with --memory {needed}",
                    {"Retry-After": _RETRY_S},
                ) from None
            raise Refusal(
                413,
                f"the request needs {format_size(nbytes)} of memory, more than the limit of "
                f"{format_size(self.budget.limit)} leaves; --memory {needed} is the smallest that works",
            ) from None
        claim.nbytes = counted

    def _share_refusal(self, claim: _Claim, nbytes: int, counted: int) -> Refusal:
        if counted > self._shares.alone:
            needed = format_size(self._needed_for(counted), up=True)
            return Refusal(
                413,
                f"the request needs {format_size(nbytes)} of memory, more than the {format_size(self._shares.alone)} "
                f"that one client may hold; --memory {needed} is the smallest that works",
            )
        return Refusal(
            429,
            f"the request needs {format_size(nbytes)} of memory, and large requests of this client and others hold "
            f"it: send it again in {_RETRY_S} seconds",
            {"Retry-After": _RETRY_S},
        )

    def _needed_for(self, counted: int) -> int:
        """The smallest limit, in bytes, under which one client may hold so much."""
        return self._needed + 2 * counted

    async def aside(self, work: Callable[[], Result]) -> Result:
        """What `work` returns, which runs in a thread for the requests that are too large for the event loop. There is
        one such thread. Raises what `work` raises."""
        import anyio

        if self._aside is None:
            self._aside = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(work, limiter=self._aside)

    async def read(self, request: Request, lease: Lease) -> bytes:
        """The whole body. What it takes once parsed is held as well.

        Raises:
            Refusal: 413 if it is too long, 408 if it comes too slowly, others as `leased` raises.
        """
        import anyio

        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self.limits.body:
            await self._drain(request)
            raise self._too_long(int(announced))
        body = bytearray()
        envelope = Envelope()
        length = 0
        reason: Refusal | None = None
        try:
            with anyio.fail_after(self.limits.body_s):
                pieces = request.stream().__aiter__()
                while True:
                    try:
                        with anyio.fail_after(self.limits.pause_s):
                            piece = await pieces.__anext__()
                    except StopAsyncIteration:
                        break
                    length += len(piece)
                    if length > self.limits.body * (1 if reason is None else _DRAINED):
                        raise reason or self._too_long(length)
                    if reason is not None:
                        continue
                    envelope.feed(piece)
                    try:
                        self.hold(
                            lease, _LEAST + 2 * length + parsed_nbytes(length, envelope.structure, wide=envelope.wide)
                        )
                    except Refusal as refused:
                        reason = refused
                        body.clear()
                    else:
                        body += piece
        except TimeoutError:
            raise Refusal(
                408,
                f"the body did not arrive in time: {format_size(length)} came, and it may take "
                f"{self.limits.body_s:g} seconds with pauses of {self.limits.pause_s:g}",
                {"Connection": "close"},
            ) from None
        if reason is not None:
            raise reason
        return bytes(body)

    async def read_json(self, request: Request, lease: Lease) -> dict[str, Any]:
        """The body as one JSON object.

        Raises:
            Refusal: 400 if it is none, others as `read` raises.
        """
        body = await self.read(request, lease)
        try:
            if len(body) < LARGE:
                found = read_at_once(body.decode("utf-8"))
            else:
                found = await self.aside(lambda: read(body.decode("utf-8")))
        except RecursionError:
            raise Refusal(400, "the body is nested too deeply") from None
        except UnicodeDecodeError as error:
            raise Refusal(400, f"the body is not valid UTF-8 (byte {error.start})") from None
        except ValueError as error:
            raise Refusal(400, f"the body is not valid JSON: {error}") from None
        if not isinstance(found, dict):
            raise Refusal(400, f"the body is a JSON object, not {said(found)}")
        return found

    def _too_long(self, length: int) -> Refusal:
        bound = format_size(self.limits.body)
        return Refusal(413, f"the body has {format_size(length)} or more, and {bound} ({self.limits.body} bytes) is "
                       f"the most: send fewer texts at a time", {"Connection": "close"})  # fmt: skip

    async def _drain(self, request: Request) -> None:
        import anyio

        length = 0
        with anyio.move_on_after(_DRAINED_S):
            async for piece in request.stream():
                length += len(piece)
                if length > _DRAINED * self.limits.body:
                    return
