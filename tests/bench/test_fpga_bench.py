"""The designs of `fpga`: their points, the lost rows, and the stored file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import fpga
from edge.devices.fpga import shape as chip
from edge.devices.fpga.shape import REPORTS, Resources, Shape, Synthesized
from edge.devices.fpga.simulation import missing


def test_there_are_thirty_points_and_every_design_can_be_made() -> None:
    assert len(fpga.SHAPES) * len(fpga.WORKLOADS) >= 30
    assert len(set(fpga.SYNTHESIZED)) == len(fpga.SYNTHESIZED) >= 12
    assert all(chip.fits(chip.resources(shape)) for shape in fpga.SYNTHESIZED)


def test_the_stored_file_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    designs = [Synthesized(shape, Resources(9, 2, 4)) for shape in fpga.SYNTHESIZED]
    (tmp_path / "designs.json").write_text(fpga.stored(designs))
    monkeypatch.setattr(chip, "REPORTS", tmp_path / "designs.json")
    assert chip.reports.__wrapped__() == tuple(designs)
    assert all("shape" in row for row in json.loads(REPORTS.read_text())["designs"])


def test_boards_are_told_with_what_they_take_and_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("amaranth")
    monkeypatch.setattr(fpga, "synthesized", lambda board, folder: Resources(9, 2, 4))
    monkeypatch.setattr(fpga, "placed", lambda folder, target, seed: 1e6 * seed)
    told = {
        (each.row, each.column): each for each in fpga.boards(["pq-128-16-1-10", "pq-384-96-8-32"], tmp_path, [1, 2, 3])
    }
    assert told["pq-128-16-1-10", "clock"].rounds == (1e6, 2e6, 3e6)
    assert told["pq-128-16-1-10", "codes asked for"].rounds == (2e6 * (8 * 16 + 1) / 8,)
    assert told["pq-128-16-1-10", "codes from the bus"].rounds == (2e6 * 16,)
    assert told["pq-384-96-8-32", "memory blocks"].table == "does not fit"
    assert told["pq-384-96-8-32", "memory blocks"].median == 816


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_cycles_and_losses(tmp_path: Path) -> None:
    shape = Shape("bytes", 8, 0, units=4, results=10, kept=4, lanes=8)
    found = dict(fpga.points(tmp_path, [shape], level=0))
    assert [row["error"] < 0.1 for row in found.values()] == [True] * len(fpga.WORKLOADS)
    lost = {name: row["lost"] for name, row in fpga.losses(tmp_path, 20)}
    assert len(lost) == 3
    assert min(lost.values()) == list(lost.values())[-1] < 0.1, "of queues as long as the bound"
