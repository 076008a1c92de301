"""Odd values in every field of every endpoint: each is answered or refused in the dialect's shape, and none is an
error of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from edge.apps.serve import refusals
from edge.apps.serve.endpoint import Endpoint, Events, ServedPath
from edge.apps.serve.refusals import Shape, anthropic, cohere, failed, jina, ollama, openai, plain, tei
from tests.apps.serve.asgi import Asked, ask, in_a_loop
from tests.apps.serve.every_request import Request, Site, site

pytest.importorskip("starlette")
pytest.importorskip("httpx")

PLACE = "the place of a value"
ODD = [
    "NaN", "1e400", "-1e308", "1" + "0" * 400, "9223372036854775807", "-1", "0", "true", "null", '""', '"\\ud800"',
    '"a\\u0000b"', '"\u00b2"', "[]", "{}", "[null]", '{"\\ud800": 1}', '{"text": 1}', "[" * 400 + "]" * 400,
]  # fmt: skip
"""Values as JSON texts, most of which Python would not write."""

ODD_TEXTS = ["\u00b2", "\uff11", "a\0b", "-1", "1e400", "9" * 30, "9" * 5000, "", " ", "true", "\u202e"]
"""Values behind a path, or in it."""

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)

CAPABILITY = 501
SHAPES = ("detail", "error", "message")


@pytest.fixture(scope="module")
def here(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tiny_models, tmp_path_factory.mktemp("values")) as found:
        yield found


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was reported as an error of the program."""
    found: list[str] = []

    def report(error: BaseException, verb: str) -> str:
        found.append(f"{verb}: {type(error).__name__}: {str(error)[:200]}")
        return "reported"

    monkeypatch.setattr(refusals, "report", report)
    return found


def fault(request: Request, answer: Any) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if answer.status_code != CAPABILITY and not 200 <= answer.status_code < 500:
        return f"{answer.status_code}: {answer.text[:200]}"
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return answer.text[-300:] if '"status": 5' in answer.text or "did not expect" in answer.text else ""
    if answer.status_code >= 400:
        said = answer.json()
        if not any(said.get(name) for name in SHAPES):
            return f"{answer.status_code} without a sentence: {answer.text[:200]}"
    elif answer.content and "json" in answer.headers.get("content-type", ""):
        answer.json()
    return ""


REMEMBERED = (
    "/memories", "/v1/memories", "/v3/memories", "/v3/memories/add", "/own/memory",
    "/search", "/v1/memories/search", "/v3/memories/search",
)  # fmt: skip
"""Requests whose lists the memory reads in a thread. It leases what they take."""


async def sent(here: Site, client: Any, request: Request, odd: str) -> Any:
    """The answer to a request whose `PLACE` holds a value that is given as JSON."""
    content = json.dumps(request.body).replace(json.dumps(PLACE), odd).encode()
    return await here.send(client, request, content=content)


def places(here: Site) -> Iterator[tuple[Request, str, Request]]:
    """Each place of each request, with `PLACE` there. Of several paths to one handler, only the first one is taken."""
    handlers = {(path.method, path.path): path.handler for path in here.paths}
    seen = set()
    for request in here.requests():
        body = request.body or {}
        how = body.get("stream"), body.get("model"), str(body.get("params"))
        for place, changed in request.variants(here.names(request), PLACE):
            key = handlers.get((request.method, request.kind)), how, place
            if key not in seen:
                seen.add(key)
                yield request, place, changed


