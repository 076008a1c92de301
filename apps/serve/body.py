"""The bodies of requests: read under a lease from the first byte, within bounds of size and time, decoded by msgspec,
which holds the interpreter's lock meanwhile: a body of very many values is refused."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import Field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from edge.apps.serve.limits import RETRY_S, Limits
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.store.rows import JsonSize
from edge.apps.verbs.options import Option, Options, RequestOptions, value_type
from edge.budget import Lease, MemoryBudget
from edge.config import format_size
from edge.errors import BudgetExceeded

if TYPE_CHECKING:
    from starlette.requests import Request

Body = TypeVar("Body", bound=msgspec.Struct)

MOST_VALUES = 300_000
"""Values of one body. As empty lists, which take longest, so many are decoded in 80 ms."""

MOST_ENTRIES = 10_000
"""Entries of a list in a body, unless its field takes fewer or more."""

Whole = Annotated[int, Meta(ge=1, le=2**63 - 1)]
"""A whole number from 1 on. Databases and arrays hold none of more than 64 bits."""

Texts = str | Annotated[list[str], Meta(max_length=MOST_ENTRIES)]
"""Texts; one alone counts as a list of one."""

PathText = Annotated[str, Meta(pattern=r"^[^\x00]*$")]


def with_idle(
    refused: Mapping[str, tuple[Any, ...]] = MappingProxyType({}), harmless: Sequence[str] = ()
) -> Callable[[type[Body]], type[Body]]:
    """Gives a class of bodies the fields of its dialect that are read and not obeyed: `harmless` ones change nothing,
    of `refused` ones only the values that change nothing are taken."""
    told = {name: f"Refused{_allowed(values)}." for name, values in refused.items()}
    told |= dict.fromkeys(harmless, "Accepted, and changes nothing.")

    def decorated(kind: type[Body]) -> type[Body]:
        known: Any = kind
        return _extended(
            kind,
            {name: Annotated[Any, Meta(description=use)] for name, use in told.items()},
            REFUSED={**getattr(known, "REFUSED", {}), **refused},
            HARMLESS=(*getattr(known, "HARMLESS", ()), *harmless),
        )

    return decorated


def with_options(options: type[RequestOptions]) -> Callable[[type[Body]], type[Body]]:
    """Gives a class of bodies the fields of a request's options that it lacks; `options_of` reads them."""
    members = {name: _member(each, option) for name, (each, option) in options.options().items()}
    return lambda kind: _extended(
        kind, {name: member for name, member in members.items() if name not in kind.__struct_fields__}
    )


def _extended(kind: type[Body], fields: Mapping[str, Any], **attributes: Any) -> type[Body]:
    made: Any = msgspec.defstruct(
        kind.__name__, [(name, member, None) for name, member in fields.items()], bases=(kind,),
        module=kind.__module__, kw_only=True, namespace={"__doc__": kind.__doc__, **attributes},
    )  # fmt: skip
    return made  # type: ignore[no-any-return]


def _member(each: Field[Any], option: Option) -> Any:
    kind: Any = value_type(each)
    bounds = {"ge": option.least, "le": option.most} if kind in (int, float) else {}
    kinds: dict[Any, Any] = {list: Texts, dict: dict[str, Any], object: Any}
    return Annotated[kinds.get(kind, kind), Meta(description=option.help, **bounds)] | None  # type: ignore[arg-type]


def options_of(
    body: msgspec.Struct, options: type[Options], usual: Mapping[str, Any] = MappingProxyType({})
) -> Options:
    """The options that a body with their fields gives."""
    given = {name: getattr(body, name) for name in options.options()}
    return options.from_json({name: usual.get(name) if value is None else value for name, value in given.items()})


def as_list(texts: Texts | None) -> list[str]:
    return [] if texts is None else [texts] if isinstance(texts, str) else texts


_LEAST = 128 << 10
"""Memory of a request besides its body: the objects of the HTTP libraries, of its work, a small answer."""

