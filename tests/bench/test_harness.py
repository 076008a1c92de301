"""What every benchmark is made of: options from parameters, measurements in processes of their own, and turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from click.testing import CliRunner

from bench.options import ARGUMENT, Count, Folder, Names, Otherwise, Output, benchmark, numbers, stated
from bench.process import TreeWatch, in_turn, measure, timed
from edge.errors import CapabilityError, EdgeError


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


def test_the_memory_of_child_processes_counts() -> None:
    hold = "held = bytearray(b'1') * (200 << 20); print(); import sys; sys.stdin.read()"
    start = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {hold!r}]).returncode)"
    parent = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    watch = TreeWatch(parent.pid)
    try:
        assert parent.stdout is not None
        parent.stdout.readline()  # the child holds its memory from now on
        end = time.monotonic() + 120
        while watch.high_water < 200 << 20 and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        parent.communicate()
        watch.close()
    assert 200 << 20 <= watch.high_water < 300 << 20


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


held.__module__ = "bench.test_harness"  # as a process that pytest has not started imports it


def test_a_function_runs_in_a_process_of_its_own() -> None:
    report = measure(held, {"nbytes": 100 << 20}, threads=3)
    assert report["pid"] != os.getpid()
    assert report["threads"] == "3"
    assert 100 << 20 <= report["peak_resident"] < 200 << 20
    with pytest.raises(EdgeError, match="one failed: KeyError: 'nbytes'"):
        measure(held, {"name": "one"}, threads=1)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Options of several benchmarks."""

    rows: Annotated[int, "Of the index."] = 5
    place: Annotated[str, Otherwise(lambda: "here")]


@benchmark
def some_bench(
    *,
    folders: Annotated[tuple[Folder, ...], ARGUMENT],
    counts: Annotated[list[int], numbers(1, 8), "Numbers of devices."] = (1, 2),  # type: ignore[assignment]
    systems: Annotated[list[str], Names(("a", "b"))] = ("a",),  # type: ignore[assignment]
    ks: Annotated[tuple[int, ...], "-k", "--top-k"] = (3,),
    queries: Annotated[Count | None, "All if not given."] = None,
    cold: Annotated[bool, "From the disk."] = False,
    shared: Annotated[Shared, {"rows": 9}],
    output: Output,
) -> None:
    """Do something."""
    values = {"folders": len(folders), "counts": counts, "systems": systems, "ks": ks, "queries": queries, "cold": cold}
    output.put(values | {"rows": shared.rows, "place": shared.place}, (), "done")


def asked(*arguments: str) -> Any:
    done = CliRunner().invoke(some_bench, [str(Path(__file__).parent), *arguments, "--json"], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def test_parameters_are_options_with_their_defaults() -> None:
    assert some_bench.name == "some-bench"
    assert asked() == {
        "folders": 1, "counts": [1, 2], "systems": ["a"], "ks": [3], "queries": None, "cold": False, "rows": 9,
        "place": "here",
    }  # fmt: skip
    options = "--counts 8,1 --systems b,a -k 1 --top-k 2 --queries 4 --cold --rows 2"
    given = asked(*options.split())
    assert given == {
        "folders": 1, "counts": [8, 1], "systems": ["b", "a"], "ks": [1, 2], "queries": 4, "cold": True, "rows": 2,
        "place": "here",
    }  # fmt: skip
    help = CliRunner().invoke(some_bench, ["--help"]).stdout
    shown = ("FOLDERS...", "Numbers of devices. [default: 1,2]", "Of a, b. [default: a]", "Of the index. [default: 9]")
    assert all(text in " ".join(help.split()) for text in shown)


@pytest.mark.parametrize(
    "arguments", [("--counts", "9"), ("--counts", "x"), ("--systems", "c"), ("--queries", "0"), ("none-such",)]
)
def test_values_that_do_not_fit_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter):
        asked(*arguments)


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


def test_each_call_is_timed_without_what_comes_before_it() -> None:
    called = []
    results, seconds = timed(
        lambda pause: time.sleep(pause) or pause, [0.0, 0.05], before=lambda: called.append(time.sleep(0.1))
    )
    assert results == [0.0, 0.05]
    assert len(called) == 2
    assert seconds[0] < 0.05 <= seconds[1] < 0.1


def test_conditions_are_stated_with_their_units() -> None:
    conditions = {"limit": 300_000_000, "top_k": 3, "window_s": 0.123456, "data": ["a"], "none": None}
    assert stated(conditions) == "limit 300 MB; top k 3; window s 0.1235"
