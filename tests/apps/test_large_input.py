"""Input that is larger than the memory limit is refused before it is held, wherever it comes from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from naive.program import settings_of

from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Collection
from edge.apps.memory.memory import Memory
from edge.apps.store.lexical import LONGEST_QUERY
from edge.config import Config
from edge.errors import BudgetExceeded, InputError
from edge.resident import anonymous_resident

LIMIT = 120_000_000
LARGE = 60_000_000
NEARLY_ALL = (b"x" * 10_000 + b"\n") * 10_300
"""Texts that fit beside the command line, but not beside the libraries of a model, too."""

PEAK = """
import sys
from edge.resident import ResidentWatch
from edge.apps.cli import main
with ResidentWatch(0.002) as watch:
    try:
        main(sys.argv[1:])
    finally:
        print(f"\\npeak {watch.high_water}", file=sys.stderr)
"""


@pytest.fixture
def config(tiny_models: Path, tmp_path: Path) -> Config:
    return Config.load(
        flags={
            "memory": f"{anonymous_resident() + LIMIT}B",
            "models_dir": str(tiny_models), "embedder": "tiny-embedder", "reranker": "tiny",
            "scratch_dir": str(tmp_path / "scratch"),
        }
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count other memory")
@pytest.mark.parametrize(
    ("arguments", "given", "code"),
    [
        (("chat", "-c", "col"), lambda: b"x" * LARGE + b"\nwhere is the river?\n", 0),
        (("ask", "-", "-c", "col"), lambda: b"x " * (LARGE // 2), 2),
        (("memory", "add", "-", "--path", "mem"), lambda: b"x " * (LARGE // 2), 2),
        (("memory", "add", "-", "--path", "mem"), lambda: b"tiny\n" * (LARGE // 5), 2),
        (("memory", "import", "-", "--path", "mem"), lambda: b'{"user_id":"a","memory":"' + b"x" * LARGE + b'"}\n', 2),
        (("rerank", "river", "--docs", "-"), lambda: b"x " * (LARGE // 2), 2),
        (("embed", "--docs", "-", "--out", "vectors.npy"), lambda: b"tiny\n" * (LARGE // 5), 2),
        (("rerank", "river", "--docs", "-"), lambda: NEARLY_ALL, 2),
        (("embed", "--docs", "-", "--out", "vectors.npy"), lambda: NEARLY_ALL, 2),
        (("plan", "rag", "-"), lambda: b"x" * LARGE, 2),
    ],
)
def test_what_is_piped_in_is_not_held(
    config: Config, tiny_models: Path, tmp_path: Path, arguments: tuple[str, ...], given: Callable[[], bytes], code: int
) -> None:
    if arguments[0] in ("chat", "ask"):
        with Collection(tmp_path / "col", config=config) as collection:
            collection.add("The river floods in spring.")
        arguments = (*arguments[:-1], str(tmp_path / "col"))
    limited = () if arguments[0] == "plan" else ("--memory", f"{LIMIT}B")
    own = {"EDGE_MODELS_DIR": str(tiny_models), "EDGE_SERVER": "false", "PATH": "", "HOME": str(tmp_path)}
    environment = settings_of(tmp_path, **own)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments, *limited],
        input=given(), capture_output=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert "edge: " in said
    assert "Traceback" not in said
    peak = int(said.rpartition("peak ")[2])
    assert 0 < peak < LIMIT, said


def test_a_query_has_a_longest_length(config: Config, tmp_path: Path) -> None:
    fits, long = "river " * 100, "river " * (LONGEST_QUERY // 6 + 1)
    with Collection(tmp_path / "col", config=config) as collection:
        collection.add("The river floods in spring.")
        assert collection.search(fits, rerank=False)
        for rerank in (True, False):
            with pytest.raises(InputError, match="100,000 are the most"):
                collection.search(long, rerank=rerank)
        with Assistant(collection, config=config) as assistant, pytest.raises(InputError, match="are the most"):
            assistant.ask(long + "?")
    with Memory(tmp_path / "mem", user_id="u", config=config) as memory:
        memory.add("The river floods in spring.")
        assert memory.search(fits, rerank=False)["results"]
        with pytest.raises(InputError, match="100,000 are the most"):
            memory.search(long)


def test_texts_that_need_more_memory_than_is_free_are_refused_before_they_are_stored(
    config: Config, tmp_path: Path
) -> None:
    with Memory(tmp_path / "mem", user_id="u", config=config) as memory:
        first = memory.add("The river floods in spring.")["results"][0]["id"]
        large = "river bridge " * 2_000_000
        for refused in (
            lambda: memory.add(large),
            lambda: memory.add([{"role": "user", "content": [{"type": "text", "text": large}]}]),
            lambda: memory.add(["river"] * 100_000),
            lambda: memory.update(first, large),
        ):
            with pytest.raises(BudgetExceeded, match="texts to remember"):
                refused()
        assert [row["memory"] for row in memory.get_all()["results"]] == ["The river floods in spring."]
        assert "texts to remember" not in memory.budget.holders()
    with Collection(tmp_path / "col", config=config) as collection:
        collection.add("The river floods in spring.")
        for texts in (large, [f"{number} river" for number in range(150_000)]):
            with pytest.raises(BudgetExceeded, match="texts to add"):
                collection.add(texts)
        assert collection.status().chunks == 1
        assert "texts to add" not in collection.budget.holders()
