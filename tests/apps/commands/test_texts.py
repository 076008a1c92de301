"""Texts that commands read, and devices that they use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.apps.collection.collection import Collection
from edge.apps.commands.texts import InputText, _record, read_texts
from edge.config import Config
from edge.errors import BudgetExceeded, InputError
from edge.resident import ResidentWatch, anonymous_resident

PLENTY = 10**12
PIECES = [
    b"\r", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\xff", b"\xe2\x82", b"\x80", b"\xed\xa0\x80", b" ", b"\t",
    b"\x0b", b"\x1c", b"\x00", "\x85".encode(), "\u2028".encode(), b"a", "é€😀".encode(),
    b'{"text": "x"}', b'{"text": "y", "id": 3}', b'{"id": 3}', b"{", b"[" * 5000,
]  # fmt: skip


def at_once(data: bytes, name: str) -> list[InputText]:
    """Slow twin of `read_texts`, with the whole file in memory."""
    documents: list[InputText] = []
    records: bool | None = None
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise InputError(f"{name}, line {number}: not valid UTF-8 (byte {error.start})") from None
        if line:
            if records is None:
                try:
                    _record(line, name, number)
                    records = True
                except InputError:
                    records = False
            documents.append(_record(line, name, number) if records else InputText(line, None))
    if not documents:
        raise InputError(f"{name} holds no text")
    return documents


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_lines_are_those_of_the_bytes(tmp_path: Path, pieces: list[bytes]) -> None:
    path = tmp_path / "docs"
    path.write_bytes(b"".join(pieces))

    def outcome(read: Callable[[], list[InputText]]) -> list[InputText] | str:
        try:
            return read()
        except InputError as error:
            return str(error)

    expected = outcome(lambda: at_once(path.read_bytes(), str(path)))
    assert outcome(lambda: read_texts(str(path), PLENTY)) == expected


def test_a_deeply_nested_line_is_a_text_or_no_record(tmp_path: Path) -> None:
    deep = "[" * 100_000
    path = tmp_path / "docs"
    path.write_text(f"{deep}\nhello\n", encoding="utf-8")
    assert [document.text for document in read_texts(str(path), PLENTY)] == [deep, "hello"]
    path.write_text('{"text": "a"}\n' + deep, encoding="utf-8")
    with pytest.raises(InputError, match="line 2: not valid JSON"):
        read_texts(str(path), PLENTY)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere freed memory need not go back to the system")
@pytest.mark.parametrize("ending", [b"\n", b"\r"])
def test_a_large_file_is_in_memory_once(tmp_path: Path, ending: bytes) -> None:
    path = tmp_path / "docs"
    path.write_bytes((b"x" * 500_000 + ending) * 60)
    held = anonymous_resident()
    with ResidentWatch(interval=0.0005) as watch:
        documents = read_texts(str(path), held + 40_000_000)
    assert len(documents) == 60
    assert watch.high_water - held < 36_000_000


@pytest.mark.parametrize(("line", "lines", "at"), [(500_000, 60, "line 3[3-9]"), (30_000_000, 1, "line 1 ")])
def test_texts_that_pass_the_limit_are_refused_before_they_do(tmp_path: Path, line: int, lines: int, at: str) -> None:
    path = tmp_path / "docs"
    path.write_bytes((b"x" * line + b"\n") * lines)
    held = anonymous_resident()
    with (
        ResidentWatch(interval=0.0005) as watch,
        pytest.raises(BudgetExceeded, match=rf"up to {at}.* the memory limit is .*; give fewer") as refused,
    ):
        read_texts(str(path), held + 20_000_000)
    assert refused.value.owner == "texts"
    assert refused.value.asked > refused.value.free
    assert watch.high_water < held + 22_000_000


def test_many_short_texts_count_with_what_holds_them(tmp_path: Path) -> None:
    path = tmp_path / "docs"
    path.write_bytes(b"x\n" * 100_000)
    with pytest.raises(BudgetExceeded, match="texts up to line"):
        read_texts(str(path), anonymous_resident() + 8_000_000)


def test_a_process_above_its_limit_still_reads_a_few_texts(tmp_path: Path) -> None:
    path = tmp_path / "docs"
    path.write_text("a\nb\n", encoding="utf-8")
    assert len(read_texts(str(path), 1_000_000)) == 2
    path.write_bytes(b"x" * 4_300_000)
    with pytest.raises(BudgetExceeded, match="line 1 "):
        read_texts(str(path), 1_000_000)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count other memory")
@pytest.mark.parametrize("module", ["edge.runtimes.embedder", "edge.runtimes.reranker", "edge.apps.memory.memory"])
def test_the_libraries_imported_after_texts_take_no_more_than_is_kept_for_them(module: str) -> None:
    script = f"""
