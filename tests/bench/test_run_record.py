"""The harness of benchmarks: processes, options, stored runs, their figures and the page that is written from them."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import click
import pytest
from naive.program import output_of

from bench.command import bench
from bench.figures import Column, Figure, tabulate
from bench.load import load
from bench.manuals import manuals
from bench.process import in_turn, measure
from bench.run_record import RunRecord, command_line, machine, records, renew, report, without_folders
from edge.errors import CapabilityError, EdgeError, InputError

FIGURE = Figure("edge", "warm", "s", (0.25, 0.5), "searching")
RUN = RunRecord(
    "index", "python -m tests.bench index", "a machine", "1.0", "2026-01-02", (FIGURE,), ("lancedb was left out",)
)


def test_folders_are_read_file_by_file(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        RUN.write(tmp_path / folder / "a.json")
    assert records([tmp_path / "one"]) == {"a.json": RUN}
    with pytest.raises(InputError, match=r"two files are named a\.json"):
        records([tmp_path / "one", tmp_path / "two"])
    with pytest.raises(InputError, match="no stored runs"):
        records([tmp_path])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/a/b/model.gguf", "model.gguf"), ("~/models/x", "x"), ("../x/y", "y"), ("./x", "x"), ("BAAI/bge", "BAAI/bge"),
        ("C:\\models\\x.gguf", "x.gguf"), ("64MB", "64MB"), ("a,/b/c", "a,c"), ("path=/b/c/", "path=c"),
    ],
)  # fmt: skip
def test_a_path_is_shown_as_its_last_component(text: str, shown: str) -> None:
    assert without_folders(text) == shown


def test_a_command_is_stored_as_it_was_typed_without_places_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    typed = [
        "--rates", "0.3,1", "--mix", "ask=2,search=1", "--system", "neither=@tree,queue", "--system", "tree and queue=",
    ]  # fmt: skip
    context = load.make_context("load", ["--model", str(tmp_path / "model.gguf"), "--json", *typed])
    assert shlex.split(command_line(context)) == ["load", "--model", "model.gguf", *typed]
    context = manuals.make_context("manuals", ["--documents", f"{tmp_path}/bin --memory 1/2", "--plain"])
    assert command_line(context) == "manuals --documents 'bin --memory 1/2' --plain"


def test_the_machine_is_not_named() -> None:
    assert "cores" in machine()
    assert socket.gethostname() not in machine().split()


def test_a_table_of_values_becomes_figures() -> None:
    rows = {"edge": {"time": {"p50": [1, 2]}, "recall": 0.5, "none": None}, "peer": {"time": {"p50": 4}}}
    columns = {"time.p50": Column("p50", "s", 1e-3), "recall": Column("recall"), "none": Column("none")}
    assert list(tabulate(rows, columns, "table")) == [
        Figure("edge", "p50", "s", (0.001, 0.002), "table"), Figure("edge", "recall", "", (0.5,), "table"),
        Figure("peer", "p50", "s", (0.004,), "table"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="one name"):
        list(tabulate(rows, {"time.p50": Column("p50", "s"), "recall": Column("p50")}))


PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
RUNS = PAGE.parent / "runs"


def test_every_benchmark_stores_its_run_and_has_a_figure_in_the_documents() -> None:
    """One that has none goes. Those with a stored run are named above its tables."""
    text = " ".join(word for page in PAGE.parent.rglob("*.md") for word in page.read_text(encoding="utf-8").split())
    context = click.Context(bench)
    for name in set(bench.list_commands(context)) - {"report"}:
        assert f"tests.bench {name}" in text, name
        assert "store" in {param.name for param in bench.get_command(context, name).params}, name


def test_a_page_without_the_place_of_a_run_is_refused() -> None:
    with pytest.raises(InputError, match=r"no place for index\.json"):
        renew("# Title\n", {"index.json": RUN})
    page = "<!-- run index.json without finding -->\n<!-- end of run -->\n"
    with pytest.raises(InputError, match=r"place for index\.json, which is no run"):
        renew(page, {})
    with pytest.raises(InputError, match=r"index\.json has no table or column finding"):
        renew(page, {"index.json": RUN})


def test_the_page_of_benchmarks_is_what_the_stored_runs_give(tmp_path: Path) -> None:
    copy = tmp_path / "benchmarks.md"
    shutil.copy(PAGE, copy)
    output_of(report, str(RUNS), "--page", str(copy))
    assert copy.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8"), (
        "run `python -m tests.bench report docs/runs --page docs/benchmarks.md`"
    )
    assert output_of(report, str(RUNS / "rerank-memory.json")) in copy.read_text(encoding="utf-8")


def test_the_stored_runs_of_the_page_were_made_from_a_commit() -> None:
    for path in RUNS.glob("*.json"):
        run = RunRecord.load(path)
        assert " at commit " in run.version, path.name
        assert not run.version.endswith("+"), f"{path.name} was measured with changes that are in no commit"


def test_a_script_runs_outside_its_folder_and_without_a_hub(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    (tmp_path / "json.py").write_text("raise SystemError('a module beside the script was imported')")
    script.write_text(
        "import json, os, sys\n"
        "task = json.load(sys.stdin)\n"
        "print('a line of a library')\n"
        "print(json.dumps({'said': task['say'], 'files': os.listdir('.'), 'offline': os.environ['HF_HUB_OFFLINE']}))\n"
    )
    report = measure(script, {"say": 5}, threads=1)
    assert report["said"] == 5
    assert report["files"] == []
    assert report["offline"] == "1"


def test_a_script_that_fails_or_hangs_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise ValueError('the reason')")
    with pytest.raises(EdgeError, match="one failed: ValueError: the reason"):
        measure(script, {"name": "one"}, threads=1)
    script.write_text("import time\ntime.sleep(600)")
    with pytest.raises(EdgeError, match=r"one was ended after 1 s"):
        measure(script, {"name": "one"}, threads=1, timeout=1)
    script.write_text("import a_module_that_nobody_has")
    with pytest.raises(CapabilityError, match="a_module_that_nobody_has"):
        measure(script, {"name": "one"}, threads=1)


def held(task: dict[str, Any]) -> dict[str, Any]:
    """A measurement that holds as many bytes as its task says."""
    data = bytearray(b"1") * task["nbytes"]
    time.sleep(0.05)
    return {"pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"], "held": len(data)}


held.__module__ = "bench.test_run_record"  # as a process that pytest has not started imports it


def test_a_function_runs_in_a_process_of_its_own() -> None:
    report = measure(held, {"nbytes": 100 << 20}, threads=3)
    assert report["pid"] != os.getpid()
    assert report["threads"] == "3"
    assert 100 << 20 <= report["peak_resident"] < 200 << 20
    with pytest.raises(EdgeError, match="one failed: KeyError: 'nbytes'"):
        measure(held, {"name": "one"}, threads=1)


def test_systems_take_turns_and_one_without_its_library_is_tried_once() -> None:
    order = []

    def run(name: str) -> int:
        order.append(name)
        if name == "absent":
            raise CapabilityError("no such library")
        return len(order)

    found, left_out = in_turn(2, ("one", "absent", "other"), run)
    assert order == ["one", "absent", "other", "one", "other"]
    assert found == {"one": [1, 4], "other": [3, 5]}
    assert left_out == {"absent": "absent was left out: no such library."}
    with pytest.raises(EdgeError, match="nothing was measured"):
        in_turn(1, ("absent",), run)
