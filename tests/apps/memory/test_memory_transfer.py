"""Export and import, and transcripts of other programs. All samples are made up."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.words import WordEmbedder

from edge.apps.memory import transcripts, transfer
from edge.apps.memory.memory import Memory
from edge.apps.memory.transcripts import ImportReport, _elements
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


KEY = "sk-" + "a1B2" * 10


def lines(path: Path, *entries: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return path


def claude_code(folder: Path) -> Path:
    def line(role: str, number: int, content: Any, **more: Any) -> dict[str, Any]:
        message = {"role": role, "content": content}
        when = f"2026-05-08T10:0{number}:00.000Z"
        return {"type": role, "message": message, "uuid": f"u{number}", "sessionId": "s1", "timestamp": when, **more}

    return lines(
        folder / "project" / "s1.jsonl",
        {"type": "summary", "summary": "made up", "leafUuid": "u3"},
        line("user", 1, "where is the roof plan", cwd="/home/ann/roof"),
        line("assistant", 2, [{"type": "text", "text": "it is in plans.md"}, {"type": "tool_use", "name": "Read"}]),
        line("user", 3, [{"type": "tool_result", "content": "a file"}]),
        *(line("user", 4, "ignored", **{mark: True}) for mark in ("isMeta", "isSidechain", "isCompactSummary")),
        line("user", 4, "[Request interrupted by user]"),
        line("user", 4, "This session is being continued from a previous conversation that ran out of context."),
        line("user", 4, [{"type": "text", "text": "<ide_opened_file>a.py</ide_opened_file>"}]),
        line(
            "user",
            5,
            [
                {"type": "text", "text": "<system-reminder>be brief</system-reminder>"},
                {"type": "text", "text": f"use the key {KEY} for it"},
            ],
        ),
    )


def codex(folder: Path) -> Path:
    def said(role: str, text: str) -> dict[str, Any]:
        kind = "input_text" if role == "user" else "output_text"
        payload = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        return {"timestamp": "2026-05-09T10:00:00Z", "type": "response_item", "payload": payload}

    return lines(
        folder / "rollout-1.jsonl",
        {"timestamp": "2026-05-09T10:00:00Z", "type": "session_meta", "payload": {"id": "c1", "cwd": "/x"}},
        said("user", "<environment_context>cwd</environment_context>"), said("developer", "rules"),
        said("user", "# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>be brief</INSTRUCTIONS>"),
        said("user", "Another language model started to solve this problem and produced a summary of its thinking."),
        said("user", "the roof needs slate"), said("assistant", "slate it is"),
    )  # fmt: skip


def whole(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document), "utf-8")
    return path


def gemini(folder: Path) -> Path:
    def said(number: int, kind: str, content: Any) -> dict[str, Any]:
        return {"id": f"g{number}", "timestamp": f"2026-05-11T10:0{number}:00.000Z", "type": kind, "content": content}

    thought = {**said(3, "gemini", "under the eaves"), "thoughts": [{"subject": "eaves"}], "toolCalls": [{"id": "t"}]}
    left = said(1, "user", "<state_snapshot>what a compaction left</state_snapshot>")
    messages = [said(1, "info", "connected"), left, said(2, "user", [{"text": "where do swallows nest"}]), thought]
    return whole(folder / "session-1.json", {"sessionId": "e1", "projectHash": "ab", "messages": messages})


def opencode(folder: Path) -> Path:
    def said(number: int, role: str, *parts: dict[str, Any]) -> dict[str, Any]:
        time = {"created": 1778493600000 + number}
        return {"info": {"id": f"o{number}", "sessionID": "ses1", "role": role, "time": time}, "parts": list(parts)}

    text = {"type": "text", "text": "paint the door green"}
    read = {"type": "text", "text": "Called the Read tool", "synthetic": True}
    left = said(4, "assistant", {"type": "text", "text": "what a compaction left"})
    left["info"]["summary"] = True
    messages = [
        left,
        said(1, "user", text, read),
        said(2, "assistant", {"type": "reasoning", "text": "hm"}, {"type": "text", "text": "it is green"}),
        said(3, "assistant", {"type": "tool", "tool": "bash", "state": {}}),
    ]
    return whole(folder / "export.json", {"info": {"id": "ses1", "title": "Door"}, "messages": messages})


def copilot(folder: Path) -> Path:
    def event(number: int, kind: str, **data: Any) -> dict[str, Any]:
        return {"type": kind, "data": data, "id": f"p{number}", "timestamp": f"2026-05-12T10:0{number}:00Z"}

    return lines(
        folder / "events.jsonl", event(0, "session.start", sessionId="p1"), event(1, "user.message", content="oil it"),
        event(2, "assistant.message", content="", toolRequests=[{}]), event(3, "assistant.message", content="oiled"),
        event(4, "tool.execution_complete", content="done"),
    )  # fmt: skip


def copilot_chat(folder: Path) -> Path:
    answer = [{"kind": "thinking", "value": "hm"}, {"value": "a hinge"}, {"kind": "toolInvocation", "value": "x"}]
    request = {"requestId": "r1", "message": {"text": "what squeaks", "parts": []}, "response": answer}
    document = {"version": 3, "sessionId": "v1", "requests": [{**request, "timestamp": 1778493600000}]}
    return whole(folder / "v1.json", document)


def chatgpt(folder: Path) -> Path:
    def node(name: str, parent: str | None, role: str, text: str, **more: Any) -> dict[str, Any]:
        content = {"content_type": "text", "parts": [text]}
        message = {"id": f"m-{name}", "author": {"role": role}, "create_time": 1715162160.5, "content": content, **more}
        return {"id": name, "parent": parent, "children": [], "message": message}

    mapping = {
        "root": {"id": "root", "message": None, "parent": None, "children": ["a"]},
        "a": node("a", "root", "user", 'a "roof" { of [ slate \\ tiles'),
        "old": node("old", "a", "assistant", "a replaced answer"),
        "tool": node("tool", "a", "assistant", '{"prompt": "a roof"}', recipient="dalle.text2im"),
        "hid": node("hid", "tool", "user", "hints", metadata={"is_visually_hidden_from_conversation": True}),
        "b": node("b", "hid", "assistant", "good", recipient="all", metadata={}),
    }
    entry = {"id": "g1", "title": "Roof", "mapping": mapping, "current_node": "b"}
    path = folder / "conversations.json"
    old = {"id": "g3", "mapping": {"z": node("z", None, "user", "without a current node")}}
    path.write_text(json.dumps([entry, {**entry, "id": "g2", "mapping": {}}, old]), "utf-8")
    return path


def claude(folder: Path) -> Path:
    before = "parent_message_uuid"
    replaced = [
        {"uuid": "y1", before: "x1", "sender": "assistant", "text": "fifty"},
        {"uuid": "y2", before: "y1", "sender": "human", "text": "sure?"},
    ]
    messages = [
        {"uuid": "x1", "sender": "human", "text": "", "content": [{"type": "text", "text": "how many tiles"}],
         "created_at": "2026-05-10T10:00:00Z", before: "00000000-0000-4000-8000-000000000000"},
        *replaced,
        {"uuid": "x2", before: "x1", "sender": "assistant", "text": "forty", "created_at": "2026-05-10T10:01:00Z"},
    ]  # fmt: skip
    path = folder / "claude.json"
    path.write_text(json.dumps([{"uuid": "k1", "name": "Tiles", "chat_messages": messages}]), "utf-8")
    return path


def mem0(folder: Path) -> Path:
    path = folder / "mem0.json"
    found = [{"id": "m1", "memory": "Ann likes slate", "user_id": "ann", "metadata": {"k": 1}}, {"memory": "tea"}]
    path.write_text(json.dumps({"results": found}), "utf-8")
    return path


def note(folder: Path) -> Path:
    path = folder / "roof.md"
    path.write_text(
        "---\ntitle: Roof\npermalink: house/roof\n---\n# Roof\n\n- [decision] slate is best #roof\n"
        "- part_of [[House]]\nsome prose\n",
        "utf-8",
    )
    return path


SAMPLES: dict[Any, list[tuple[str | None, str | None, str]]] = {
    claude_code: [
        ("s1", "user", "where is the roof plan"), ("s1", "assistant", "it is in plans.md"),
        ("s1", "user", "use the key [secret left out] for it"),
    ],
    codex: [("c1", "user", "the roof needs slate"), ("c1", "assistant", "slate it is")],
    gemini: [("session-1", "user", "where do swallows nest"), ("session-1", "assistant", "under the eaves")],
    opencode: [("ses1", "user", "paint the door green"), ("ses1", "assistant", "it is green")],
    copilot: [("p1", "user", "oil it"), ("p1", "assistant", "oiled")],
    copilot_chat: [("v1", "user", "what squeaks"), ("v1", "assistant", "a hinge")],
    chatgpt: [("g1", "user", 'a "roof" { of [ slate \\ tiles'), ("g1", "assistant", "good"),
              ("g3", "user", "without a current node")],
    claude: [("k1", "user", "how many tiles"), ("k1", "assistant", "forty")],
    mem0: [(None, None, "Ann likes slate"), (None, None, "tea")],
    note: [(None, None, "slate is best #roof"), (None, None, "Roof part_of House")],
}  # fmt: skip


def stored(memory: Memory) -> list[tuple[str | None, str | None, str]]:
    found = memory.get_all(user_id="ann", top_k=1_000)["results"][::-1]
    return [(one.get("run_id"), one.get("role"), one["memory"]) for one in found]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.__name__)
def test_each_format_comes_in_once(make: Make, tmp_path: Path, sample: Any) -> None:
    memory, right = make(user_id="ann"), SAMPLES[sample]
    path = sample(tmp_path / "files" if sample is claude_code else tmp_path)
    would = memory.import_transcripts(path, dry_run=True)
    assert stored(memory) == []
    report = memory.import_transcripts(path)
    assert report == would
    assert (report.files, report.turns, report.new) == (1, len(right), len(right))
    assert report.secrets == (sample is claude_code)
    assert sorted(stored(memory), key=str) == sorted(right, key=str)
    assert memory.import_transcripts(path).new == 0
    assert make("other", user_id="bob").import_transcripts(path).turns == len(right) - (sample is mem0)


def test_a_turn_follows_the_one_before(make: Make, tmp_path: Path) -> None:
    memory = make(user_id="ann")
    memory.import_transcripts(codex(tmp_path))
    with memory.store.read() as db:
        assert db.execute("SELECT count(*) FROM memories WHERE follows IS NOT NULL").fetchone()[0] == 1


def test_a_folder_is_read_whole_and_goes_on_where_it_ended(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, folder = make(user_id="ann"), tmp_path / "all"
    folder.mkdir()
    for sample in SAMPLES:
        sample(folder)
    (folder / "other.json").write_text('{"x": [1]}', "utf-8")
    right = sum(map(len, SAMPLES.values()))
    monkeypatch.setattr(transfer, "TOGETHER", 2)
    done: list[int] = []
    store_lines = transfer.store_lines

    def fails(*arguments: Any, **named: Any) -> int:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(store_lines(*arguments, **named))
        return done[-1]

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "store_lines", fails)
        with pytest.raises(KeyboardInterrupt):
            memory.import_transcripts(folder)
    assert len(stored(memory)) == sum(done) == 6
    report = memory.import_transcripts(folder)
    assert (report.turns, report.new, report.skipped) == (right, right - 6, 1)
    assert len(stored(memory)) == right
    lines(folder / "rollout-2.jsonl", *map(json.loads, (folder / "rollout-1.jsonl").read_text("utf-8").splitlines()))
    assert memory.import_transcripts(folder).new == 0, "the same session under another name"


def test_what_is_no_transcript_is_refused(make: Make, tmp_path: Path) -> None:
    memory = make(user_id="ann")
    (tmp_path / "a.json").write_text("[]", "utf-8")
    (tmp_path / "b.jsonl").write_text('{"x": 1}\nnot json\n', "utf-8")
    (tmp_path / "empty").mkdir()
    for name in ("a.json", "b.jsonl", "empty", "missing.json"):
        with pytest.raises(InputError):
            memory.import_transcripts(tmp_path / name)
    with pytest.raises(InputError, match="whose turns"):
        make().import_transcripts(tmp_path / "a.json")


SHORT = st.text(max_size=6)
TREES = st.recursive(
    st.none() | st.integers() | SHORT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT, inner, max_size=3), max_leaves=6,
)  # fmt: skip


@given(st.lists(st.dictionaries(SHORT, TREES, max_size=3), max_size=3), st.integers(1, 9))
def test_an_array_is_cut_into_its_objects(found: list[dict[str, Any]], piece: int) -> None:
    for document in (found, {"a": "[{", "results": found}):
        data = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transcripts, "_PIECE", piece)
            read = list(_elements(io.BytesIO(data), 1 << 20, ImportReport()))
        right = json.loads(data)
        assert [entry for _, entry in read] == (right["results"] if isinstance(document, dict) else right)


def test_a_long_entry_is_skipped_and_the_others_read() -> None:
    data = json.dumps([{"a": "x" * 100}, {"b": 1}]).encode()
    skipped = ImportReport()
    assert list(_elements(io.BytesIO(data), 50, skipped)) == [(2, {"b": 1})]
    assert skipped.skipped == 1