import edge.apps.commands.texts, edge.apps.memory.command, edge.apps.commands.texts
from edge.budget import import_nbytes
from edge.resident import anonymous_resident
most, before = import_nbytes([{module!r}]), anonymous_resident()
import edge.apps.store.models, {module}
print(most - (anonymous_resident() - before))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert int(done.stdout) > 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")
def test_a_pipe_is_read_and_a_device_is_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("one\ntwo\n",))
    writer.start()
    assert [each.text for each in read_texts(str(tmp_path / "pipe"), 10**9)] == ["one", "two"]
    writer.join()
    with pytest.raises(InputError, match=r"/dev/zero cannot be read: it is a pipe, a device"):
        read_texts("/dev/zero", 10**9)


Verb = Callable[..., Any]
WORDS = ("river", "flood", "bread", "salt", "ice", "snow", "spring", "water")


@pytest.fixture
def indexed(edge_verb: Verb, tmp_path: Path) -> Path:
    """A collection of enough passages for maintenance to have written a segment of them."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        words = [WORDS[(number * 3 + i * i) % len(WORDS)] for i in range(12)]
        (texts / f"{number}.txt").write_text(f"Note {number}: {' '.join(words)}.\n")
    assert edge_verb("index", str(texts), "-c", str(tmp_path / "notes"), EDGE_MEMORY="8GB").code == 0
    with Collection(tmp_path / "notes", memory="8GB") as collection:
        assert collection.vectors is not None
        collection.vectors.maintain(collection.database.write, full=True)
    return tmp_path / "notes"


@pytest.mark.parametrize(
    "device",
    [
        "limited:cap=4MB", "remote:cap=4MB", "fpga:cap=4MB", "searchers:of=cpu,count=3,cap=4MB",
        "limited:cap=4MB,count=2",
    ],
)  # fmt: skip
def test_a_search_on_a_device_finds_the_same(edge_verb: Verb, indexed: Path, device: str) -> None:
    def hits(*options: str) -> list[tuple[str, float]]:
        ended = edge_verb("search", "river", "flood", "-c", str(indexed), "--json", "--no-rerank", *options,
                          EDGE_MEMORY="8GB")  # fmt: skip
        assert ended.code == 0, ended.err
        return [(hit["id"], hit["score"]) for hit in json.loads(ended.out)["results"]]

    assert hits("--device", device) == hits()
    with Collection(indexed, memory="8GB", config=Config.load(flags={"device": device})) as collection:
        collection.search("river flood", rerank=False)
        index = collection.vectors
        assert index is not None
        place = index._searcher.place
        assert place is not None
        assert len(place.residency) > 0, "the setting reaches the index, and the device holds what was searched"


@pytest.mark.parametrize(
    ("verb", "device", "says"),
    [
        ("search", "abacus", "there is no device 'abacus'"), ("ask", "abacus", "there is no device 'abacus'"),
        ("search", "limited:color=red", "color"), ("search", "remote:cap=0", "0"),
    ],
)  # fmt: skip
def test_a_device_that_cannot_be_opened_is_an_error(
    edge_verb: Verb, indexed: Path, verb: str, device: str, says: str
) -> None:
    ended = edge_verb(verb, "river", "-c", str(indexed), "--device", device, EDGE_MEMORY="8GB")
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.count("\n") == 1


def test_figures_of_a_modelled_device_say_so(edge_verb: Verb, indexed: Path) -> None:
    def search(*options: str) -> Any:
        return edge_verb("search", "river", "-c", str(indexed), "--no-rerank", *options, EDGE_MEMORY="8GB")

    shown = search("--stats", "--device", "fpga:cap=4MB").err
    assert "modelled 1 request of a query would take the accelerator" in shown
    assert "nothing of that was measured" in shown
    figures = json.loads(search("--json", "--device", "fpga:cap=4MB").out)["stats"]["modelled"]
    assert figures["queries"] == 1
    assert 0 < figures["seconds"] < 0.01
    assert 0 < figures["joules"] < 1
    alone = search("--stats").err
    assert "modelled" not in alone
    assert "device" not in alone
    assert "device   auto takes the host, because " in search("--stats", "--device", "auto").err
    assert "device   limited:cap=8MB" in search("--stats", "--device", "limited:cap=8MB").err
    assert "modelled" not in json.loads(search("--json").out)["stats"]


def test_an_answer_uses_the_device(edge_verb: Verb, indexed: Path) -> None:
    def answered(*options: str) -> dict[str, Any]:
        ended = edge_verb("ask", "river flood?", "-c", str(indexed), "--json", "--no-rerank", *options,
                          EDGE_MEMORY="8GB")  # fmt: skip
        assert ended.code == 0, ended.err
        document: dict[str, Any] = json.loads(ended.out)
        return document

    plain, modelled = answered(), answered("--device", "fpga:cap=4MB")
    assert modelled["text"] == plain["text"]
    assert modelled["stats"]["modelled_queries"] > plain["stats"]["modelled_queries"] == 0
