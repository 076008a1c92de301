"""The commands `edge ask` and `edge chat`, and several collections."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from making.random_gguf import RandomModel, words
from making.synth import synth
from naive.program import EDGE, write_tiny_models

from edge.apps.assistant.assistant import Assistant
from edge.apps.assistant.reading import Reading
from edge.apps.assistant.retrieval import CollectionLibrary, Retrieval
from edge.apps.collection.collection import Collection, Together
from edge.apps.collection.filters import Filters
from edge.config import Config
from edge.runtimes.generation.base import Document
from tests.apps.assistant.conftest import answering
from tests.apps.commands.conftest import Edge

NOTES = "# Rivers\n\nThe river Ombra floods its valley in spring.\n\nIts bridge was built in 1821 by Anna Berg.\n"
QUESTION = "When does the river flood?"
ANY = ("--min-score", "0")


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory, forked_command: tuple[str, ...]) -> Edge:
    home = tmp_path_factory.mktemp("home")
    write_tiny_models(home / "models")
    RandomModel().write(home / "tiny.gguf")
    (home / "notes").mkdir()
    (home / ".edge").mkdir()
    (home / "notes" / "rivers.md").write_text(NOTES, encoding="utf-8")
    for i in range(3):
        (home / "notes" / f"words{i}.txt").write_text(words(40, i), encoding="utf-8")
    run = Edge(home, home, forked_command)
    run.said("index", "notes")
    return run


def test_ask_prints_an_answer_and_citations_that_open(edge: Edge) -> None:
    answer, _, sources = edge.said("ask", QUESTION, *ANY, "--filter", "type:md").partition("\n\n")
    assert "[1]" in answer
    match = re.fullmatch(r"\[1\] (\S+):(\d+).*\n", sources)
    assert match, sources
    line = (edge.project / match[1]).read_text(encoding="utf-8").splitlines()[int(match[2]) - 1]
    assert line.rstrip(".") in answer, "the citation's line is the one that was picked"


def test_ask_json_stats_and_trace(edge: Edge) -> None:
    trace = edge.project / "trace.json"
    done = edge("ask", QUESTION, *ANY, "--json", "--stats", "--trace", str(trace), "--memory", "400MB")
    document = json.loads(done.out)
    assert set(document) == {
        "text", "citations", "stats", "uncertain", "probability", "span", "nearest", "unsupported", "health",
    }  # fmt: skip
    assert document["stats"]["limit"] == 400_000_000
    assert 0 < document["stats"]["peak_resident"] < 400_000_000
    assert {line.split()[0] for line in done.err.splitlines()} >= {
        "memory",
        "time",
        "retrieve",
        "generate",
        "answered",
    }
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]


def test_several_collections_are_asked_together(edge: Edge) -> None:
    (edge.project / "more").mkdir()
    (edge.project / "more" / "bread.md").write_text("# Bread\n\nBread needs flour, water, salt and time.\n", "utf-8")
    edge.said("index", "more", "-c", "second")
    for name, collection in (("rivers.md", ".edge"), ("bread.md", "second")):
        chosen = ("-c", ".edge", "-c", "second", "--filter", f"path:{name}")
        citations = edge.json("ask", QUESTION, *chosen, "--no-rerank")["citations"]
        found = {(Path(each["path"]).name, each["collection"]) for each in citations}
        assert found == {(name, collection)}
    answer = edge.json("chat", "-c", ".edge", "-c", "second", "--no-rerank", stdin=QUESTION.encode())
    assert answer["stats"]["found"] is True


def test_what_the_documents_do_not_say_is_exit_code_1(edge: Edge) -> None:
    done = edge("ask", QUESTION, "--min-score", "1")
    assert (done.code, done.out) == (1, "This is not in the documents.\n")
    assert done.err.startswith("edge: nearest to the question: ")
    assert done.err.count("\n") == 1


def test_a_question_from_stdin(edge: Edge) -> None:
    edge.said("ask", "-", *ANY, stdin=QUESTION.encode())
    assert "not valid UTF-8" in edge.refused("ask", "-", stdin=b"\xff")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ask", " "], "the question is empty"),
        (["ask", "q", "--llm", "none.gguf"], "there is no file none.gguf"),
        (["ask", "q", "--pipeline", "hyde"], "hyde asks the generator"),
        (["ask", "q", "--min-score", "2"], "must be 0 to 1"),
        (["ask", "q", "--filter", "colour:red"], "is no filter"),
        (["ask", "q", "--collection", "nowhere"], "edge index"),
        (["chat", "--llm", "http://example.org/v1"], "this machine"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(edge: Edge, arguments: list[str], said: str) -> None:
    assert said in edge.refused(*arguments)


def test_settings_choose_what_writes_and_a_flag_chooses_otherwise(edge: Edge) -> None:
    chosen = {"EDGE_LLM": "chosen.gguf"}
    assert "there is no file chosen.gguf" in edge.refused("ask", QUESTION, *ANY, **chosen)
    assert "spring" in edge.said("ask", QUESTION, *ANY, "--llm", "extractive", **chosen)


@pytest.mark.usefixtures("llama")
def test_a_limit_too_small_for_the_language_model_names_one_that_is_not(edge: Edge) -> None:
    assert "smallest" in edge.refused("ask", "q", "--llm", "tiny.gguf", "--memory", "75MB")


@pytest.mark.usefixtures("llama")
def test_a_language_model_writes_within_its_limits(edge: Edge) -> None:
    common = ("--llm", "tiny.gguf", *ANY, "--filter", "type:txt", "--max-tokens", "6")
    answer = edge.json("ask", words(5, 9), *common, "--no-kv-cache", "-n", "2")
    stats = answer["stats"]
    assert stats["new_tokens"] <= 6
    assert stats["cached_tokens"] == 0
    assert stats["generator"] == "tiny.gguf"
    assert len(answer["citations"]) <= 2
    drawn = (*common, "--no-check", "--temperature", "1.5")
    one, other = (edge.json("ask", words(5, 9), *drawn, "--seed", seed)["text"] for seed in "12")
    assert one != other
    assert edge.json("ask", words(5, 9), *common, "--pipeline", "hyde")["stats"]["generations"] == 2


@pytest.mark.usefixtures("llama")
def test_a_context_reaches_the_language_model(edge: Edge) -> None:
    said = edge.refused("ask", "q", *ANY, "--llm", "tiny.gguf", "--context", "99999")
    assert "99,999 tokens is more than" in said


def test_answers_of_a_conversation_are_a_line_of_json_each(edge: Edge) -> None:
    typed = f"{QUESTION}\n/sources\n/why\n/help\nAnd when was it built?\n"
    done = edge("chat", *ANY, "--json", "--no-rerank", stdin=typed.encode())
    assert done.code == 0
    assert f"question   {QUESTION}" in done.err
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert first["stats"]["question"] == QUESTION
    assert second["stats"]["question"] == f"{QUESTION.rstrip('?')}, And when was it built?"


def test_a_conversation_without_a_terminal(edge: Edge) -> None:
    typed = (
        f"/why\n{QUESTION}\n/sources\n/why\nAnd when was it built?\n/why\n/magic\n"
        "/new\nAnd when was it built?\n/why\n/quit\nnever"
    )
    done = edge("chat", *ANY, "--filter", "type:md", stdin=typed.encode())
    assert done.code == 0
    assert "nothing has been asked yet" in done.err
    assert "/sources  the passages" in done.err, "an unknown command says which there are"
    out = done.out
    assert f"question   {QUESTION}\n" in out
    assert "question   And when was it built?\n" in out, "a new conversation knows nothing of the old one"
    assert re.search(r'\[1\] \S+rivers\.md:\d+.*\n    ".+"  \(relevance 0\.\d\d\)', out)
    assert re.search(r"BM25 #\d+, vectors #\d+", out)
    assert "> " not in out, "no prompt where nobody sees it"


@pytest.mark.usefixtures("llama")
def test_an_error_does_not_end_a_conversation(edge: Edge) -> None:
    long = "Words of a long text. " * 1000 + "When does it flood?"
    given = f"{long}\n{QUESTION}\n".encode()
    done = edge("chat", *ANY, "--llm", "tiny.gguf", "--max-tokens", "3", stdin=given)
    assert done.code == 0
    assert "tokens" in done.err
    assert "[1]" in done.out


@pytest.mark.usefixtures("llama")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for another process")
def test_ctrl_c_keeps_what_was_written(edge: Edge) -> None:
    # The check is shown sentence by sentence, and this model writes none.
    options = ("--llm", "tiny.gguf", "--max-tokens", "2000", "--filter", "type:txt", "--no-check", "--stats")
    run = subprocess.Popen(
        [*EDGE, "ask", words(5, 9), *ANY, *options], cwd=edge.project, env=edge.environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdout is not None
    first = run.stdout.read(1)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    text = (first + out).decode()
    assert "[1] " in text, "sources of what was written"
    assert "Traceback" not in err.decode()
    time.sleep(0.1)
    edge.said("ask", QUESTION, *ANY)


ROOT = Path(__file__).parents[3]
PAGES = ("memory-limit", "memory", "models", "serve", "security", "python", "cluster")


def test_the_example_of_the_first_page_is_answered(tmp_path: Path) -> None:
    (question,) = set(re.findall(r'^edge ask "([^"]*)"', (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
    (tmp_path / "models").mkdir()
    write_tiny_models(tmp_path / "models")
    # A random embedder: what is found is found by its words.
    config = Config(
        memory=8 * 10**9, models_dir=str(tmp_path / "models"), embedder="tiny-embedder",
        scratch_dir=str(tmp_path / "scratch"),
    )  # fmt: skip
    with Collection(tmp_path / "collection", config=config) as collection:
        collection.index([ROOT / "docs" / f"{page}.md" for page in PAGES])
        with Assistant(collection) as assistant:
            answer = assistant.ask(question)
    assert answer.found
    assert "anonymous resident memory" in answer.text
    assert answer.citations[0].path.endswith("memory-limit.md")


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    notes = tmp_path / "notes"
    notes.mkdir()
    for name in ("river", "bridge", "mill"):
        (notes / f"{name}.txt").write_text(f"The {name} of Ombra is old.\n", encoding="utf-8")
    embedder = synth("tiny-bert-embedder", tmp_path / "embedder")
    embedder.close()
    with Collection(tmp_path / "notes.edge", embedder=str(tmp_path / "embedder"), memory="10GB") as opened:
        opened.index([notes])
        yield opened


def test_the_index_gets_the_time_that_the_rest_of_a_search_leaves(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = collection.vectors
    assert index is not None
    search = index.search
    given: list[float | None] = []
    now = 0.0

    def passing(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, during which so many seconds pass."""

        def slow(*args: Any, **options: Any) -> Any:
            nonlocal now
            now += seconds
            return work(*args, **options)

        return slow

    def watched(*args: Any, seconds: float | None = None, **options: Any) -> Any:
        given.append(seconds)
        return search(*args, seconds=seconds, **options)

    monkeypatch.setattr(index, "search", passing(1000, watched))
    for module in ("assistant.retrieval", "collection.searching"):
        monkeypatch.setattr(f"edge.apps.{module}.time", SimpleNamespace(perf_counter=lambda: now))
    library = CollectionLibrary(Together({"": collection}))
    monkeypatch.setattr(collection.source, "hits", passing(1, collection.source.hits))
    query = [Retrieval.of("the old bridge")]
    vectors = np.asarray(library.embed_queries(["the old bridge"]))
    assert [hit.path for hits in library.candidates(query, vectors, 3) for hit in hits]
    library.candidates(query, vectors, 3, seconds=60.0)
    library.candidates(query, vectors, 3, seconds=1e-9)
    unlimited, limited, none = given
    assert unlimited is None
    assert limited is not None
    assert 50 < limited <= 59, "full text and reading passages took a second, the index's own time is its own"
    assert none == 0.0


