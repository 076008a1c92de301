"""The quick form of the campaign, class by class, and tests that its tools see broken promises."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from campaign.base import Attack
from campaign.command import ATTACKS, SEED, run
from campaign.report import table

if not sys.platform.startswith("linux"):
    pytest.skip("the campaign looks at processes through /proc", allow_module_level=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("campaign")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_every_promise_holds_under_attack(attack: Attack, place: Path) -> None:
    for name in attack.needs:
        pytest.importorskip(name)
    tallies = run([attack], place, seed=SEED)
    assert tallies[0].tried >= min(attack.quick, 1)
    assert tallies[0].failed == 0, table(tallies)
