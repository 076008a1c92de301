"""`Endpoint`: what all endpoints share: a lease before the body is read, errors in the dialect's shape, counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge.apps.serve.body import Requests
from edge.apps.serve.json_values import is_large, json_response, write
from edge.apps.serve.refusals import Refusal, Shape, ending, plain, refusal, unexpected
from edge.apps.serve.security import CLIENT, client_of
from edge.apps.serve.working import Workers, urgency_of
from edge.budget import Lease, MemoryBudget
from edge.errors import EdgeError
from edge.scheduling.urgency import PROGRAM, Urgency

if TYPE_CHECKING:
    from starlette.requests import Request

    from edge.apps.serve.metrics import Metrics


@dataclass(slots=True)
class Call:
    """One request, as an endpoint sees it.

    Attributes:
        lease: holds what the request takes; given back when the answer is written.
        requests: reads the body under it.
    """

    request: Request
    lease: Lease
    requests: Requests
    workers: Workers

    @property
    def budget(self) -> MemoryBudget:
        """The one ledger of the server."""
        return self.requests.budget

    def urgency(self, default: int = PROGRAM) -> Urgency:
        """How urgent it is. Raises `Refusal` as `working.urgency_of` does."""
        return urgency_of(self.request, self.requests.limits, default)

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object. Raises as `Requests.read_json` does."""
        return await self.requests.read_json(self.request, self.lease)

    async def done(self, work: Callable[[], Any], urgency: Urgency | None = None) -> Any:
        """What `work` returns, which runs in a thread and is withdrawn when the client goes away."""
        return await self.workers.attended(self.request, urgency or self.urgency(), work)


Handler = Callable[[Call], Awaitable[Any]]
"""Answers a call: with an ASGI application, or with what is written as JSON."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One path and method of the server.

    Attributes:
        shape: how its errors are written.
    """

    method: str
    path: str
    handler: Handler
    shape: Shape = plain


class Endpoint:
    """An ASGI application around a handler."""

    def __init__(
        self, handler: Handler, requests: Requests, workers: Workers, metrics: Metrics, shape: Shape = plain
    ) -> None:
        self._handler = handler
        self._requests = requests
        self._workers = workers
        self._metrics = metrics
        self._shape = shape

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one request."""
        from starlette.requests import Request

        started = time.perf_counter()
        status = 0

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def refuse(error: Refusal) -> None:
            if not status:  # otherwise the answer has begun, and its connection is closed before its end
                await self._refused(error)(scope, receive, noted)

        CLIENT.set(client_of(scope))
        try:
            async with self._requests.leased() as lease:
                call = Call(Request(scope, receive), lease, self._requests, self._workers)
                answer = await self._answer(call)
                await answer(scope, receive, noted)
        except Refusal as error:
            await refuse(error)
        except asyncio.CancelledError:
            await refuse(ending())
        except Exception as error:
            await refuse(unexpected(error))
        finally:
            self._metrics.count(scope["path"], scope["method"], status or 500, time.perf_counter() - started)

    async def _answer(self, call: Call) -> Any:
        from starlette.requests import ClientDisconnect

        try:
            found = await self._handler(call)
            return found if callable(found) else await self._written(found)
        except Refusal as error:
            return self._refused(error)
        except EdgeError as error:
            return self._refused(refusal(error))
        except ClientDisconnect:
            return self._refused(Refusal(499, "the client has gone"))
        except Exception as error:
            return self._refused(unexpected(error))

    async def _written(self, found: Any) -> Any:
        """An answer with this content as JSON. If it may be long, it is written in a thread."""
        if not is_large(found):
            return json_response(found)
        from starlette.responses import Response

        text = await self._requests.aside(lambda: write(found))
        return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})

    def _refused(self, error: Refusal) -> Any:
        return json_response(self._shape(error.status, error.message), error.status, error.headers)
