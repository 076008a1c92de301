"""The command line as a person uses it: its output, how it ends. Most commands run in forks of one process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from making.synth import synth
from naive.program import EDGE, write_tiny_models

from edge.apps.commands.models import _examples
from tests.apps.commands.conftest import Edge

TEXTS = ["The river floods in spring.", "Cells make energy from sugar.", "Old ice looks blue.", "Bread needs time."]
QUERY = "when does the river flood"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of tiny random shapes, and nothing of the machine's own settings."""
    folder = tmp_path_factory.mktemp("home")
    write_tiny_models(folder / "models")
    (folder / "docs.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    lines = [json.dumps({"id": f"d{i}", "text": text}) for i, text in enumerate(TEXTS)]
    (folder / "docs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def edge(home: Path, forked_command: tuple[str, ...]) -> Edge:
    return Edge(home, home, forked_command)


def test_rerank_prints_places_scores_and_texts(edge: Edge) -> None:
    done = edge("rerank", QUERY, "--docs", "docs.txt", "-k", "2")
    assert done.code == 0
    lines = done.out.splitlines()
    assert len(lines) == 2
    assert lines[0].split()[0] == "1"
    assert any(text in lines[0] for text in TEXTS)
    assert done.err == ""


def test_rerank_json_has_the_documented_keys(edge: Edge) -> None:
    document = edge.json("rerank", QUERY, "--docs", "docs.jsonl")
    assert set(document) == {"results", "stats"}
    assert len(document["results"]) == 4
    for result in document["results"]:
        assert set(result) == {"index", "id", "score", "text"}
        assert result["id"] == f"d{result['index']}"
        assert result["text"] == TEXTS[result["index"]]
    scores = [result["score"] for result in document["results"]]
    assert scores == sorted(scores, reverse=True)
    assert 0 < document["stats"]["peak_resident"] < document["stats"]["limit"]


def test_stdin_lines_and_json_lines_give_the_same_scores(edge: Edge, home: Path) -> None:
    lines = edge.json("rerank", QUERY, stdin=(home / "docs.txt").read_bytes())
    records = edge.json("rerank", QUERY, "--docs", "-", stdin=(home / "docs.jsonl").read_bytes())
    assert [r["score"] for r in lines["results"]] == [r["score"] for r in records["results"]]
    assert lines["results"][0]["id"] is None


def test_every_flag_reaches_its_consumer(edge: Edge, home: Path) -> None:
    base = edge.json("rerank", QUERY, "--docs", "docs.txt")
    stats = edge.json("rerank", QUERY, "--docs", "docs.txt", "--memory", "111MB")["stats"]
    assert stats["limit"] == 111_000_000
    short = edge.json("rerank", QUERY, "--docs", "docs.txt", "--max-tokens", "12")["stats"]
    assert short["longest"] <= 12 < base["stats"]["longest"]
    pruned = edge.json("rerank", QUERY, "--docs", "docs.txt", "-k", "1", "--threshold", "0", "--mode", "top-k")
    assert len(pruned["results"]) == 1
    assert pruned["stats"]["evaluations"] < pruned["stats"]["evaluations_full"]
    explained = edge.json("rerank", QUERY, "--docs", "docs.txt", "--explain")
    assert [layer["layer"] for layer in explained["layers"]] == [1, 2, 3]
    trace = home / "trace.json"
    edge.json("rerank", QUERY, "--docs", "docs.txt", "--trace", str(trace))
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert {"layer 0", "layer 1", "layer 2"} <= {event["name"] for event in events}
    blended = edge.json("rerank", QUERY, "--docs", "docs.txt", "--retrieved")["results"]
    assert [r["score"] for r in blended] != [r["score"] for r in base["results"]]
    assert edge.json("rerank", QUERY, "--docs", "docs.txt", "--runtime", "onnx", "--threads", "1")["results"]
    assert "no runtime 'nope'" in edge.refused("rerank", QUERY, "--docs", "docs.txt", "--runtime", "nope")
    assert "nowhere" in edge.refused("rerank", QUERY, "--docs", "docs.txt", "--model", "nowhere")


def test_explain_and_stats_are_for_people(edge: Edge) -> None:
    done = edge("rerank", QUERY, "--docs", "docs.txt", "-k", "1", "--threshold", "0", "--explain", "--stats")
    shown = done.out
    assert "4 candidates; prunes above CV 0.000" in shown
    assert "layer  1  CV" in shown
    figures = done.err
    for word in ("memory", "time", "layers", "window", "chunks", "rows"):
        assert word in figures


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (["rerank", ""], b"a text", "query is empty"),
        (["rerank", QUERY], b"", "no text"),
        (["rerank", QUERY, "-k", "0"], b"a text", "at least 1"),
        (["rerank", QUERY], b"fine\n\xff\xfe", "line 2"),
        (["rerank", QUERY], b'{"text": "a"}\n{"id": 3}', "line 2"),
        (["rerank", QUERY, "--docs", "absent.txt"], b"", "absent.txt"),
        (["rerank", QUERY, "--memory", "lots"], b"a text", "lots"),
        (["rerank", QUERY, "--memory", "1MB"], b"a text", "smallest memory limit that works"),
        (["rerank", QUERY, "--threshold", "high"], b"a text", "high"),
        (["rerank", QUERY, "--model", "tiny-embedder"], b"a text", "embedder"),
        (["embed", "--model", "tiny"], b"a text", "reranker"),
        (["embed"], b"", "no text"),
        (["models", "pull", "no such model"], b"", "no such model"),
        (["models", "show", "absent"], b"", "absent"),
        (["bench", "search", "absent.txt"], b"", "absent.txt"),
        (["nonsense"], b"", "nonsense"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(home: Path, arguments: list[str], stdin: bytes, says: str) -> None:
    assert says in Edge(home, home).refused(*arguments, stdin=stdin)


def test_embed(edge: Edge, home: Path) -> None:
    done = edge("embed", "--docs", "docs.txt")
    vectors = [json.loads(line) for line in done.out.splitlines()]
    assert len(vectors) == 4
    assert sum(x * x for x in vectors[0]) == pytest.approx(1, abs=1e-3)
    document = edge.json("embed", "--docs", "docs.txt")
    assert document["embeddings"][1] == pytest.approx(vectors[1], abs=1e-5)
    assert edge("embed", "--docs", "docs.txt", "--out", "vectors.npy").code == 0
    assert (home / "vectors.npy").stat().st_size > 4 * 64 * 4


def test_models_list_show_and_verify(edge: Edge, home: Path) -> None:
    names = [row["name"] for row in edge.json("models", "list")["installed"]]
    assert {"tiny", "tiny-embedder"} <= set(names)
    assert edge.json("models", "show", "tiny")["layers"] == 3
    assert "every checksum is right" in edge("models", "show", "tiny", "--verify").out
    synth("tiny-bert", home / "models" / "flipped").close()
    file = home / "models" / "flipped" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 4
    file.write_bytes(data)
    assert "layer.2" in edge.refused("models", "show", "flipped", "--verify")
    assert "layer.2" in edge.refused("rerank", QUERY, "--docs", "docs.txt", "--model", "flipped")


def test_calibrate_stores_what_rerank_then_uses(edge: Edge, home: Path) -> None:
    synth("tiny-bert", home / "models" / "calibrated").close()
    words = ["river", "spring", "energy", "sugar", "ice", "bread", "time", "cell", "flood", "blue"]
    lines = [
        json.dumps({"query": f"{word} {i}", "docs": [f"{w} {j} {word * (j % 3)}" for j, w in enumerate(words * 2)]})
        for i, word in enumerate(words)
    ]
    (home / "queries.jsonl").write_text("\n".join(lines), encoding="utf-8")
    done = edge("models", "calibrate", "calibrated", "--queries", "queries.jsonl", "-k", "2", "--target", "0.5")
    assert done.code == 0, done.err
    assert (home / "models" / "calibrated" / "calibration.json").is_file()
    points = edge.json("models", "show", "calibrated")["calibration"]["points"]
    assert points
    # A damaged one need not be removed by hand.
    (home / "models" / "calibrated" / "calibration.json").write_bytes(b"{")
    assert "edge models calibrate" in edge.refused("rerank", QUERY, "--docs", "docs.txt", "--model", "calibrated")
    done = edge("models", "calibrate", "calibrated", "--queries", "queries.jsonl", "-k", "2", "--target", "0.5")
    assert done.code == 0, done.err
    assert edge.json("models", "show", "calibrated")["calibration"]["points"] == points
    assert 'needs "query"' in edge.refused("models", "calibrate", "calibrated", "--queries", "docs.jsonl")
    judged = [
        json.dumps(json.loads(line) | {"grades": [int(i == n) for i in range(20)]}) for n, line in enumerate(lines)
    ]
    judged[3] = json.dumps(json.loads(lines[3]) | {"grades": [0] * 20})
    (home / "judged.jsonl").write_text("\n".join(judged), encoding="utf-8")
    done = edge("models", "calibrate", "calibrated", "--queries", "judged.jsonl", "-k", "2", "--target", "0.5")
    assert "calibrated on 4 queries" in done.out  # half of the nine that have something relevant


def test_calibration_is_told_where_queries_come_from(tmp_path: Path) -> None:
    lines = [json.dumps({"query": "q", "docs": ["a", "b"], **more}) for more in ({"domain": "law"}, {})]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert [example.domain for example in _examples(tmp_path / "queries.jsonl")] == ["law", ""]


def test_settings_show_their_origin(edge: Edge) -> None:
    done = edge("config", "show", "--resolved", EDGE_MEMORY="222MB")
    assert "222 MB" in done.out
    assert "environment EDGE_MEMORY" in done.out


def test_a_setting_is_written_into_the_users_file(edge: Edge) -> None:
    (place,) = [line for line in edge("config", "show").out.splitlines() if line.startswith("your file")]
    file = Path(place.removeprefix("your file").partition("  (")[0].strip())
    assert not file.exists()
    for name, value in (("memory", "300MB"), ("server", "no"), ("context", "2048"), ("llm_key", "secret")):
        done = edge("config", "set", name, value)
        assert (done.code, "secret" in done.out) == (0, False)
    file.write_text(f"# mine\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    assert edge("config", "set", "memory", "400MB").code == 0
    assert edge("config", "set", "context", "").code == 0
    assert file.read_text(encoding="utf-8") == '# mine\nmemory = "400MB"\nserver = false\nllm_key = "secret"\n'
    assert file.stat().st_mode & 0o077 == 0
    shown = edge.json("config", "show", "--resolved")
    assert (shown["memory"]["value"], shown["memory"]["source"]) == (400_000_000, str(file))
    assert "did you mean memory?" in edge.refused("config", "set", "memry", "1GB")
    assert "threads (flag): a whole number" in edge.refused("config", "set", "threads", "many")
    file.unlink()


def test_help_is_asked_for_in_words(edge: Edge) -> None:
    for words in ((), ("search",), ("memory", "add")):
        assert edge("help", *words).out == edge(*words, "--help").out
    assert "`edge search` has no commands below it" in edge.refused("help", "search", "x")
    assert "did you mean `edge search`?" in edge.refused("help", "serch")


def test_a_collection_may_have_a_name_that_is_no_utf_8(edge: Edge, home: Path) -> None:
    (home / "notes").mkdir()
    (home / "notes" / "river.md").write_text(TEXTS[0], encoding="utf-8")
    place = ("-c", "c\udcff")
    for verb in (("index", "notes"), ("search", QUERY), ("check",), ("repair",), ("compact",), ("backup", "copy")):
        done = edge(*verb, *place)
        assert (done.code, done.err) == (0, ""), verb
    assert "river.md" in edge("search", "-", *place, stdin=QUERY.encode()).out
    assert "not valid UTF-8 (byte 1)" in edge.refused("search", "-", *place, stdin=b"a\xff")
    for verb in (("add", "Alice keeps bees."), ("repair",), ("check",)):
        assert edge("memory", *verb, "--path", "m\udcff").code == 0, verb


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_output_that_cannot_be_written_is_an_error(edge: Edge, home: Path) -> None:
    command = [*EDGE, "models", "list"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=home, env=edge.environment, check=False)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == ["edge: the output cannot be written: No space left on device"]


def test_a_character_that_the_terminal_does_not_have_is_replaced(edge: Edge) -> None:
    done = edge("rerank", QUERY, "--docs", "-", stdin="café …\n".encode(), PYTHONIOENCODING="latin-1")
    assert "caf\udce9 ?" in done.out
