"""The id of a message that is not read is found at its beginning or at its end, and only where it is its own."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from edge.apps.mcp.protocol import _ENDS, id_of

LONG = {"text": 'a "quoted\\" {id}: 3, ["' + "x" * 1000, "id": 9}
MESSAGES = [
    ({"jsonrpc": "2.0", "id": 7, "method": "m", "params": LONG}, 7),
    ({"id": "first", "method": "m", "params": LONG}, "first"),
    ({"jsonrpc": "2.0", "method": "m", "id": -5, "params": LONG}, -5),
    ({"method": "m", "params": LONG, "jsonrpc": "2.0", "id": "last"}, "last"),
    ({"method": "m", "params": LONG, "id": 'with "quotes" and \\'}, 'with "quotes" and \\'),
    ({"method": "m", "params": LONG}, None),
    ({"method": "m", "params": "x" * 1000 + ',"id":5}'}, None),
    ({"params": {"id": 1}, "method": "m" * 1000}, None),
    ({"method": "m", "params": LONG, "id": None}, None),
    ({"method": "m", "params": LONG, "id": True}, None),
    ({"method": "m", "params": LONG, "id": "x" * 1000}, None),
]


@pytest.mark.parametrize(("message", "identifier"), MESSAGES)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_id_is_found_at_either_end(message: object, identifier: object, separators: tuple[str, str]) -> None:
    data = json.dumps(message, separators=separators).encode() + b"\n"
    assert id_of(data[:_ENDS], data[-_ENDS:]) == identifier


@pytest.mark.parametrize("data", [b"", b"\xff\xfe{", b'{"id"', b'{"id": }', b"]]]}}}", b'"id": 3', b'{"id": 007}'])
def test_other_bytes_have_no_id(data: bytes) -> None:
    assert id_of(data, data) is None
