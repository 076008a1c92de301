"""Large bodies and answers are read and written in steps, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.program import config_of

from edge.apps.serve import body, endpoint
from edge.apps.serve.json_values import LARGE, is_large, read, read_at_once, write
from edge.apps.serve.server import Server
from edge.resident import anonymous_resident
from tests.apps.serve.asgi import Asked, ask, in_a_loop

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_reading_finds_what_python_finds(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert read(text) == read_at_once(text) == json.loads(text) == value


@given(st.text(alphabet='[]{}",:01e.-+ntfalse\\u \n', max_size=40))
@example('{"a": 1, "a": 2}')
@example('"\\ud800"')
@example("[1,]")
@example("")
@example("[NaN, Infinity]")
@example("[1e400]")
@example('{"\\udfff": [{"a": "\\ud83d\\ude00"}]}')
@example('"\\ud83d\\ude00"')
@example('"\\\\ud83d"')
@example("\ufeff1")
def test_reading_refuses_what_python_refuses_and_what_no_answer_can_hold(text: str) -> None:
    def strictly(text: str) -> Any:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        return value

    def found(by: Callable[[str], Any]) -> str:
        try:
            return repr(by(text))
        except ValueError:
            return "no JSON"

    assert found(read) == found(read_at_once) == found(strictly)


@given(VALUES)
def test_writing_is_that_of_short_answers(value: Any) -> None:
    responses = pytest.importorskip("starlette.responses")
    try:
        expected = responses.JSONResponse(value).body
    except UnicodeEncodeError:  # half of a pair of surrogates
        with pytest.raises(UnicodeEncodeError):
            write(value)
    else:
        assert write(value) == expected
    assert json.loads(json.dumps(value)) == value


def calls_within(work: Callable[[], object]) -> int:
    """How many functions in Python `work` calls. Before each, another thread may run."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    def counted() -> None:
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=counted)
    thread.start()
    thread.join()
    return count


def test_the_interpreters_lock_is_held_for_one_value_at_a_time() -> None:
    value = [{"text": "a", "numbers": [1.5] * 10}] * 100
    text = json.dumps(value)
    parts = 100 * 12
    assert calls_within(lambda: read(text)) >= parts
    assert calls_within(lambda: write(value)) >= parts
    assert calls_within(lambda: json.loads(text)) < parts, "the same would be true of anything"


@given(VALUES)
def test_what_is_not_large_is_written_quickly(value: Any) -> None:
    if not is_large(value):
        assert len(json.dumps(value)) < 2 * LARGE


@pytest.mark.parametrize(
    "value",
    [["a"] * 5000, {str(n): n for n in range(5000)}, ["x" * LARGE], [[[1.5] * 400] * 20] * 2, {"x" * LARGE: 1}],
    ids=["list", "object", "text", "nested", "name"],
)
def test_what_is_large(value: Any) -> None:
    assert is_large(value)


class Held:
    """A function in whose place a test stands: it goes on when the test lets it.

    Attributes:
        thread: in which it was called.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self.thread = 0
        self._function = function

    def __call__(self, value: Any) -> Any:
        self.thread = threading.get_ident()
        self.begun.set()
        assert self.goes_on.wait(120), "nobody else was served meanwhile"
        return self._function(value)


@pytest.fixture
def server(tiny_models: Path, tmp_path: Path) -> Iterator[Server]:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    config = config_of(tiny_models, tmp_path / "scratch", memory=anonymous_resident() + 10**9)
    with Server(config, collections=(), memory=tmp_path / "memory") as server:
        yield server


def test_others_are_served_while_a_large_body_is_read_and_a_large_answer_written(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = Held(read), Held(write)
    monkeypatch.setattr(body, "read", reading)
    monkeypatch.setattr(endpoint, "write", writing)
    small = {"query": "x", "documents": ["a", "b"]}
    large = {**small, "documents": ["b " * LARGE, "a"], "return_documents": True}

    async def serve() -> tuple[tuple[int, Any], list[int]]:
        application = server.application()
        asked, statuses = Asked(application, "/v1/rerank"), []
        asked.send(json.dumps(large).encode(), last=True)
        for held in (reading, writing):
            await asyncio.to_thread(held.begun.wait, 120)
            statuses.append((await ask(application, "/v1/rerank", small))[0])
            assert not asked.task.done()
            assert held.thread != threading.get_ident()
            held.goes_on.set()
        status, content, _ = await asked.answer()
        return (status, content), statuses

    (status, content), others = in_a_loop(serve())
    assert others == [200, 200]
    assert status == 200
    texts = {result["index"]: result["document"]["text"] for result in content["results"]}
    assert texts == dict(enumerate(large["documents"]))


def test_faults_of_large_bodies_are_those_of_small_ones(server: Server) -> None:
    async def both(part: bytes) -> list[tuple[int, str]]:
        found, application = [], server.application()
        for spaces in (1, LARGE):
            asked = Asked(application, "/v1/rerank")
            asked.send(b" " * spaces + part, last=True)
            status, said, _ = await asked.answer()
            found.append((status, said["detail"].partition(":")[0]))
        return found

    for part in (b"[1]", b'"x"', b"{", b'{"query": "\xff"}', b"[" * 100_000, b"{}"):
        small, large = in_a_loop(both(part))
        assert small[0] == large[0] in (400, 422), (part[:10], small, large)
        assert part == b'{"query": "\xff"}' or small == large