_SMALL = 512 << 10
"""So much of each request always fits, beside requests that hold all that they may."""

_LARGE = 64 << 10
"""A request whose body needs more than this, read and parsed, is large."""

_ROOM = 16 << 20
"""Requests may try for so much together under the smallest limits, too; the budget then decides."""

_DRAINED_S = 2.0
_DRAINED = 4
"""So many times the allowed size is read and thrown away, so that a client that writes first gets to read the
refusal."""


class Requests:
    """The memory of the requests that are being read or worked on. Thread-safe."""

    def __init__(self, budget: MemoryBudget, limits: Limits, needed: int = 0) -> None:
        """`needed`: bytes of the limit that requests leave to the work, enough for one search."""
        self.budget = budget
        self.limits = limits
        self.open = 0
        self._needed = needed
        self._left = max(budget.limit - needed, _ROOM)
        self._lock = threading.Lock()

    @staticmethod
    def is_large(lease: Lease) -> bool:
        return lease.nbytes > _LEAST + _LARGE

    @asynccontextmanager
    async def leased(self) -> AsyncIterator[Lease]:
        """Holds the memory that a request takes before its body is read; 429 while others hold the memory, 413 where it
        would not fit alone."""
        lease = self.budget.reserve("requests", 0)
        self.open += 1
        try:
            self.hold(lease, _LEAST)
            yield lease
        finally:
            self.open -= 1
            self._grows(-_counted(lease.nbytes))
            lease.release()

    def hold(self, lease: Lease, nbytes: int) -> None:
        """Grows a request's lease. Raises as `leased` does."""
        nbytes = max(lease.nbytes, nbytes)
        more, needed = _counted(nbytes) - _counted(lease.nbytes), self._needed + nbytes
        if self._grows(more):
            try:
                lease.resize(nbytes)
                return
            except BudgetExceeded as error:
                self._grows(-more)
                needed = max(needed, error.needed)
        enough = format_size(needed, up=True)
        if self.open > 1:
            raise HttpRefusal(
                429,
                f"the request needs {format_size(nbytes)} of memory, and {self.open - 1} other requests hold it: "
                f"send it again in {RETRY_S} seconds, or start the server with --memory {enough}",
                {"Retry-After": RETRY_S},
            )
        raise HttpRefusal(
            413,
            f"the request needs {format_size(nbytes)} of memory, more than the limit of "
            f"{format_size(self.budget.limit)} leaves; --memory {enough} is the smallest that works",
        )

    def _grows(self, more: int) -> bool:
        with self._lock:
            fits = more <= max(0, self._left)
            self._left -= more if fits else 0
            return fits

    async def read(self, request: Request, lease: Lease, *, typed: bool = True) -> bytes:
        """The whole body. Its memory once parsed is held as well."""
        import anyio

        announced = request.headers.get("content-length", "")
        body, size = bytearray(), JsonSize()
        reason: HttpRefusal | None = None
        if announced.isdigit() and int(announced) > self.limits.body:
            reason = self._too_long(int(announced))
        try:
            with anyio.fail_after(_DRAINED_S if reason else self.limits.body_s):
                pieces = request.stream().__aiter__()
                while True:
                    try:
                        with anyio.fail_after(self.limits.pause_s):
                            piece = await pieces.__anext__()
                    except StopAsyncIteration:
                        break
                    size.feed(piece)
                    if size.length > self.limits.body * (1 if reason is None else _DRAINED):
                        raise reason or self._too_long(size.length)
                    if reason is not None:
                        continue
                    try:
                        if size.structure > MOST_VALUES:
                            raise HttpRefusal(
                                413, f"the body holds more than {MOST_VALUES:,} values, the most of one request"
                            )
                        self.hold(lease, _LEAST + 2 * size.length + size.nbytes(typed=typed))
                        body += piece
                    except HttpRefusal as refused:
                        reason = refused
        except TimeoutError:
            raise reason or HttpRefusal(
                408,
                f"the body did not arrive in time: {format_size(size.length)} came, and it may take "
                f"{self.limits.body_s:g} seconds with pauses of {self.limits.pause_s:g}",
                {"Connection": "close"},
            ) from None
        if reason is not None:
            raise reason
        return bytes(body)

    def _too_long(self, length: int) -> HttpRefusal:
        bound = f"{format_size(self.limits.body)} ({self.limits.body} bytes)"
        return HttpRefusal(413, f"the body has {format_size(length)} or more, and {bound} is the most: "
                       f"send fewer texts at a time", {"Connection": "close"})  # fmt: skip


