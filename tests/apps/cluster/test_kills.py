"""A killed writer with its shards loses nothing that was acknowledged (`naive.spread_kills` is the campaign)."""

from __future__ import annotations

import random
from pathlib import Path

from naive.spread_kills import check, killed_after, started

from edge.config import Config


def test_a_killed_writer_leaves_a_complete_collection(model_folder: Path, tiny_config: Config, tmp_path: Path) -> None:
    chance = random.Random(4)
    for seed in range(3):
        killed_after(started("write", tmp_path, model_folder, seed), tmp_path, chance.randint(5, 25), chance)
        check(tmp_path, tiny_config)
