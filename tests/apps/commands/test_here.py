"""`edge search --here`: a project is found without `edge index` before, as it is at the moment of the search."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from naive.program import EDGE, environment_of, write_tiny_models
from naive.waiting import until

from edge.apps.collection.collection import Collection
from edge.apps.collection.discovery import Discovery
from edge.apps.collection.project import refresh
from edge.apps.store.connections import LOCK, WriterLock
from edge.config import Config

real = Discovery.compare

TEXTS = {"rivers.md": "The river floods in spring.\n", "src/bread.py": "def bake_bread():\n    return 'flour'\n"}


class Place:
    def __init__(self, home: Path, command: tuple[str, ...]) -> None:
        self.command = command
        self.home = home
        self.project = home / "project"
        self.environment = environment_of(home, EDGE_THREADS="1", EDGE_MEMORY="8GB", HOME=str(home))

    def write(self, texts: dict[str, str]) -> None:
        for name, text in texts.items():
            file = self.project / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def begun(self, query: str, *options: str, cwd: str = ".") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, "search", "--here", "--json", "--no-rerank", query, *options], cwd=self.project / cwd,
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def found(self, query: str, *options: str, cwd: str = ".") -> list[str]:
        """The names of the files whose passages hold a word of the query."""
        return self.answer(self.begun(query, *options, cwd=cwd))

    def answer(self, process: subprocess.Popen[str]) -> list[str]:
        out, err = process.communicate()
        assert process.returncode in (0, 1), err
        results = json.loads(out)["results"]
        assert process.returncode == (not results)
        return sorted({os.path.basename(result["path"]) for result in results})

    @property
    def collection(self) -> Path:
        (found,) = (self.home / "data" / "edge-rag" / "projects").iterdir()
        return found

    def settled(self) -> None:
        """Waits until the process in the background has ended."""
        until(lambda: not any(WriterLock(path).is_held() for path in self.home.rglob("background.lock")))


@pytest.fixture
def place(tmp_path: Path, forked_command: tuple[str, ...]) -> Iterator[Place]:
    home = tmp_path.resolve()
    write_tiny_models(home / "models")
    found = Place(home, forked_command)
    found.write(TEXTS)
    yield found
    found.settled()


def test_a_project_is_searched_as_it_is(place: Place) -> None:
    (place.project / ".git").mkdir()
    before = sorted(place.project.rglob("*"))
    assert place.found('"bread"', cwd="src") == ["bread.py"]
    assert sorted(place.project.rglob("*")) == before, "nothing is written into the project"
    place.write({"rivers.md": "The glacier melts.\n", "new.txt": "A glacier is old.\n"})
    (place.project / "src" / "bread.py").unlink()
    assert place.found('"glacier"') == ["new.txt", "rivers.md"]
    assert place.found('"bread"') == place.found('"floods"') == []
    shutil.rmtree(place.project / "src")
    for file in ("rivers.md", "new.txt"):
        (place.project / file).unlink()
    assert place.found('"glacier"') == [], "an empty project"


def test_a_home_under_version_control_is_no_project_and_its_folders_are(place: Place) -> None:
    (place.home / ".git").mkdir()
    assert place.found('"bread"') == ["bread.py"]
    assert place.collection.name.startswith("project-")


def test_the_background_makes_the_vectors(place: Place) -> None:
    place.found("flour")
    with Collection(place.collection, read_only=True, memory="16GB") as collection:
        until(lambda: bool(collection.health()))
        status = collection.status()
    assert (status.indexed, status.chunks) == (2, status.vectors.rows if status.vectors else 0)


def test_without_an_embedder_the_background_reads_all_words(place: Place) -> None:
    shutil.rmtree(place.home / "models")
    place.write({f"{number}.txt": f"file {number} of many\n" for number in range(1_200)})  # more than a search reads
    assert place.found('"river"') == ["rivers.md"]
    with Collection(place.collection, read_only=True, memory="16GB") as collection:
        until(lambda: collection.status().indexed == 1_202, pause=0.1)


def test_a_folder_without_a_change_is_not_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But one is that was changed so shortly before that the next change may have the same time, and one of which the
    collection has lost a file."""
    compared: list[object] = []
    monkeypatch.setattr(Discovery, "compare", lambda self, *args: compared.append(args) or real(self, *args))
    file = tmp_path / "project" / "rivers.md"
    file.parent.mkdir()
    clock = time.time

    def changed(later: float) -> int:
        file.write_text(f"The river floods in spring, {later}.\n")
        os.utime(file, (clock() - 9, clock() - 9))
        monkeypatch.setattr(time, "time", lambda: clock() + later)
        return again()

    def again() -> int:
        compared.clear()
        collection.refresh(file.parent, "river")
        assert [hit.path for hit in collection.search('"river"', rerank=False)] == [str(file.resolve())]
        return len(compared)

    with Collection(tmp_path / "collection", memory="8GB") as collection:
        assert [changed(later=9), again(), again(), changed(later=8), again()] == [1, 0, 0, 1, 0]
        assert [changed(later=0), again(), changed(later=7), again()] == [1, 1, 1, 0]
        collection.delete(str(file))
        assert again() == 1