def _counted(nbytes: int) -> int:
    return max(0, nbytes - _SMALL)


def decoded(body: bytes, kind: Any) -> Any:
    """A body as an object of this msgspec type; 400 for no JSON object, 413 for a list that is too long, 422 for a
    wrong field."""
    try:
        return _checked(_decoder(kind).decode(body))
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None
    except RecursionError:
        raise HttpRefusal(400, "the body is nested too deeply") from None
    except (UnicodeDecodeError, msgspec.DecodeError) as error:  # msgspec 0.23 raises the latter for both
        said = "UTF-8" if "utf-8" in str(error).lower() else f"JSON: {error}"
        raise HttpRefusal(400, f"the body is not valid {said}") from None


def read_query(values: Mapping[str, str], kind: type[Any]) -> Any:
    try:
        return _checked(msgspec.convert(dict(values), kind, strict=False))
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None


@cache
def _decoder(kind: Any) -> Any:
    return msgspec.json.Decoder(kind)


def _checked(body: Any) -> Any:
    for name, harmless in getattr(body, "REFUSED", {}).items():
        value = getattr(body, name)
        if value is not None and value not in harmless:
            said = f"the field `{name}` asks for something that this server does not do{_allowed(harmless)}"
            raise HttpRefusal(422, said)
    return body


def _allowed(values: Sequence[Any]) -> str:
    written = [msgspec.json.encode(value).decode() for value in values]
    return f"; it may be {' or '.join(written)}" if written else ""


_EXPECTED = re.compile(r"Expected `([^`]+)`(?: of length)?(?: ([<>]=) (\d+))?(?:, got `([^`]+)`)?(?: - at `\$(.*)`)?")
_ELSE = re.compile(r"(.*?)(?: - at `\$(.*)`)?")
_NAMES = {
    "str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "null",
}  # fmt: skip


def _wrong(message: str) -> HttpRefusal:
    found = _EXPECTED.fullmatch(message)
    if found is None:
        found = _ELSE.fullmatch(message)
        said, place = (found[1], found[2]) if found else (message, None)
        if missing := re.fullmatch("Object missing required field `(.+)`", said):
            return HttpRefusal(422, f"the field `{_name(place, missing[1])}` is missing")
        if "matching regex" in said:
            return HttpRefusal(422, f"the field `{_name(place)}` holds a NUL, and no path does")
        return HttpRefusal(422, f"the field `{_name(place)}` is wrong: {said[:1].lower()}{said[1:200]}")
    kinds, sign, bound, got, place = found.groups()
    if not place and got:
        return HttpRefusal(400, f"the body is a JSON object, not {_NAMES.get(got, got)}")
    if sign and kinds == "array":
        return HttpRefusal(
            413, f"the field `{_name(place)}` has more than {int(bound):,} entries, the most of one request"
        )
    wanted = " or ".join(_NAMES.get(kind, kind) for kind in kinds.split(" | ") if kind != "null")
    if sign:
        wanted += f" of at {'least' if sign == '>=' else 'most'} {bound}"
    return HttpRefusal(
        422, f"the field `{_name(place)}` is {wanted}" + (f", not {_NAMES.get(got, got)}" if got else "")
    )


def _name(place: str | None, field: str = "") -> str:
    return ".".join(part for part in ((place or "").removeprefix("."), field) if part)
