"""The bench `recommend`: its click model, its two placements, and their equal results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.program import output_of

from bench import click_model, recommend
from bench.bank_lookup import BankLookup
from bench.command import bench
from edge.errors import EdgeError


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recommend, "_TRAINED_ON", 20_000)
    monkeypatch.setenv("EDGE_SCRATCH_DIR", str(tmp_path / "scratch"))


def run(*arguments: str) -> str:
    return output_of(bench, "recommend", "--memory", "10GB", *arguments)


def test_it_reports_both_placements_in_both_memories(tmp_path: Path) -> None:
    report: dict[str, Any] = json.loads(run("--requests", "1500", "--latency", "0.0001", "--json"))
    quality = report["quality"]
    found, truth = quality["predicted"], quality["planted truth"]
    assert 0.7 < found["auc"] < truth["auc"]
    assert truth["log_loss"] < found["log_loss"] < 0.6, "0.62 is the loss of the mean rate alone"
    assert len(report["memory"]) == 2
    for memory in report["memory"].values():
        assert memory["quality"] == found, "in every memory"
        plain, joined = memory["plain"], memory["joined"]
        assert not plain["joined"]
        assert joined["planned_per_s"] >= plain["planned_per_s"]
        assert all(min(row["requests_per_s"]) > 0 and row["rows_read"] > 0 for row in (plain, joined))
        names = [name for parts in joined["joined"] for name in parts]
        assert set(names) <= set(report["tables"])
        assert len(names) == len(set(names)) == 2 * len(joined["joined"])
        assert joined["near"] + joined["in_banks"] + len(joined["joined"]) == len(report["tables"])
    assert 0 < report["peak_resident"] <= report["memory_limit"]
    assert not list((tmp_path / "scratch").iterdir()), "the tables' files are removed"


def test_it_prints_rates_and_quality() -> None:
    text = run("--requests", "1000", "--latency", "0")
    for words in ("area under the ROC curve", "each by itself", "joined in pairs", "peak resident"):
        assert words in text


def test_different_rows_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BankLookup.vectors

    def wrong(lookup: BankLookup, ids: click_model.Ids) -> click_model.Floats:
        rows = right(lookup, ids)
        rows[0, 0] += sum(len(held) for held in lookup._held)
        return rows

    monkeypatch.setattr(BankLookup, "vectors", wrong)
    with pytest.raises(EdgeError, match="other rows"):
        run("--requests", "1000", "--latency", "0.001")


def test_a_model_of_the_planted_form_computes_all_pairs() -> None:
    random = np.random.default_rng(1)
    rows = random.standard_normal((4, 3, click_model.DIM)).astype(np.float32)
    found = click_model._sums(rows)
    for row, value in zip(rows.astype(np.float64), found, strict=True):
        pairs = sum(row[i, 1:] @ row[j, 1:] for i in range(3) for j in range(i))
        assert value == pytest.approx(row[:, 0].sum() + pairs, rel=1e-4)


def test_training_is_repeatable_and_learns() -> None:
    truth = click_model.planted(np.random.default_rng(2))
    clicks = click_model.made(truth, 12_000, np.random.default_rng(3))
    once, again = (click_model.trained(clicks, rounds=1, random=np.random.default_rng(4)) for _ in range(2))
    assert all(once.tables[name].tobytes() == rows.tobytes() for name, rows in again.tables.items())
    learned = click_model.auc(once.chances(click_model.rows_of(once.tables, clicks.ids)), clicks.clicked)
    assert learned > 0.7
    assert abs(float(clicks.chance.mean()) - float(clicks.clicked.mean())) < 0.02


def test_the_area_under_the_curve_counts_pairs() -> None:
    random = np.random.default_rng(5)
    scores, clicked = random.integers(6, size=60).astype(float), random.integers(2, size=60)
    ones, zeros = scores[clicked == 1], scores[clicked == 0]
    pairs = [(a > b) + 0.5 * (a == b) for a in ones for b in zeros]
    assert click_model.auc(scores, clicked) == pytest.approx(np.mean(pairs))
    assert click_model.log_loss([0.5, 0.25], [1, 0]) == pytest.approx(-(np.log(0.5) + np.log(0.75)) / 2)
