"""The verbs of file search as a person uses them: their output, how they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from naive.program import EDGE

from edge.apps.collection.hits import Hit, Place, written
from edge.apps.collection.watching import Watcher
from edge.apps.commands.search import _further
from edge.text.tokens import expected_tokens, most_tokens
from tests.apps.commands.conftest import Edge


def test_indexing_again_is_up_to_date(edge: Edge) -> None:
    assert edge("index", ".").out == "up to date: 3 unchanged, 1 skipped, 1 failed\n"
    report = edge.json("index", "--stats")
    assert (report["indexed"], report["unchanged"], report["removed"]) == (0, 3, 0)
    assert 0 < report["peak_resident"] <= report["limit"]


def test_the_index_lies_in_the_nearest_edge_folder(edge: Edge) -> None:
    assert (edge.project / ".edge" / "edge.db").is_file()
    status = edge.json("status", cwd=edge.project / "docs")
    assert status["collection"] == str(edge.project / ".edge")


def test_search_json_has_the_documented_keys(edge: Edge) -> None:
    document = edge.json("search", "when does the river flood", "-n", "2")
    assert set(document) == {"results", "health", "stats"}
    assert document["health"] == {"state": "ok", "troubles": []}
    assert len(document["results"]) == 2
    for result in document["results"]:
        assert set(result) == {"path", "line_start", "line_end", "score", "snippet", "id", "line", "relevance"}
        assert Path(result["path"]).is_file()
        assert 0 <= result["score"] <= 1
    assert {"seconds", "embed_s", "search_s", "rerank_s", "peak_resident", "limit"} <= set(document["stats"])
    assert 0 <= document["stats"]["pruned"] < 1
    assert edge.json("search", "river", "--no-rerank")["stats"]["pruned"] is None, "nothing was reranked"
    explained = edge.json("search", "river", "--explain")["results"]
    assert {"lexical_rank", "vector_rank", "fused_rank", "reranker", "blend"} <= set(explained[0]["explain"])


def test_search_for_people(edge: Edge) -> None:
    done = edge("search", "river floods", "--no-rerank", "--explain", "--stats")
    assert done.code == 0
    assert f"docs{os.sep}rivers.md:3" in done.out
    assert "The river floods in spring" in done.out
    assert "\x1b[" not in done.out
    assert "words #1" in done.out
    for word in ("memory", "time", "index    no lists, and none to fetch ahead: up to 20,000 vectors are compared"):
        assert word in done.err


def test_a_result_is_got_by_the_id_that_search_prints(edge: Edge) -> None:
    for query in ("when does the river flood", "bread needs time"):
        first = edge("search", query, "-n", "1").out.splitlines()[0]
        place, id = re.fullmatch(r"  1  [\d.]+  (\S+):\d+ .* (#\d+)", first).groups()  # type: ignore[union-attr]
        assert edge.json("get", id)["documents"][0]["path"].endswith(place)


def test_a_result_has_one_number_whatever_the_number_of_results(edge: Edge) -> None:
    """It falls with the order, and people see what programs get."""
    results = edge.json("search", "river floods", "-n", "3")["results"]
    relevance = {result["id"]: result["relevance"] for result in results}
    assert list(relevance.values()) == sorted(relevance.values(), reverse=True)
    assert list(relevance.values()) == [result["score"] for result in results]
    for count in ("1", "3"):
        rows = re.findall(r"^ +\d+  ([\d.]+)  .* #(\d+)$", edge("search", "river floods", "-n", count).out, re.M)
        assert rows
        assert [(shown, int(id)) for shown, id in rows] == [(f"{relevance[int(id)]:.2f}", int(id)) for _, id in rows]
    assert " blend 0." in edge("search", "river floods", "--explain").out


def test_lines_behind_the_end_of_a_document_are_not_found(edge: Edge) -> None:
    done = edge("get", "rivers.md:99")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("edge: nothing found")
    assert edge.json("get", "rivers.md:99", code=1) == {"documents": []}


def test_get_prints_what_there_is_beside_what_is_missing(edge: Edge) -> None:
    done = edge("get", "rivers.md", "none.md", "bread.md")
    assert done.code == 2
    assert "The river floods" in done.out
    assert "flour" in done.out
    assert done.err == "edge: none.md is not in the collection; `edge list` shows what is\n"


def test_everyday_commands_and_options_come_first(edge: Edge) -> None:
    first, others = edge("--help").out.split("Everyday commands:")[1].split("Other commands:")
    assert [line.split()[0] for line in first.splitlines() if re.match(r"  \w", line)] == [
        "demo", "index", "search", "ask", "memory", "serve", "mcp", "status",
    ]  # fmt: skip
    assert {"backup", "watch", "help"} <= {line.split()[0] for line in others.splitlines() if re.match(r"  \w", line)}
    for verb, option, other in (
        ("search", "--filter", "--pool"),
        ("index", "--retry", "--recall"),
        ("ask", "--llm", "--seed"),
    ):
        everyday, more = edge(verb, "--help").out.split("More options:")
        assert option in everyday
        assert option not in more
        assert other in more
        assert len(more.split(f"  {other}")) == 2


def test_what_was_indexed_or_removed_is_named(edge: Edge, files_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, at = files_home / "named", ["-c", str(files_home / "named.edge")]
    folder.mkdir()
    (folder / "a.txt").write_text("Snow is white.\n")
    assert edge.json("index", str(folder), *at)["named"] == [str(folder / "a.txt")]
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_text("Ice is blue.\n")
    assert sorted(edge.json("index", *at)["named"]) == [str(folder / "a.txt"), str(folder / "b.txt")]

    def run(watcher: Watcher, stop: object) -> None:
        watcher._report(watcher._collection.index())
        (folder / "c.txt").write_text("Rain is wet.\n")
        watcher._report(watcher._collection.index())
        raise KeyboardInterrupt

    monkeypatch.setattr(Watcher, "run", run)
    shown = edge("watch", *at).out.splitlines()
    assert shown[-2:][0] == "up to date: 1 unchanged"
    assert shown[-1].endswith(f", 1 unchanged: {folder / 'c.txt'}")


def test_every_flag_of_search_reaches_its_consumer(edge: Edge, files_home: Path) -> None:
    assert edge.json("search", "river", "--memory", "5.5GB")["stats"]["limit"] == 5_500_000_000
    fused = edge.json("search", "river", "--no-rerank", "--explain")["results"]
    assert all(result["relevance"] is None and result["explain"]["reranker"] is None for result in fused)
    assert edge.json("search", "river", "--no-rerank", "--reranker", "absent")["results"]
    assert "absent" in edge.refused("search", "river", "--reranker", "absent")
    assert "cannot be compared" in edge.refused("search", "river", "--embedder", "other-embedder")
    only = edge.json("search", "river bread ice", "--filter", "path:docs", "--filter", "type:md")["results"]
    assert {Path(result["path"]).name for result in only} == {"rivers.md", "bread.md"}
    assert edge.json("search", "river", "--min-score", "1", code=1)["results"] == []
    assert "must be 0 to 1" in edge.refused("search", "river", "--min-score", "2")
    brief = edge.json("search", "river floods", "--no-rerank", "--brief", "--max-tokens", "200")
    assert brief.keys() == {"results", "left_out"}
    assert "The river floods in spring" in brief["results"][0]["text"]
    assert most_tokens(expected_tokens(written(brief))) <= 200
    assert brief["left_out"]
    assert "add --json" in edge.refused("search", "river", "--brief")
    trace = files_home / "trace.json"
    edge.json("search", "river", "--trace", str(trace))
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"full text", "vectors", "rerank"} <= names
    assert edge.json("search", "river", "--runtime", "onnx", "--threads", "1")["results"]


def test_nothing_found_is_exit_code_1(edge: Edge, files_home: Path) -> None:
    done = edge("search", "river", "--filter", "larger:1GB")
    assert (done.code, done.out) == (1, "")
    assert "nothing found" in done.err
    (files_home / "empty").mkdir()
    edge("index", str(files_home / "empty"), "-c", str(files_home / "empty.edge"))
    for filters in ([], ["--filter", "type:pdf"]):
        done = edge("search", "river", "-c", str(files_home / "empty.edge"), *filters)
        assert (done.code, done.err) == (1, "edge: nothing found; nothing is indexed yet\n")
    assert edge("list", "--filter", "type:pdf").code == 1
    done = edge("remove", "not-there.txt")
    assert (done.code, done.out) == (1, "")
    assert done.err == "edge: not-there.txt is not in the collection; `edge list` shows what is\n"


def test_no_collection_is_made_among_the_files_that_it_indexes(edge: Edge) -> None:
    before = sorted((edge.project / "docs").iterdir())
    done = edge("index", "docs", "-c", "docs")
    assert done.code == 2
    assert "`edge collections add docs`" in done.err
    assert sorted((edge.project / "docs").iterdir()) == before


def test_what_is_left_out_is_named_with_its_reason(edge: Edge, files_home: Path) -> None:
    folder, at = files_home / "parts", ["-c", str(files_home / "parts.edge")]
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("note.txt", "Snow is white.")
        archive.writestr("old.bin", b"\0\1\2")
    (folder / "film.mp4").write_bytes(b"\0\1\2")
    (folder / "bad.pdf").write_bytes(b"%PDF-1.7\nnothing")
    left = "left out: old.bin (the file is binary)"
    done = edge("index", str(folder), *at)
    assert done.out.endswith(", 1 incomplete, 1 skipped, 1 failed\n")
    assert f"incomplete: {folder / 'a.zip'}: {left}\n" in done.err
    assert edge.json("index", *at)["incomplete"] == 0  # of this run, which has read nothing
    (folder / "worse.pdf").write_bytes(b"%PDF-1.7\nnothing more")
    said = edge("index", *at).err
    assert f"failed: {folder / 'worse.pdf'}: " in said
    assert "a.zip" not in said
    assert f"failed: {folder / 'bad.pdf'}: " in said, "it counts as failed in each run"
    (folder / "worse.pdf").unlink()
    edge("index", *at)
    shown = edge("status", *at).out
    assert f"incomplete  1 file\n  a.zip: {left}\n" in shown
    assert "skipped     1 file or folder\n  film.mp4: the file is binary\n" in shown
    assert "failed      1 file\n  bad.pdf: " in shown
    assert edge.json("status", *at)["incomplete"] == [{"path": str(folder / "a.zip"), "reason": left}]
    (result,) = edge.json("search", "snow", *at)["results"]
    assert result["mail"]["subject"] == "note.txt"
    assert f"{folder / 'a.zip'} › note.txt:1" in edge("search", "snow", *at).out


def test_status_and_list(edge: Edge) -> None:
    status = edge.json("status")
    assert status["indexed"] == 3
    assert [Path(entry["path"]).name for entry in status["failed"]] == ["broken.pdf"]
    assert all(entry["reason"] for entry in status["failed"] + status["skipped"])
    assert status["chunks"] == status["index"]["rows"] == 3
    assert (status["kinds"], status["roots"]) == ({"markdown": 2, "text": 1}, [str(edge.project)])
    assert [Path(entry["path"]).name for entry in status["skipped"]] == ["picture.bin"]
    assert status["embedder"]["source"] == "tiny-embedder"
    shown = edge("status").out
    assert "3 files" in shown
    assert "broken.pdf: " in shown
    files = edge.json("list")["files"]
    assert [Path(file["path"]).name for file in files] == ["bread.md", "rivers.md", "notes.txt"]
    assert [(file["kind"], file["chunks"]) for file in files] == [("markdown", 1), ("markdown", 1), ("text", 1)]
    assert "markdown" in edge("list", "--filter", "path:docs").out


def test_remove_and_compact(edge: Edge, files_home: Path) -> None:
    place = ["--collection", str(files_home / "other")]
    folder = files_home / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("A river.")
    (folder / "b.txt").write_text("A bread.")
    assert edge.json("index", str(folder), *place)["indexed"] == 2
    done = edge("remove", str(folder / "a.txt"), "--json", *place)
    assert (done.code, json.loads(done.out)) == (0, {"removed": 1})
    assert f"{folder / 'a.txt'} will come back with the next `edge index`" in done.err
    assert [file["path"] for file in edge.json("list", *place)["files"]] == [str(folder / "b.txt")]
    after = edge.json("compact", *place)
    assert 0 < after["bytes_after"] <= after["bytes_before"]
    assert re.fullmatch(r"(gave .* back|nothing to give back): .* [kM]?B\n", edge("compact", *place).out)
    assert edge.json("search", "bread", *place)["results"][0]["path"] == str(folder / "b.txt")


def test_what_is_not_there_now_is_said_and_kept(edge: Edge, files_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ["--collection", str(files_home / "disk-collection")]
    disk = files_home / "disk"
    (disk / "inner").mkdir(parents=True)
    (disk / "inner" / "a.txt").write_text("A river.")
    assert edge.json("index", str(disk), *place)["indexed"] == 1
    real = os.scandir

    def refuse(path: Any) -> Any:
        if str(path) == str(disk / "inner"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        done = edge("index", *place)
    assert (
        f"{disk / 'inner'} cannot be read, and `edge status` says why; what was indexed of it stays searchable"
        in done.err
    )
    os.rename(disk, files_home / "unplugged")
    assert f"{disk} is not there; what was indexed of it stays searchable" in edge("index", *place).err
    disk.mkdir()
    done = edge("index", *place)
    assert f"{disk} is empty now; what was indexed of it stays searchable" in done.err
    assert edge.json("search", "river", *place)["results"]
    done = edge("remove", str(disk), *place)
    assert (done.code, done.err) == (0, "")


def test_a_project_s_collection_indexes_only_the_project_by_itself(edge: Edge, files_home: Path) -> None:
    outside = files_home / "outside"
    outside.mkdir()
    (outside / "private.txt").write_text("A secret river.")
    assert edge.json("index", str(outside))["indexed"] == 1
    (outside / "more.txt").write_text("Another secret.")
    done = edge("index")
    assert f"{outside} lies outside" in done.err
    assert done.out.startswith("up to date")
    assert edge.json("index", str(outside))["indexed"] == 1
    assert edge.json("remove", str(outside)) == {"removed": 2}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["search", " "], "query is empty"),
        (["search", "river", "-n", "0"], "must be 1 to 10,000"),
        (["search", "half \udcff"], "not valid Unicode"),
        (["index", ""], "a path is empty"),
        (["remove", "notes.txt", ""], "a path is empty"),
        (["search", "river", "--filter", "colour:red"], "no filter"),
        (["search", "river", "--memory", "lots"], "lots"),
        (["search", "river", "--collection", "nowhere"], "there is no collection"),
        (["index", "absent-folder"], "does not exist"),
        (["index", "--collection", "fresh"], "no folder to index yet"),
        (["watch", "--collection", "fresh"], "no folder to index yet"),
        (["status", "--collection", "nowhere"], "`edge index DIR` makes one"),
        (["list", "--collection", "nowhere"], "there is no collection"),
        (["remove", "a", "--collection", "nowhere"], "there is no collection"),
        (["compact", "--collection", "nowhere"], "there is no collection"),
        (["remove"], "PATH"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(edge: Edge, arguments: list[str], says: str) -> None:
    assert says in edge.refused(*arguments)
    assert not (edge.project / "nowhere").exists()


def test_names_that_steer_a_terminal_are_escaped_for_people(edge: Edge, files_home: Path) -> None:
    place = ["--collection", str(files_home / "steered")]
    folder = files_home / "red\x1b7"
    folder.mkdir()
    (folder / "two\nlines.txt").write_text("A river.")
    (folder / "broken\x1b.pdf").write_bytes(b"%PDF-1.7\n" + b"nothing of a PDF" * 50)
    (folder / "gone\x1b.txt").write_text("A bread.")
    done = edge("index", str(folder), *place)
    assert (done.code, "broken\\u001b.pdf: " in done.err) == (0, True)
    outputs = [
        done, edge("status", *place), edge("list", *place), edge("search", "river", "--explain", *place),
        edge("remove", str(folder / "gone\x1b.txt"), *place),
    ]  # fmt: skip
    os.rename(folder, files_home / "elsewhere")
    outputs.append(edge("index", *place))
    for done in outputs:
        assert "\x1b" not in done.out + done.err
        assert "two\nlines" not in done.out + done.err
    assert ["red\\u001b7" in done.out + done.err for done in outputs] == [True] * len(outputs)
    found = edge.json("search", "river", *place)["results"]
    assert str(folder / "two\nlines.txt") in [result["path"] for result in found]


def test_the_default_models_find_by_meaning_without_a_download(edge: Edge, files_home: Path) -> None:
    place = ["--collection", str(files_home / "default")]
    new = {"EDGE_EMBEDDER": "", "EDGE_RERANKER": "", "EDGE_MODELS_DIR": str(files_home / "empty")}
    folder = files_home / "sofa"
    folder.mkdir()
    (folder / "pet.txt").write_text("The kitten fell asleep on the couch.\n")
    (folder / "car.txt").write_text("The engine needs new oil every spring.\n")
    assert edge("index", str(folder), *place, **new).code == 0
    for words in ([], ["--no-rerank"]):
        found = edge.json("search", "where did the cat rest?", *words, *place, **new)["results"]
        assert Path(found[0]["path"]).name == "pet.txt", "no word of the question is in it"


def test_what_matches_is_coloured_on_a_terminal_only(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in edge("search", "river", "--no-rerank", TERM="xterm").out  # nobody looks
    monkeypatch.setattr("edge.apps.console.is_terminal", lambda: True)
    shown = edge("search", "river", "--no-rerank", TERM="xterm").out
    assert "\x1b[33m\x1b[1mriver\x1b[0m" in shown
    assert f"\x1b[36m\x1b[1m{Path('docs') / 'rivers.md'}\x1b[0m" in shown
    for environment in ({"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}):
        assert "\x1b[" not in edge("search", "river", "--no-rerank", **environment).out


def test_a_process_of_its_own_stays_within_its_limit(edge: Edge) -> None:
    """Only a real process shows these: the installed command, its exit code, and memory that is all its own."""
    done = subprocess.run(
        [*EDGE, "search", "river", "--json"],
        capture_output=True, text=True, cwd=edge.project, check=False,
        env={**os.environ, **edge.environment, "EDGE_MEMORY": "250MB"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["results"]
    assert document["stats"]["peak_resident"] <= document["stats"]["limit"] == 250_000_000


def test_indexing_stays_within_its_limit(edge: Edge, files_home: Path) -> None:
    folder = files_home / "many"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"Sentence {number} of a text about rivers and bread. " * 200)
    done = subprocess.run(
        [*EDGE, "index", str(folder), "--json", "--collection", str(files_home / "tight")],
        capture_output=True, text=True, check=False, env={**os.environ, **edge.environment, "EDGE_MEMORY": "170MB"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["indexed"] == 60
    assert report["peak_resident"] <= 170_000_000


def test_check_and_repair_say_what_they_found(edge: Edge) -> None:
    assert edge.json("check", "--read-data")["sound"] is True
    path = edge.project / ".edge" / "edge.db"
    data = bytearray(path.read_bytes())
    data[3 * 4096 + 9] ^= 1
    path.write_bytes(data)
    for more in ((), ("--json",)):
        done = edge("check", "--read-data", *more)
        assert done.code == 2
        assert "database" in done.out
        assert "`edge repair` mends what it can" in done.err
    assert edge.json("repair")["after"]["sound"] is True
    done = edge("check", "--read-data")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("sound: ")


def test_a_search_imports_no_module_of_writing(edge: Edge) -> None:
    program = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        "from edge.apps.cli import main\n"
        "main(['search', 'river', '--no-rerank'])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=edge.project, env=edge.environment, capture_output=True, text=True, check=True)
    assert "rivers.md" in done.stdout
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert "edge.apps.collection.searching" in loaded
    writing = ("edge.apps.collection.writing", "edge.apps.documents.extraction", "edge.ivf.maintenance", "encodings.cp")
    assert not [name for name in loaded if name.startswith((*writing, "numpy.ma."))]


def test_a_near_name_is_suggested(edge: Edge) -> None:
    rivers, bread = (str(edge.project / "docs" / name) for name in ("rivers.md", "bread.md"))
    for verb, name, meant, code in (
        ("get", "river", rivers, 2), ("get", "docs/breed.md:1-3", bread, 2), ("remove", "bred.md", bread, 1),
        ("remove", "docs/rivers.txt", rivers, 1),
    ):  # fmt: skip
        done = edge(verb, name)
        assert done.code == code
        assert f"is not in the collection; did you mean {meant}?" in done.err
    assert edge("get", "xyz").err.endswith("xyz is not in the collection; `edge list` shows what is\n")


def test_a_folder_without_files_and_a_file_count_in_words(edge: Edge, files_home: Path) -> None:
    place = ["--collection", str(files_home / "single")]
    (files_home / "bare").mkdir()
    assert edge("index", str(files_home / "bare"), *place).out == "there was no file to index\n"
    done = edge("list", *place)
    assert (done.code, done.out, done.err) == (1, "", "edge: no file is indexed\n")
    (files_home / "one").mkdir()
    (files_home / "one" / "a.txt").write_text("A river.")
    assert edge("index", str(files_home / "one"), *place).out.startswith("indexed 1 file (1 passage in ")
    status = edge("status", *place).out
    assert "indexed     1 file, " in status
    assert "skipped     0 files and folders\n" in status
    (files_home / "one" / "b.txt").write_text("A river.")
    edge("index", *place)
    (files_home / "one" / "b.txt").unlink()
    assert edge("index", str(files_home / "one"), *place).out == "up to date: 1 unchanged, 1 removed\n"
    assert edge("remove", str(files_home / "one" / "a.txt"), *place).out == "removed 1 file\n"
    purged = edge("remove", "--purge", str(files_home / "one" / "a.txt"), *place)
    assert purged.code == 1
    assert "not reached, and may still hold the texts:\n  backups" in purged.out
    done = edge("remove", str(files_home / "one"), *place)  # a folder that holds no file any more
    assert (done.code, done.out, done.err) == (0, "removed 0 files\n", "")


def test_a_path_without_a_description_says_so(edge: Edge) -> None:
    assert edge("describe").err == "edge: nothing is described\n"
    assert edge("describe", "docs").err == "edge: docs is not described\n"
    assert edge("describe", "docs", "All about rivers.").err == ""
    assert edge("describe", "docs").out == f"{edge.project / 'docs'}  All about rivers.\n"
    assert edge("describe", "docs", "--remove").err == ""


def test_a_list_without_names_says_so(edge: Edge, files_home: Path) -> None:
    done = edge("collections", "list", XDG_DATA_HOME=str(files_home / "unnamed"), HOME=str(files_home / "unnamed"))
    assert (done.code, done.out) == (1, "")
    assert done.err == "edge: no collection has a name; `edge collections add NAME` gives one a name\n"


@pytest.mark.parametrize(
    ("kind", "places", "shown"),
    [
        ("pdf", [(1, 3), (9, 5), (4, 3), (20, 5), (2, 6)], ["2 more places: p. 5, p. 6"]),
        ("pdf", [(1, 3), (4, 3)], []),
        ("text", [(1, None), (9, None), (20, None)], ["2 more places: line 9, line 20"]),
        ("text", [(1, None)], []),
    ],
)
def test_a_page_is_named_once_among_the_other_places(
    kind: str, places: list[tuple[int, int | None]], shown: list[str]
) -> None:
    best, *more = (Place(line, line, line, page, 0.5) for line, page in places)
    hit = Hit(
        id=1, path="/a", line_start=best.line_start, line_end=best.line_end, page=best.page, score=0.5, snippet="",
        text="", title="", kind=kind, context="", file=1, ordinals=(0, 0), more=tuple(more),
    )  # fmt: skip
    assert list(_further(hit)) == shown
