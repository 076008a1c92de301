"""`report`: the tables of stored runs, and those of the page of benchmarks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.figures import Figure
from bench.run_record import RunRecord, block, renew, report
from edge.errors import InputError

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
RUNS = PAGE.parent / "runs"
RUN = RunRecord(
    "index", "python -m tests.bench index --rows 10", "a machine", "1.0", "2026-01-02",
    (
        Figure("edge", "recall@10", "", "higher", (0.97, 0.95, 0.96), "searching"),
        Figure("edge", "warm", "s", "lower", (0.0125, 0.0126), "searching"),
        Figure("edge", "peak", "B", "lower", (248_000_000,), "searching"),
        Figure("peer", "warm", "s", "lower", (0.1,), "searching", peer=True),
        Figure("edge", "found", "%", "higher", (0.125,)),
        Figure("edge", "requests", "/s", "higher", (1234.5,)),
        Figure("edge", "long", "s", "lower", (3.25,)),
        Figure("edge", "short", "s", "lower", (2e-6,)),
    ),
    ("A peer was left out.",),
)  # fmt: skip
SHOWN = """\
<!-- run index.json -->
`python -m tests.bench index --rows 10`: 2026-01-02, version 1.0, a machine, medians of up to 3 rounds.

| searching | recall@10 | warm, ms | peak |
|---|---|---|---|
| edge | 0.960 | 12.6 | 248 MB |
| peer | | 100 | |

| | found | requests a second | long, s | short, µs |
|---|---|---|---|---|
| edge | 12.5 % | 1,234 | 3.25 | 2.00 |

A peer was left out.
<!-- end of run -->
"""


def test_a_run_becomes_tables() -> None:
    assert block("index.json", RUN) == SHOWN


def test_a_page_gets_its_blocks_and_keeps_its_text(tmp_path: Path) -> None:
    RUN.write(tmp_path / "index.json")
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n<!-- run index.json -->\nold\n<!-- end of run -->\n\nText.\n", encoding="utf-8")
    for _ in range(2):
        done = CliRunner().invoke(report, [str(tmp_path / "index.json"), "--page", str(page)], catch_exceptions=False)
        assert done.exit_code == 0
        assert page.read_text(encoding="utf-8") == f"# Title\n\n{SHOWN}\nText.\n"
    printed = CliRunner().invoke(report, [str(tmp_path / "index.json")], catch_exceptions=False)
    assert printed.stdout == SHOWN


def test_a_page_leaves_out_the_tables_and_columns_that_it_names() -> None:
    page = SHOWN.replace("index.json -->", "index.json without searching; long -->")
    shown = renew(page, {"index.json": RUN})
    assert shown.startswith("<!-- run index.json without searching; long -->\n")
    assert "| searching |" not in shown
    assert "| edge | 12.5 % | 1,234 | 2.00 |" in shown
    with pytest.raises(InputError, match=r"index\.json has no table or column finding"):
        renew(page.replace("without searching", "without finding"), {"index.json": RUN})


def test_a_page_without_the_place_of_a_run_is_refused() -> None:
    with pytest.raises(InputError, match=r"no place for index\.json"):
        renew("# Title\n", {"index.json": RUN})
    with pytest.raises(InputError, match=r"place for index\.json, which is no run"):
        renew(SHOWN, {})


def test_the_page_of_benchmarks_is_what_the_stored_runs_give(tmp_path: Path) -> None:
    copy = tmp_path / "benchmarks.md"
    shutil.copy(PAGE, copy)
    done = CliRunner().invoke(report, [str(RUNS), "--page", str(copy)], catch_exceptions=False)
    assert done.exit_code == 0
    assert copy.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8"), (
        "run `python -m tests.bench report docs/runs --page docs/benchmarks.md`"
    )


def test_the_stored_runs_of_the_page_were_made_from_a_commit() -> None:
    for path in RUNS.glob("*.json"):
        run = RunRecord.load(path)
        assert " at commit " in run.version, path.name
        assert not run.version.endswith("+"), f"{path.name} was measured with changes that are in no commit"