def test_the_background_starts_only_for_what_it_can_do(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an embedder it reads the words; again once a file is due, or another setting or a model is there."""
    models = place.home / "models"
    models.rename(place.home / "hidden")
    place.found("flour")
    until(lambda: (place.collection / "background.failure").exists())
    place.settled()
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    begun: list[object] = []
    monkeypatch.setattr("edge.apps.collection.project.subprocess.run", lambda *args, **more: begun.append(args))
    long = place.project / "long.txt", place.project / "longer.txt"  # more than a search reads
    for change, started in (
        (lambda: None, 0),
        (lambda: place.write({"new.txt": "A glacier is old.\n"}), 0),
        (lambda: [file.write_text("a word of many\n" * 80_000) for file in long], 1),
        (lambda: [file.unlink() for file in long], 0),
        (lambda: monkeypatch.setenv("EDGE_MEMORY", "7GB"), 1),
        (lambda: monkeypatch.setenv("EDGE_MEMORY", "8GB"), 0),
        (lambda: (place.home / "hidden").rename(models), 1),
    ):
        change()
        begun.clear()
        refresh(str(place.project), "glacier", Config.load())
        assert len(begun) == started


def test_what_is_left_of_a_project_that_is_gone_is_named_and_deleted_if_asked(place: Place) -> None:
    place.found('"bread"')
    place.settled()
    left, other = place.collection, place.home / "other"
    place.project.rename(other)

    def said(*arguments: str, given: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [*place.command, *arguments],
            cwd=place.home,
            env=place.environment,
            capture_output=True,
            text=True,
            input=given,
        )
        return done.returncode, done.stdout + done.stderr

    assert "1 project searched with --here is gone; `edge collections prune`" in said("status", "-c", str(left))[1]
    code, text = said("collections", "prune", given="n\n")
    assert (code, left.exists(), f"{place.project} is gone" in text) == (0, True, True)
    for lock in (LOCK, "background.lock"):
        with WriterLock(left / lock)():
            assert said("collections", "prune", "--yes")[0] == 2
        assert left.exists()
    other.rename(place.project)
    assert "is gone" not in said("status", "-c", str(left))[1]
    assert said("collections", "prune", "--yes")[0] == 1
    place.project.rename(other)
    left.with_name(f"{left.name}.gone").joinpath("segments").mkdir(parents=True)  # a process was killed meanwhile
    assert said("collections", "prune", "--yes")[0] == 0
    assert not list(left.parent.iterdir())
    other.rename(place.project)
    assert place.found('"bread"') == ["bread.py"]


def test_two_at_once_and_one_that_is_killed(place: Place) -> None:
    place.write({f"{number}.txt": f"file {number} of many\n" for number in range(300)})
    both = [place.begun('"river"'), place.begun('"bread"')]
    assert [place.answer(process) for process in both] == [["rivers.md"], ["bread.py"]]
    place.settled()
    shutil.rmtree(place.collection)
    place.command = EDGE  # whose process is the one that is killed
    process = place.begun('"river"')
    until(lambda: any((place.home / "data" / "edge-rag" / "projects").glob("*/edge.db")))
    time.sleep(0.05)
    process.kill()
    process.communicate()
    assert place.found('"299"') == ["299.txt"]


@pytest.mark.parametrize(
    ("options", "cwd", "said"),
    [
        (["-c", "notes"], ".", "leave out -c"),
        (["--cluster", "auto"], ".", "leave out -c"),
        ([], "..", "is no project"),
        ([], "gone", "the folder that you are in is gone"),
    ],
)
def test_what_is_no_project_is_refused(place: Place, options: list[str], cwd: str, said: str) -> None:
    (place.project / "gone").mkdir()
    command = [*EDGE, "search", "--here", "river", *options]
    if cwd == "gone":
        command = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *command]
    done = subprocess.run(command, cwd=place.project / cwd, env=place.environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
