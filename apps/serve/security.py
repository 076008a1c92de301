"""`Gate`: decides whether a request is let in, before its body is read. A page of another site can make a browser send
requests to this machine, by its address or by a name that leads here. So the host that is named must be this machine,
and the page that asked, if a browser says so, the server's own. Programs are let through on this machine; from
elsewhere they need a token."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import platformdirs

from edge.apps.serve.connection import OWN
from edge.apps.serve.refusals import HttpRefusal, Shape, plain, refused
from edge.errors import CorruptBlock, StorageError
from edge.files.sealed import read_sealed, write_sealed

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        b"require-trusted-types-for 'script'; trusted-types 'none'",
    ),
)
"""Of every answer: nothing from elsewhere is loaded, nothing that a document holds is run, and no script turns a text
into HTML."""

_OPEN = frozenset({"/", "/health"})
_PAGE = "/page/"
"""Paths that need no token: they tell nothing, and a browser brings one only when the page has asked for it."""

_CLIENTS = 1024


@dataclass(frozen=True, slots=True)
class Access:
    """The clients that may use a server: further names of this machine, origins of other sites (CORS), and the token's
    SHA-256 in hexadecimal, empty if none is needed."""

    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    token: str = ""


class Gate:
    def __init__(
        self, application: Any, access: Access, rate: int = 0, shapes: Mapping[str, Shape] = MappingProxyType({})
    ) -> None:
        """`rate`: requests a minute for each token or address, 0 for no bound; `shapes` write the refusals by path."""
        self._application = application
        self._hosts = frozenset(host.lower() for host in access.hosts)
        self._origins = frozenset(access.origins)
        self._token = access.token
        self._rate = rate
        self._shapes = shapes
        self._seen: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        origin = ""
        try:
            headers = single_headers(scope["headers"])
            origin = headers.get("origin", "")
            if not by_socket(scope):
                self._check_public(scope["path"])
                self._check_host(headers.get("host", ""))
                self._check_site(headers, scope)
                self._check_rate(self._client(headers, scope))
        except HttpRefusal as error:
            headers = {"Connection": "close", **{name.decode(): value.decode() for name, value in _HEADERS}}
            await refused(error, self._shapes.get(scope["path"], plain), headers)(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and origin in self._origins:
            await _preflight(origin, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [*message.get("headers", ())]
                named = {name.lower() for name, _ in own}
                own += [(name, value) for name, value in _HEADERS if name not in named]
                if origin in self._origins:
                    own += [(b"access-control-allow-origin", origin.encode()), (b"vary", b"Origin")]
                message = {**message, "headers": own}
            await send(message)

        await self._application(scope, receive, guarded)

    def _check_public(self, path: str) -> None:
        if path == OWN or path.startswith(f"{OWN}/"):
            raise HttpRefusal(404, "this path is answered over the owner's Unix socket only")

    def _check_host(self, host: str) -> None:
        """A name that is not ours may have been pointed at this machine by a stranger. An address cannot be."""
        name = _name(host)
        if name == "localhost" or name.endswith(".localhost") or name in self._hosts:
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise HttpRefusal(
                421, f"this server is not called {name[:80]!a}; --host-name adds a name that it may be called by"
            ) from None

    def _check_site(self, headers: dict[str, str], scope: Any) -> None:
        origin = headers.get("origin", "")
        if origin:
            own = {f"{scheme}://{headers.get('host', '')}" for scheme in ("http", "https")}
            if origin not in own and origin not in self._origins:
                raise HttpRefusal(403, f"pages of {origin[:80]!a} may not use this server; --allow-origin lets them")
        elif headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not (
            headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        ):
            raise HttpRefusal(403, "pages of other sites may not use this server")

    def _client(self, headers: dict[str, str], scope: Any) -> str:
        """The name by which a rate is counted: the token, or the address if none counts."""
        address = str((scope.get("client") or ("", 0))[0])
        if not self._token:
            return f"address {address}"
        digest = sha256(given_token(headers).encode("utf-8", "replace")).hexdigest()
        if hmac.compare_digest(digest, self._token):
            return f"token {digest}"
        if scope["path"] in _OPEN or scope["path"].startswith(_PAGE) or scope["method"] == "OPTIONS":
            return f"address {address}"
        raise HttpRefusal(
            401,
            "a token is needed (Authorization: Bearer ...); `edge serve` printed it when it was made",
            {"WWW-Authenticate": "Bearer"},
        )

    def _check_rate(self, client: str) -> None:
        if not self._rate:
            return
        now = time.monotonic()
        left, then = self._seen.pop(client, (float(self._rate), now))
        left = min(float(self._rate), left + (now - then) * self._rate / 60)
        self._seen[client] = (max(0.0, left - 1), now)
        while len(self._seen) > _CLIENTS:
            self._seen.popitem(last=False)
        if left < 1:
            seconds = str(int((1 - left) * 60 / self._rate) + 1)
            raise HttpRefusal(
                429, f"{self._rate} requests a minute are allowed: the next one in {seconds} seconds",
                {"Retry-After": seconds},
            )  # fmt: skip


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def by_socket(scope: Any) -> bool:
    """Whether a request came over the Unix socket, which only its owner can open."""
    server = scope.get("server")
    return bool(server) and server[1] is None


def single_headers(headers: Any) -> dict[str, str]:
    """Headers by their names. Two of one name are refused, because the checks might see one and the application the
    other; so are two that say where the body ends (RFC 9112, section 6.3)."""
    found: dict[str, str] = {}
    for raw, value in headers:
        name = raw.decode("latin-1").lower()
        if name in found and name in ("host", "origin", "authorization", "content-length"):
            raise HttpRefusal(400, f"the header {name} occurs twice")
        found[name] = value.decode("latin-1")
    if "transfer-encoding" in found and "content-length" in found:
        raise HttpRefusal(400, "the headers content-length and transfer-encoding exclude one another")
    return found


def given_token(headers: dict[str, str]) -> str:
    kind, _, rest = headers.get("authorization", "").partition(" ")
    if kind.lower() in ("bearer", "token"):
        return rest.strip()
    return headers.get("x-api-key", "") or headers.get("api-key", "")


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


async def _preflight(origin: str, send: Any) -> None:
    headers = [
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
        (b"access-control-allow-headers", b"authorization, content-type, x-api-key, x-edge-priority, x-edge-timeout"),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


_FILE = "serve-token.json"


def token_file() -> Path:
    return platformdirs.user_data_path("edge-rag", appauthor=False) / _FILE


def known_token(*, new: bool = False) -> tuple[str, str]:
    """The token's SHA-256 in hexadecimal, and the token itself where it is made now: only its checksum is stored."""
    path = token_file()
    try:
        stored = None if new else read_sealed(path)
    except CorruptBlock as error:
        raise StorageError(f"{error}; `edge serve --new-token` makes another one") from None
    if stored is not None:
        return str(stored["token"]), ""
    token = secrets.token_urlsafe(24)
    digest = sha256(token.encode()).hexdigest()
    write_sealed(path, {"token": digest})
    path.chmod(0o600)
    return digest, token
