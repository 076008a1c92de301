"""`devices` on a judged set of a few paragraphs: its rates, its counting, and equal results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from naive.program import output_of

from bench.devices import _ARMS, INDEX_GB, PROBED, PROPORTIONS, _row, devices, opened
from bench.process import Stops
from bench.rag_index import build
from bench.rag_traces import PIPELINES
from bench.run_record import RunRecord
from edge.models.training.corpora import load
from tests.conftest import webgpu


def test_an_index_as_large_as_the_papers_gets_the_papers_rates() -> None:
    for proportions in PROPORTIONS.values():
        window = sum(proportions.budgets.values()) / len(proportions.budgets) / proportions.link
        rates = proportions.rates(INDEX_GB * PROBED, window)
        assert (rates.link, rates.scan, rates.slow) == pytest.approx(
            (proportions.link, proportions.scan, proportions.slow)
        )
        half = proportions.rates(INDEX_GB * PROBED / 2, window)
        assert half.link == pytest.approx(proportions.link / 2)
    desktop = PROPORTIONS["desktop"]
    assert 1 / desktop.link + 1 / desktop.scan == pytest.approx(1.03 / desktop.slow)


def test_a_stop_is_a_tick_that_comes_much_too_late() -> None:
    assert Stops.stopped(0.02) == Stops.stopped(0.4) == 0
    assert Stops.stopped(60.0) == pytest.approx(60, abs=0.1)
    with Stops() as stops:
        pass
    assert stops.seconds >= 0


def asked(found: list[int], *, seconds: float, on_device: int, coverage: list[float], waited: int) -> dict[str, Any]:
    return {
        "seconds": seconds, "text": "x", "found": [found], "coverage": coverage, "search_s": seconds / 4,
        "embed_s": 0.0, "generate_s": seconds / 2, "probed": 8.0, "on_device": float(on_device), "sent": 300.0,
        "stopped_s": 0.0, "late": waited, "searches": [{"window": 0.0}, {"window": 1.0}],
    }  # fmt: skip


def test_figures_of_a_pipeline_are_those_of_its_questions() -> None:
    reports = {
        "slow place": [asked([1], seconds=s, on_device=0, coverage=[], waited=0) for s in (2.0, 6.0)],
        "ahead": [
            asked([1], seconds=s, on_device=n, coverage=[c], waited=1) for s, n, c in ((1.0, 3, 0.5), (3.0, 7, 1.0))
        ],
    }
    row = _row("hyde", reports, PROPORTIONS["desktop"], 6000)
    assert row["speedup"] == {"slow place": 1.0, "ahead": 2.0}
    assert row["bound"] == pytest.approx(4 / 3), "a quarter of the time in the slow place is search"
    assert row["hit_rate"] == {"slow place": 0.0, "ahead": 10 / 16}
    assert row["sent"]["ahead"] == pytest.approx(600 / 2 / 6000), "two searches follow a generation"
    assert (row["coverage"], row["late"], row["asked"], row["identical"]) == (
        0.75,
        {"slow place": 0, "ahead": 2},
        4,
        True,
    )
    for arm, rows in reports.items():
        rows.append(asked([1], seconds=99.0, on_device=0, coverage=[], waited=0) | {"stopped_s": float(arm == "ahead")})
    assert _row("hyde", reports, PROPORTIONS["desktop"], 6000) == row, "a question is left out if an arm stood still"
    reports["ahead"][0]["found"] = [[2]]
    assert not _row("hyde", reports, PROPORTIONS["desktop"], 6000)["identical"]


@pytest.fixture
def task(judged: Path, tmp_path: Path, tiny_settings: None) -> dict[str, Any]:
    folder = tmp_path / "rag"
    _, _, nbytes = build(folder, [load(judged)], 400, list_rows=25)
    return {
        "folder": str(folder), "nbytes": nbytes, "cap": 2 * nbytes + (1 << 20), "slow": 1e12, "link": 1e12,
        "scan": 1e12, "share": 0.5, "on": "limited",
    }  # fmt: skip


def test_lists_are_counted_where_they_are(task: dict[str, Any]) -> None:
    """A device holds the lists that searches sent to it, and every list once lookahead has fetched them all."""
    with opened({**task, "device": "filled"}) as library:
        vectors = library.embed_queries(["When does the Ombra flood?"])
        name = "lists on limited cpu.hits"

        def searched(ahead: bool) -> tuple[float, float, float]:
            before = library.trace.snapshot()
            window = None
            if ahead:
                window = library.lookahead(vectors)
                window.wait()  # type: ignore[union-attr]
            library.candidates(["x"], vectors, 3, window=window)
            after = library.trace.snapshot()
            grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
            return grown.get(name, 0.0), grown["index.hits"] + grown["index.lists_read"], grown.get("link.transfers", 0)

        none, probed, sent = searched(ahead=False)
        assert none == 0
        assert probed >= library.nprobe > 1
        again, _, _ = searched(ahead=False)
        assert again == sent, "the lists that came to the device before, and no others"
        held, _, _ = searched(ahead=True)
        assert held == probed


if webgpu():  # else it is not collected

    def test_a_gpu_finds_the_same(replaying: list[str]) -> None:
        options = ["--questions", "1", "--warmup", "1", "--pipelines", "hyde", "--assembled", "--on", "webgpu"]
        report = json.loads(
            output_of(devices, *replaying, *options, "--memory-share", "8", "--arms", "ahead and copies")
        )
        assert "Vulkan" in report["conditions"]["device"]
        (row,) = report["pipelines"]
        assert row["identical"]
        assert row["sent"]["ahead and copies"] > 0


def test_every_arm_finds_the_same(replaying: list[str], tmp_path: Path) -> None:
    options = ["--questions", "1", "--warmup", "1", "--pipelines", "hyde,subquestion", "--assembled"]
    report = json.loads(output_of(devices, *replaying, *options))
    assert "limited" in report["conditions"]["device"]
    assert [row["pipeline"] for row in report["pipelines"]] == ["hyde", "subquestion"]
    assert {figure.row for figure in RunRecord.load(tmp_path / "run.json").figures} == {"hyde", "subquestion"}
    for row in report["pipelines"]:
        assert row["identical"]
        assert list(row["seconds"]) == list(_ARMS)
        assert row["hit_rate"]["slow place"] == 0
        assert all(0 <= rate <= 1 for rate in row["hit_rate"].values())
        assert np.isfinite(list(row["speedup"].values())).all()
    arguments = [*replaying[: replaying.index("--json")], *options]
    assert "throttled test device" in output_of(devices, *arguments, "--arms", "copies")
    refused = CliRunner().invoke(devices, [*arguments, "--pipelines", "nothing"])
    assert refused.exit_code == 2
    assert PIPELINES[0] in refused.output