def test_no_odd_value_is_an_error_of_the_server(
    here: Site, reports: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    async def sweep() -> list[str]:
        found: list[str] = []
        async with here.client() as client:
            for request, place, changed in places(here):
                for odd in ODD if place.startswith("body") else ODD_TEXTS:
                    before = len(reports)
                    if place.startswith("body"):
                        answer = await sent(here, client, changed, odd)
                    else:
                        answer = await here.send(client, changed.with_text(PLACE, odd))
                    wrong = fault(request, answer) or " ".join(reports[before:])
                    if wrong:
                        found.append(f"{request.method} {request.kind} {place} = {odd[:30]}: {wrong}")
        return found

    found = in_a_loop(sweep())
    assert not found, f"{len(found)}: {found[:10]}"
    assert "Traceback" not in capfd.readouterr().err


def lists(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    """Every list in a value that has entries, and its place."""
    if isinstance(value, list) and value:
        yield place, value
    for part, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from lists(inner, (*place, part))


def test_no_list_is_longer_than_one_request_may_make_it(here: Site) -> None:
    async def sweep() -> list[str]:
        found: list[str] = []
        async with here.client() as client:
            for request in here.requests():
                if request.body is None or request.kind.startswith("/mcp") or request.kind in REMEMBERED:
                    continue
                read = here.names(request)
                for place, value in lists(request.body):
                    many = value[:1] * (100_001 if request.by_socket else 10_001)
                    answer = await here.send(client, request.with_value(place, many))
                    bounded = "the most of one request" in answer.text
                    # An entry of the collections of a program is a pair of name and directory.
                    pair = place[:1] == ("collections",) and len(place) == 2
                    if read.issuperset(place[:1]) and not bounded and not (pair and answer.status_code == 422):
                        found.append(f"{request.method} {request.kind} {place}: {answer.status_code}")
        return found

    assert not (found := in_a_loop(sweep())), found


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_value_at_all_is_an_error_of_the_server(here: Site, data: st.DataObject) -> None:
    """Any value of JSON, in any place of a request that has a body, in a text that is read at once or in steps."""
    # The MCP servers belong to one event loop.
    bodies = [each for each in here.requests() if each.body and not each.kind.startswith("/mcp")]
    request = data.draw(st.sampled_from(bodies))
    _, changed = data.draw(st.sampled_from(list(request.variants(frozenset(), PLACE))))
    odd = json.dumps(data.draw(ANY)) + " " * data.draw(st.sampled_from([0, 200_000]))

    async def ask() -> Any:
        async with here.client() as client:
            return await sent(here, client, changed, odd)

    answer = in_a_loop(ask())
    assert not fault(changed, answer), (changed, odd[:300])


@pytest.mark.parametrize("shape", [plain, anthropic, openai, failed, cohere, jina, ollama, tei])
@pytest.mark.parametrize(
    "found", [{"text": "\ud800"}, ["\ud800"] * 10_000, {"x": object()}], ids=["text", "large", "object"]
)
def test_an_answer_that_cannot_be_written_is_refused_in_the_dialects_shape(
    here: Site, reports: list[str], shape: Shape, found: Any
) -> None:
    endpoint = Endpoint(here.server, ServedPath("POST", "/", lambda call: found, shape=shape))
    status, said, _ = in_a_loop(ask(endpoint, "/", {}))
    assert (status, said) == (500, shape(500, "the server met an error that it did not expect"))
    assert len(reports) == 1


class Streamed(Struct):
    stream: bool = True


async def streaming(here: Site, work: Callable[[Events], None]) -> str:
    """What a client gets of a stream whose work runs so."""
    path = ServedPath("POST", "/", lambda call, body: work(call.events), Streamed)
    asked = Asked(Endpoint(here.server, path), "/")
    asked.send(b"{}", last=True)
    await asked.task
    return asked.text


@pytest.mark.parametrize("count", [0, 200])
def test_an_error_that_nobody_expected_ends_a_stream_with_an_event(here: Site, reports: list[str], count: int) -> None:
    def work(events: Events) -> None:
        for number in range(count):
            events.offer("layer", {"number": number})
        raise RuntimeError("nobody expected this")

    said = in_a_loop(streaming(here, work))
    *_, last = said.strip().split("\n\n")
    assert last.startswith("event: error\n")
    assert '"status": 500' in last
    assert reports == ["edge serve: RuntimeError: nobody expected this"]
