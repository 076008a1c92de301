"""Bodies become objects of their classes, and every fault is one sentence that names the field."""

from __future__ import annotations

import json
import tracemalloc
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from edge.apps.serve.application import application
from edge.apps.serve.body import MOST_VALUES, PathText, Texts, Whole, decoded, read_query
from edge.apps.serve.endpoint import _response
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.serve.server import HttpServer
from edge.apps.store.rows import JsonSize
from tests.apps.serve.asgi import Asked, ask, in_a_loop

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


class Inner(Struct):
    text: str


class Body(Struct, kw_only=True):
    REFUSED = {"odd": (1,)}

    query: str
    count: Whole | None = None
    ratio: float | None = None
    flag: bool | None = None
    path: PathText | None = None
    texts: Texts | None = None
    few: Annotated[list[Inner], Meta(max_length=2)] | None = None
    odd: Any = None


FAULTS = [
    ('{"query": 3}', 422, "the field `query` is a text, not a whole number"),
    ('{"query": null}', 422, "the field `query` is a text, not null"),
    ("{}", 422, "the field `query` is missing"),
    ('{"query": "", "count": 0}', 422, "the field `count` is a whole number of at least 1"),
    ('{"query": "", "count": 1.5}', 422, "the field `count` is a whole number, not a number"),
    ('{"query": "", "count": 9223372036854775808}', 422, "a whole number of at most 9223372036854775807"),
    ('{"query": "", "ratio": true}', 422, "the field `ratio` is a number, not true or false"),
    ('{"query": "", "ratio": 1e400}', 422, "the field `ratio` is wrong: number out of range"),
    ('{"query": "", "flag": "yes"}', 422, "the field `flag` is true or false, not a text"),
    ('{"query": "", "path": "a\\u0000b"}', 422, "the field `path` holds a NUL"),
    ('{"query": "", "texts": 3}', 422, "the field `texts` is a text or a list, not a whole number"),
    ('{"query": "", "texts": ["a", 3]}', 422, "the field `texts[1]` is a text, not a whole number"),
    ('{"query": "", "few": [{"text": ""}, {}]}', 422, "the field `few[1].text` is missing"),
    ('{"query": "", "few": [{"text": ""}, {"text": ""}, {"text": ""}]}', 413, "`few` has more than 2 entries"),
    ('{"query": "", "odd": 2}', 422, "the field `odd` asks for something that this server does not do; it may be 1"),
    ("[1]", 400, "the body is a JSON object, not a list"),
    ('"x"', 400, "the body is a JSON object, not a text"),
    ("", 400, "the body is not valid JSON"),
    ('{"query": NaN}', 400, "the body is not valid JSON"),
    ('{"query": "\\ud800"}', 400, "the body is not valid JSON"),
    ('{"odd": ' + "[" * 100_000, 400, "the body is nested too deeply"),
]


@pytest.mark.parametrize(("text", "status", "said"), FAULTS, ids=lambda value: str(value)[:30])
def test_a_fault_is_told_with_its_field(text: str, status: int, said: str) -> None:
    for spaces in (0, 200_000):
        with pytest.raises(HttpRefusal) as raised:
            decoded(b" " * spaces + text.encode(), Body)
        assert (raised.value.status, said in raised.value.message) == (status, True), raised.value.message
        assert "`$" not in raised.value.message


def test_null_is_an_absent_field_and_a_query_holds_texts() -> None:
    found = decoded(b'{"query": "a", "count": null, "texts": "b", "odd": 1, "unknown": {}}', Body)
    assert found == Body(query="a", texts="b", odd=1)
    assert read_query({"query": "5", "count": "5", "flag": "true"}, Body) == Body(query="5", count=5, flag=True)
    with pytest.raises(HttpRefusal, match="`count` is a whole number, not a text"):
        read_query({"query": "", "count": "\u00b2"}, Body)
    with pytest.raises(HttpRefusal, match="not valid UTF-8"):
        decoded(b'{"query": "\xff"}', Body)


@given(VALUES)
def test_an_answer_says_what_python_would_say(value: Any) -> None:
    pytest.importorskip("starlette")
    assert json.loads(bytes(_response(value).body)) == json.loads(json.dumps(value))


def test_numbers_of_numpy_are_numbers_and_other_objects_are_an_error() -> None:
    pytest.importorskip("starlette")
    assert json.loads(bytes(_response({"a": np.float32(0.5), "b": np.int64(3)}).body)) == {"a": 0.5, "b": 3}
    with pytest.raises(TypeError, match="object of object"):
        _response({"a": object()})


def fed(data: bytes, step: int) -> JsonSize:
    size = JsonSize()
    for at in range(0, len(data), step):
        size.feed(data[at : at + step])
    return size


@given(VALUES, st.booleans(), st.integers(1, 9))
def test_marks_are_counted_outside_strings_however_the_bytes_are_cut(value: Any, ascii_only: bool, step: int) -> None:
    def marks(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + sum(1 + marks(each) for each in value.values()) + max(0, len(value) - 1)
        return 1 + sum(map(marks, value)) + max(0, len(value) - 1) if isinstance(value, list) else 0

    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    size = fed(data, step)
    assert (size.length, size.structure) == (len(data), marks(value))
    assert size.wide >= (not json.dumps(value, ensure_ascii=False).isascii())


@pytest.mark.parametrize(
    "item",
    [
        '"a"',
        '"\u4e00"',
        '"the river floods"',
        '"\U0001f600 the river"',
        '"\\u4e00"',
        "[]",
        "{}",
        '{"a":1}',
        '{"k%d":1}',
        "1.5",
        "[[1]]",
    ],
)
def test_the_memory_that_is_leased_is_enough(item: str) -> None:
    parts = [item % number if "%" in item else item for number in range(30_000)]
    body = f'{{"query": "x", "documents": [{",".join(parts)}]}}'.encode()

    class Loose(Struct):
        documents: list[Any]

    decoder = msgspec.json.Decoder(Loose)
    tracemalloc.start()
    found = decoder.decode(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.documents) == len(parts)
    assert peak <= fed(body, 1 << 16).nbytes(typed=True)


@pytest.mark.parametrize("inside", [4 * 10**9], indirect=True)
def test_a_body_that_would_stop_the_loop_for_long_is_refused_unread(inside: HttpServer) -> None:
    """msgspec holds the interpreter's lock until it has decoded the whole."""
    small = {"query": "x", "documents": ["a", "b"]}

    async def serve() -> list[tuple[int, str]]:
        app, found = application(inside), []
        for item, count in ((b"[],", MOST_VALUES), (b'"a river",', 10_001)):
            asked = Asked(app, "/v1/rerank")
            asked.send(b'{"query": "x", "documents": [' + item * count + b'"a"]}', last=True)
            status, said, _ = await asked.answer()
            found.append((status, said["detail"]))
            assert (await ask(app, "/v1/rerank", small))[0] == 200
        return found

    (many, said), (long, also) = in_a_loop(serve())
    assert (many, said) == (413, f"the body holds more than {MOST_VALUES:,} values, the most of one request")
    assert (long, also) == (413, "the field `documents` has more than 10,000 entries, the most of one request")
