"""A verb that finds or lists nothing says so, and suggests what may be meant."""

from __future__ import annotations

from pathlib import Path

from tests.apps.commands.conftest import Edge


def test_a_near_name_is_suggested(edge: Edge) -> None:
    rivers, bread = (str(edge.project / "docs" / name) for name in ("rivers.md", "bread.md"))
    for verb, name, meant, code in (
        ("get", "river", rivers, 2), ("get", "docs/breed.md:1-3", bread, 2), ("remove", "bred.md", bread, 1),
        ("remove", "docs/rivers.txt", rivers, 1),
    ):  # fmt: skip
        done = edge(verb, name)
        assert done.returncode == code
        assert f"is not in the collection; did you mean {meant}?" in done.stderr
    assert edge("get", "xyz").stderr.endswith("xyz is not in the collection; `edge list` shows what is\n")


def test_a_folder_without_files_and_a_file_count_in_words(edge: Edge, files_home: Path) -> None:
    place = ["--collection", str(files_home / "single")]
    (files_home / "bare").mkdir()
    assert edge("index", str(files_home / "bare"), *place).stdout == "there was no file to index\n"
    done = edge("list", *place)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "edge: no file is indexed\n")
    (files_home / "one").mkdir()
    (files_home / "one" / "a.txt").write_text("A river.")
    assert edge("index", str(files_home / "one"), *place).stdout.startswith("indexed 1 file (1 passage in ")
    status = edge("status", *place).stdout
    assert "indexed     1 file, " in status
    assert "skipped     0 files and folders\n" in status
    (files_home / "one" / "b.txt").write_text("A river.")
    edge("index", *place)
    (files_home / "one" / "b.txt").unlink()
    assert edge("index", str(files_home / "one"), *place).stdout == "up to date: 1 unchanged, 1 removed\n"
    assert edge("remove", str(files_home / "one" / "a.txt"), *place).stdout == "removed 1 file\n"
    purged = edge("remove", "--purge", str(files_home / "one" / "a.txt"), *place)
    assert purged.returncode == 1
    assert "not reached, and may still hold the texts:\n  backups" in purged.stdout
    done = edge("remove", str(files_home / "one"), *place)  # a folder that holds no file any more
    assert (done.returncode, done.stdout, done.stderr) == (0, "removed 0 files\n", "")


def test_a_path_without_a_description_says_so(edge: Edge) -> None:
    assert edge("describe").stderr == "edge: nothing is described\n"
    assert edge("describe", "docs").stderr == "edge: docs is not described\n"
    assert edge("describe", "docs", "All about rivers.").stderr == ""
    assert edge("describe", "docs").stdout == f"{edge.project / 'docs'}  All about rivers.\n"
    assert edge("describe", "docs", "--remove").stderr == ""


def test_a_list_without_names_says_so(edge: Edge, files_home: Path) -> None:
    done = edge("collections", "list", XDG_DATA_HOME=str(files_home / "unnamed"), HOME=str(files_home / "unnamed"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "edge: no collection has a name; `edge collections add NAME` gives one a name\n"
