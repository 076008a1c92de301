"""The id of a message is found in any cut of its bytes, and only where it is the message's own."""

from __future__ import annotations

import json
import random

import pytest

from edge.apps.mcp.envelope import Envelope

MESSAGES = [
    ({"jsonrpc": "2.0", "id": 7, "method": "m", "params": {"id": 8}}, 7),
    ({"method": "m", "params": {"text": 'a "quoted\\" {id}: 3, ["', "id": 9}, "jsonrpc": "2.0", "id": "last"}, "last"),
    ({"method": "m", "params": [{"id": 1}, [2]], "id": -5}, -5),
    ({"id": 'with "quotes" and \\', "params": "x" * 500}, 'with "quotes" and \\'),
    ({"method": "m", "params": {"id": 1}}, None),
    ({"id": None, "method": "m"}, None),
    ({"id": True, "method": "m"}, None),
    ({"id": "x" * 1000, "method": "m"}, None),
    ({"text": "id", "values": ["id", 3], "é": "\u4e00", "id": 4}, 4),
]


@pytest.mark.parametrize(("message", "identifier"), MESSAGES)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_id_is_found_however_the_bytes_are_cut(message: object, identifier: object, ascii_only: bool) -> None:
    data = json.dumps(message, ensure_ascii=ascii_only).encode() + b"\n"
    chance = random.Random(0)
    for _ in range(50):
        envelope = Envelope()
        at = 0
        while at < len(data):
            step = chance.randint(1, 40)
            envelope.feed(data[at : at + step])
            at += step
        assert envelope.id == identifier


def test_what_is_no_json_has_no_id() -> None:
    for data in (b"", b"\xff\xfe{", b'{"id"', b'{"id": }', b"]]]}}}", b'"id": 3', b'{"id": 1 2}', b"{" * 5000):
        envelope = Envelope()
        envelope.feed(data)
        assert envelope.id is None


def test_structure_counts_what_becomes_an_object() -> None:
    envelope = Envelope()
    envelope.feed(b'{"a": [1, {}, "x,y:[{"]}')
    assert envelope.structure == 6  # { : [ , { , and no mark inside a string
    assert not envelope.wide
    envelope.feed("é".encode())
    assert envelope.wide
