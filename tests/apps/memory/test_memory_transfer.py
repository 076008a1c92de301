"""Export and import: nothing is lost on the way, and unreadable lines are named."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from naive.words import WordEmbedder

from edge.apps.memory.memory import Memory
from edge.apps.memory.transfer import TOGETHER
from edge.errors import InputError, StorageError
from tests.apps.memory.conftest import Make


def fill(memory: Memory, clock: Any) -> None:
    turns = [
        {"role": "user", "content": "where is your violin", "name": "bo", "timestamp": "2026-05-01T09:59"},
        {"role": "assistant", "content": "upstairs", "timestamp": "2026-05-01T10:00"},
    ]
    first, second = memory.add(turns, user_id="ann", run_id="r", metadata={"k": [1, None, {"x": "ü"}]})["results"]
    clock.forward(hours=1)
    memory.update(first["id"], "where is your cello")
    memory.pin(second["id"])
    memory.add("tea is good", agent_id="a", importance=0.5, expiration_date="2026-01-01")
    gone = memory.add("tea is  good", agent_id="a", valid_from="2025-02-03")["results"][0]["id"]
    memory.forget(gone)
    memory.supersede(first["id"], second["id"])


def everything(memory: Memory) -> list[dict[str, Any]]:
    found = [m for filters in ({"user_id": "ann"}, {"agent_id": "a"}) for m in listed(memory, filters)]
    return sorted(found, key=lambda m: str(m["id"]))


def listed(memory: Memory, filters: dict[str, Any]) -> list[dict[str, Any]]:
    ids = [m["id"] for m in memory.get_all(filters=filters, top_k=100, show_expired=True)["results"]]
    return [memory.get(identifier) or {} for identifier in ids]


def test_what_is_exported_comes_back_the_same(make: Make, clock: Any, tmp_path: Path) -> None:
    one, other = make("one"), make("other", embedder=WordEmbedder(32, "another embedder"))
    fill(one, clock)
    assert one.export_jsonl(tmp_path / "all.jsonl") == 4
    clock.forward(days=1)
    assert other.import_jsonl(tmp_path / "all.jsonl") == 4
    assert everything(other) == everything(one)
    for found in everything(one):
        before, after = (memory.history(found["id"]) for memory in (one, other))
        assert [{**line, "id": ""} for line in after[:-1]] == [{**line, "id": ""} for line in before]
        assert after[-1]["event"] == "IMPORT"
    hit = other.search("cello", 9, user_id="ann", rerank=False)["results"]
    assert next(h for h in hit if h["memory"] == "upstairs")["score"] > 0.1, "the turn before is still its context"
    assert other.import_jsonl(tmp_path / "all.jsonl") == 0, "what is there stays"
    assert other.export_jsonl(tmp_path / "again.jsonl") == 4


def test_whatever_can_be_remembered_comes_back(make: Make, tmp_path: Path) -> None:
    one = make(user_id="ann")
    texts = [
        "a\0b",
        "\0",
        "\ufeffa",
        "a\u2028b\x85c\r\nd",
        "\x1b[31m",
        "e\u0301 \u202e",
        "\\ud800",
        '{"memory": 1}',
        "x " * 9999,
    ]
    one.add(texts)
    values = [None, True, False, 0, -0.0, 1.5e300, 2**70, "", [], {}, [[{"": [None]}]]]
    one.add("of all kinds", metadata={"": 1, "$in": 2, "a.b": 3, **{str(n): value for n, value in enumerate(values)}})
    one.add([{"role": "", "content": "nobody"}, {"role": "\0", "name": "", "content": "and \0"}])
    one.add("before all", timestamp="0001-01-01", expiration_date="9999-12-31", importance=0)
    one.export_jsonl(tmp_path / "all.jsonl")
    other = make("other", user_id="ann")
    assert other.import_jsonl(tmp_path / "all.jsonl") == len(texts) + 4
    assert other.get_all(top_k=99) == one.get_all(top_k=99)


def test_a_line_of_mem0_is_understood(memory: Memory, tmp_path: Path) -> None:
    line = {
        "id": "0b0e", "memory": "Ann plays chess", "hash": "x", "metadata": None, "score": None, "user_id": "ann",
        "created_at": "2024-07-20T01:30:36.275141-07:00", "updated_at": None, "role": "user", "links": None,
        "history": None, "follows": None, "pinned": None,
    }  # fmt: skip
    (tmp_path / "mem0.jsonl").write_text(f"\n{json.dumps(line)}\n\n", encoding="utf-8")
    assert memory.import_jsonl(tmp_path / "mem0.jsonl") == 1
    found = memory.get("0b0e") or {}
    assert (found["memory"], found["created_at"]) == ("Ann plays chess", "2024-07-20T08:30:36.275141+00:00")
    assert found["hash"] == "270c9ae2695ba2c67ec6c39ae40eb2b1"


def test_a_whole_answer_of_mem0_is_understood(memory: Memory, tmp_path: Path) -> None:
    texts = [f"Ann knows {n} songs" for n in range(TOGETHER + 2)]
    found = [{"id": text, "memory": text, "user_id": "ann", "score": None} for text in texts]
    lines = [json.dumps({"results": part, "relations": []}) for part in (found[:-1], [], found[-1:])]
    (tmp_path / "mem0.json").write_text("\n".join(lines), encoding="utf-8")
    assert memory.import_jsonl(tmp_path / "mem0.json") == len(texts)
    assert {one["memory"] for one in memory.get_all(user_id="ann", top_k=999)["results"]} == set(texts)


def test_a_bound_memory_exports_and_imports_only_its_own(make: Make, clock: Any, tmp_path: Path) -> None:
    fill(make(), clock)
    bound = make(user_id="ann")
    assert bound.export_jsonl(tmp_path / "ann.jsonl") == 2
    stranger = make("elsewhere", user_id="bob")
    with pytest.raises(InputError, match=r"ann\.jsonl, line 1: .*opened for user_id 'bob'"):
        stranger.import_jsonl(tmp_path / "ann.jsonl")
    (tmp_path / "free.jsonl").write_text('{"memory": "no ids"}', encoding="utf-8")
    assert stranger.import_jsonl(tmp_path / "free.jsonl") == 1
    assert stranger.get_all()["results"][0]["user_id"] == "bob"


@pytest.mark.parametrize(
    "line",
    [
        '{"results": 5}', '{"results": [5]}', '{"results": [{"memory": " ", "user_id": "a"}]}',
        "{", "[]", '{"memory": 5, "user_id": "a"}', '{"memory": " ", "user_id": "a"}', '{"memory": "x"}',
        '{"memory": "x", "user_id": "a", "created_at": "never"}', '{"memory": "x", "user_id": "a", "metadata": [1]}',
        '{"memory": "x", "user_id": "a", "history": {}}', '{"memory": "x", "user_id": "a", "history": [{}]}',
        '{"memory": "x", "user_id": "\\ud800"}',
        '{"memory": "x", "user_id": "a", "links": [{"id": "\\ud800", "similarity": 1}]}',
        '{"memory": "x", "user_id": "a", "links": [{"id": "y"}]}', '{"memory": "x", "user_id": "a", "id": 5}',
        '{"memory": "x", "user_id": "a", "importance": 7}', '{"memory": "x", "user_id": "a", "links": 0}',
        '{"memory": "x", "user_id": "a", "links": [{"id": "y", "similarity": NaN}]}',
        '{"memory": "x", "user_id": "a", "links": [{"id": "y", "similarity": 1%s}]}' % ("0" * 400),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_and_those_before_are_kept(memory: Memory, tmp_path: Path, line: str) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_text(f'{{"memory": "good", "user_id": "a"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2"):
        memory.import_jsonl(source)
    assert [m["memory"] for m in memory.get_all(user_id="a")["results"]] == ["good"]


def test_more_lines_than_one_transaction(memory: Memory, tmp_path: Path) -> None:
    lines = [json.dumps({"memory": f"memory {n % 600}", "id": str(n % 600), "user_id": "a"}) for n in range(700)]
    (tmp_path / "many.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert memory.import_jsonl(tmp_path / "many.jsonl") == 600
    assert len(memory.get_all(user_id="a", top_k=1_000)["results"]) == 600


def test_files_that_cannot_be_used(memory: Memory, tmp_path: Path) -> None:
    memory.add("x", user_id="a")
    with pytest.raises(StorageError, match="cannot be read"):
        memory.import_jsonl(tmp_path / "nowhere.jsonl")
    with pytest.raises(StorageError, match="cannot be written"):
        memory.export_jsonl(tmp_path / "no folder" / "x.jsonl")
    for path in ("a\0b", "\ud800", 5):
        with pytest.raises(InputError, match=r"no path|source must be str|target must be str"):
            memory.import_jsonl(path)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"no path|source must be str|target must be str"):
            memory.export_jsonl(path)  # type: ignore[arg-type]


def test_the_lines_before_one_that_is_not_utf8_are_kept(memory: Memory, tmp_path: Path) -> None:
    good = b"".join(b'{"memory": "line %d", "user_id": "a"}\r\n' % number for number in range(300))
    bad = b'{"memory": "\xff", "user_id": "a"}\n'
    (tmp_path / "latin.jsonl").write_bytes(good + bad + good)
    with pytest.raises(InputError, match=r"latin\.jsonl, line 301: not valid UTF-8 \(byte 12 of the line\)"):
        memory.import_jsonl(tmp_path / "latin.jsonl")
    assert len(memory.get_all(user_id="a", top_k=1_000)["results"]) == 300


def test_a_stream_of_text_is_read_as_a_file(make: Make, clock: Any, tmp_path: Path) -> None:
    one, other = make("one"), make("other")
    fill(one, clock)
    text = io.StringIO()
    one.export_jsonl(text)
    text.seek(0)
    assert other.import_jsonl(text) == 4
    assert everything(other) == everything(one)
    with pytest.raises(InputError, match="line 1"):
        other.import_jsonl(io.StringIO("\ud800\n"))