@pytest.mark.parametrize("where", [None, Filters.of(["path:*r*"])])
def test_the_queries_of_a_batch_are_one_search_and_find_what_each_finds_alone(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, where: Filters | None
) -> None:
    index = collection.vectors
    assert index is not None
    search = index.search
    asked: list[int] = []

    def watched(db: Any, queries: Any, *args: Any, **options: Any) -> Any:
        asked.append(len(queries))
        return search(db, queries, *args, **options)

    monkeypatch.setattr(index, "search", watched)
    library = CollectionLibrary(Together({"": collection}))
    texts = ["the old bridge", "a mill", "Ombra river"]
    queries = [Retrieval.of(text) for text in texts]
    vectors = np.asarray(library.embed_queries(texts))
    alone = [
        library.candidates([query], vector[None], 3, where=where)[0]
        for query, vector in zip(queries, vectors, strict=True)
    ]
    asked.clear()
    together = library.candidates(queries, vectors, 3, where=where)
    assert asked == [3]
    assert [[(hit.id, hit.score) for hit in hits] for hits in together] == [
        [(hit.id, hit.score) for hit in hits] for hits in alone
    ]
    assert len({hits[0].path for hits in together}) > 1, "each query has its own results"


def test_room_that_another_request_works_in_is_no_refusal(collection: Collection) -> None:
    """Of several requests, each asks caches for all the room that one needs. What another one holds meanwhile comes
    back, so the models decide whether a pass fits beside it or waits."""
    budget = collection.budget
    cache = budget.reserve("cache", 3 << 30)
    budget.add_shrinker("cache", lambda nbytes: cache.resize(max(0, cache.nbytes - nbytes)), loss=0.0)
    library = CollectionLibrary(Together({"": collection}), working=8 << 30)
    with budget.reserve("another request", 3 << 30):
        assert library.embed_queries(["the old bridge"]).shape == (1, 64)
    assert not cache.nbytes


def test_a_quotation_is_from_the_best_passages_in_whatever_order_a_model_got_them(
    collection: Collection, hit: Any
) -> None:
    """Mails are given newest first, and the reader reads the first two of what it gets."""
    worst, best = hit(1, "Ice floats.", score=0.1), hit(2, "The river floods.", score=0.9)
    read: list[list[str]] = []

    def reading(question: str, passages: Sequence[Document], relevance: Sequence[float]) -> Reading:
        read.append([passage.text for passage in passages])
        return Reading((answering(0.9),))

    library = CollectionLibrary(Together({"": collection}), reader=Mock(read=reading))
    assert library.best_unit("When?", [worst, best]) == (2, answering(0.9).unit.text)
    assert read == [["The river floods.", "Ice floats."]]
