"""`compare`: a planted regression is found, also one of quality; an equal run and mere noise are not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from bench.compare import compare, differences, noise
from bench.figures import Figure
from bench.run_record import RunRecord
from edge.errors import InputError

FIGURES = (
    Figure("edge", "warm", "s", "lower", (0.0100, 0.0102, 0.0101), "searching"),
    Figure("edge", "requests", "/s", "higher", (100.0, 102.0, 101.0)),
    Figure("edge", "peak", "B", "lower", (200e6, 201e6, 200e6), "searching"),
    Figure("edge", "recall@10", "", "higher", (0.974,), "searching"),
    Figure("edge", "found", "%", "higher", (0.9, 0.9)),
    Figure("edge", "setting", "", "neither", (33.0,)),
    Figure("peer", "warm", "s", "lower", (0.02, 0.0202, 0.0201), "searching", peer=True),
)
ROOT = Path(__file__).parents[2]
RUN = RunRecord("index", "python -m tests.bench index", "a machine", "1.0", "2026-01-02", FIGURES)


def compared(folder: Path, after: RunRecord, *options: str, before: RunRecord = RUN) -> Result:
    before.write(folder / "a.json")
    after.write(folder / "b.json")
    arguments = [str(folder / "a.json"), str(folder / "b.json"), *options]
    return CliRunner().invoke(compare, arguments, catch_exceptions=False)


def changed(column: str, change: Callable[[float], float], peer: bool = False) -> RunRecord:
    """The run with another value in all rounds of one figure."""
    figures = [
        replace(f, rounds=tuple(map(change, f.rounds))) if (f.column, f.peer) == (column, peer) else f for f in FIGURES
    ]
    return replace(RUN, figures=tuple(figures))


def test_an_equal_run_has_no_regression(tmp_path: Path) -> None:
    done = compared(tmp_path, RUN)
    assert done.exit_code == 0
    assert done.stdout == "0 of 5 figures are worse, 0 are better\n"


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("warm", lambda v: v * 1.2), ("requests", lambda v: v / 1.2), ("peak", lambda v: v * 1.05),
        ("recall@10", lambda v: v - 0.01), ("found", lambda v: v - 0.01),
    ],
)  # fmt: skip
def test_a_planted_regression_is_found(tmp_path: Path, column: str, change: Callable[[float], float]) -> None:
    done = compared(tmp_path, changed(column, change))
    assert done.exit_code == 1
    title, line, last = done.stdout.splitlines()
    assert title == "worse:"
    assert column in line
    assert last == "1 of 5 figures are worse, 0 are better"
    report = json.loads(compared(tmp_path, changed(column, change), "--json").stdout)
    assert [found["column"] for found in report["worse"]] == [column]
    back = compared(tmp_path, RUN, before=changed(column, change))
    assert back.exit_code == 0
    assert back.stdout.splitlines()[-1] == "0 of 5 figures are worse, 1 are better"


@pytest.mark.parametrize(
    ("column", "change"),
    [("warm", lambda v: v * 1.02), ("peak", lambda v: v * 1.02), ("recall@10", lambda v: v - 0.001)],
)
def test_a_small_change_does_not_count(tmp_path: Path, column: str, change: Callable[[float], float]) -> None:
    assert compared(tmp_path, changed(column, change)).exit_code == 0


def test_a_fact_without_direction_and_a_peer_do_not_count(tmp_path: Path) -> None:
    assert compared(tmp_path, changed("setting", lambda v: v * 2)).exit_code == 0
    done = compared(tmp_path, changed("warm", lambda v: v * 2, peer=True))
    assert done.exit_code == 0
    assert "other programs" in done.stdout


def test_noisy_rounds_hide_nothing_but_noise() -> None:
    """Of equal runs with a noise of 10 % one in a thousand may seem worse; one that takes twice as long always does."""
    numbers = np.random.default_rng(3)

    def run(mean: float, rounds: int) -> RunRecord:
        values = tuple((mean * numbers.normal(1, 0.1, rounds)).tolist())
        return replace(RUN, figures=(Figure("edge", "warm", "s", "lower", values),))

    pairs = [next(differences("a", run(1, rounds), run(1, rounds))) for rounds in (3, 5, 9) for _ in range(1000)]
    assert sum(change.worse for change in pairs) < 10
    slow = [next(differences("a", run(1, rounds), run(2, rounds))) for rounds in (5, 9) for _ in range(100)]
    assert all(change.worse for change in slow)


@pytest.mark.parametrize(
    ("unit", "before", "after", "expected"),
    [
        ("s", (2.0,), (2.0,), 0.5), ("B", (100.0,), (100.0,), 5.0), ("", (0.5,), (0.5,), 0.002),
        ("s", (1.0, 1.0), (1.0,), 0.03), ("s", (0.9, 1.1), (1.0,), 318.3 * (0.02 * 1.5) ** 0.5),
        ("s", (0.9, 1.1), (0.9, 1.1), 22.33 * 0.02**0.5),
    ],
)  # fmt: skip
def test_the_noise_of_a_figure(unit: str, before: tuple[float, ...], after: tuple[float, ...], expected: float) -> None:
    figures = [Figure("edge", "warm", unit, "lower", rounds) for rounds in (before, after)]
    assert noise(*figures) == pytest.approx(expected)


def test_folders_are_compared_by_the_names_of_their_files(tmp_path: Path) -> None:
    for folder, run in (("a", RUN), ("b", changed("warm", lambda v: v * 3))):
        (tmp_path / folder).mkdir()
        run.write(tmp_path / folder / "index.json")
    RUN.write(tmp_path / "a" / "more.json")
    done = CliRunner().invoke(compare, [str(tmp_path / "a"), str(tmp_path / "b")], catch_exceptions=False)
    assert done.exit_code == 1
    assert "index.json: searching, edge, warm" in done.stdout
    assert "more.json is only in" in done.stderr


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="runs of index and of memory"):
        compared(tmp_path, replace(RUN, bench="memory"))
    with pytest.raises(InputError, match="another unit or direction"):
        compared(tmp_path, replace(RUN, figures=(replace(FIGURES[0], unit="B"),)))
    done = CliRunner().invoke(compare, [str(tmp_path), str(tmp_path / "a.json")])
    assert isinstance(done.exception, InputError)
    other = compared(tmp_path, replace(RUN, machine="another machine", figures=FIGURES[:2]))
    assert other.exit_code == 0
    assert "another machine" in other.stderr
    assert "not measured again: a.json" not in other.stderr
    assert other.stderr.count("not measured again") == 4


def test_the_exit_code_reaches_the_shell(tmp_path: Path) -> None:
    RUN.write(tmp_path / "a.json")
    changed("warm", lambda v: v * 2).write(tmp_path / "b.json")
    program: list[Any] = [sys.executable, "-m", "tests.bench", "compare"]
    codes = [
        subprocess.run(
            [*program, tmp_path / "a.json", tmp_path / f"{name}.json"], capture_output=True, check=False, cwd=ROOT
        )
        for name in ("a", "b", "c")
    ]
    assert [done.returncode for done in codes] == [0, 1, 2]
