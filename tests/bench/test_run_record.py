"""Stored runs: the command and the machine without places of this computer, rounds that add up, files that are none."""

from __future__ import annotations

import shlex
import socket
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from bench.command import bench
from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import ARGUMENT, Output, benchmark
from bench.run_record import RunRecord, command_line, machine, records, without_folders
from edge.errors import InputError

FIGURE = Figure("edge", "warm", "s", "lower", (0.25, 0.5), "searching")
RUN = RunRecord(
    "index", "python -m tests.bench index", "a machine", "1.0", "2026-01-02", (FIGURE,), ("lancedb was left out",)
)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    RUN.write(tmp_path / "a.json")
    assert RunRecord.load(tmp_path / "a.json") == RUN
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_later_run_of_the_same_command_adds_rounds() -> None:
    later = replace(RUN, date="2026-01-03", figures=(replace(FIGURE, rounds=(1.0,)), replace(FIGURE, row="other")))
    both = RUN.extended(later)
    assert both.date == "2026-01-03"
    assert [(figure.row, figure.rounds) for figure in both.figures] == [
        ("edge", (0.25, 0.5, 1.0)),
        ("other", (0.25, 0.5)),
    ]
    for name in ("command", "machine", "version"):
        with pytest.raises(InputError, match=f"another {name}"):
            RUN.extended(replace(RUN, **{name: "another"}))


def test_folders_are_read_file_by_file(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        RUN.write(tmp_path / folder / "a.json")
    assert records([tmp_path / "one"]) == {"a.json": RUN}
    with pytest.raises(InputError, match=r"two files are named a\.json"):
        records([tmp_path / "one", tmp_path / "two"])
    with pytest.raises(InputError, match="no stored runs"):
        records([tmp_path])


def test_a_command_line_names_no_place_of_the_machine(tmp_path: Path) -> None:
    found: list[Output] = []

    @benchmark
    @click.option("--fast/--slow", default=True)
    def run(
        *,
        data: Annotated[Path, ARGUMENT],
        rows: int = 5,
        sets: Annotated[tuple[str, ...], "--set"] = (),
        server: str = "server",
        fast: bool,
        cold: bool = False,
        output: Output,
    ) -> None:
        found.append(output)

    given = [str(tmp_path / "data"), "--set", "a", "--set", "b c", "--server", f"{tmp_path}/bin/server --memory 1/2"]
    CliRunner().invoke(run, [*given, "--slow", "--cold", "--store", str(tmp_path / "a.json")], catch_exceptions=False)
    assert found[0].begun is not None
    assert found[0].begun.command == "run --slow data --set a --set 'b c' --server 'server --memory 1/2' --cold"
    assert str(tmp_path) not in repr(found[0].begun)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/a/b/model.gguf", "model.gguf"), ("~/models/x", "x"), ("../x/y", "y"), ("./x", "x"), ("BAAI/bge", "BAAI/bge"),
        ("C:\\models\\x.gguf", "x.gguf"), ("64MB", "64MB"), ("a,/b/c", "a,c"), ("path=/b/c/", "path=c"),
    ],
)  # fmt: skip
def test_a_path_is_shown_as_its_last_component(text: str, shown: str) -> None:
    assert without_folders(text) == shown


def test_a_command_is_stored_as_it_was_typed() -> None:
    command = bench.get_command(click.Context(bench), "load")
    assert command is not None
    typed = [
        "--rates", "0.3,1", "--mix", "ask=2,chat=1", "--system", "neither=@tree,queue", "--system", "tree and queue=",
    ]  # fmt: skip
    context = command.make_context("load", list(typed))
    assert shlex.split(command_line(context)) == ["load", *typed]


def test_the_machine_is_not_named() -> None:
    assert "cores" in machine()
    assert socket.gethostname() not in machine().split()


def test_a_table_of_values_becomes_figures() -> None:
    rows = {"edge": {"time": {"p50": [1, 2]}, "recall": 0.5, "none": None}, "peer": {"time": {"p50": 4}}}
    columns = {"time.p50": lower("p50", "s", 1e-3), "recall": higher("recall"), "none": neither("none")}
    assert list(tabulate(rows, columns, "table", ["peer"])) == [
        Figure("edge", "p50", "s", "lower", (0.001, 0.002), "table"),
        Figure("edge", "recall", "", "higher", (0.5,), "table"),
        Figure("peer", "p50", "s", "lower", (0.004,), "table", peer=True),
    ]
    with pytest.raises(ValueError, match="one name"):
        list(tabulate(rows, {"time.p50": lower("p50", "s"), "recall": higher("p50")}))


def test_every_benchmark_stores_its_run() -> None:
    context = click.Context(bench)
    names = set(bench.list_commands(context)) - {"report", "compare"}
    assert len(names) > 15
    for name in names:
        command = bench.get_command(context, name)
        assert command is not None
        assert {"as_json", "store"} <= {param.name for param in command.params}, name


def test_a_file_of_another_command_is_refused_before_the_measurement(tmp_path: Path) -> None:
    RUN.write(tmp_path / "a.json")
    arguments = ["layer-speed", "--shapes", "tiny-bert", "--store", str(tmp_path / "a.json")]
    refused = CliRunner().invoke(bench, arguments)
    assert isinstance(refused.exception, InputError)
    assert "another command" in str(refused.exception)
    assert RunRecord.load(tmp_path / "a.json") == RUN
