"""The campaign, class by class: a few cases of each as CI runs it, or those that the options ask for."""

from __future__ import annotations

import random
import sys
import traceback
from itertools import islice
from pathlib import Path

import pytest

from campaign.base import Attack
from campaign.command_lines import CommandLines
from campaign.interruptions import FailingReads, FailingWrites, Kills, PowerLoss
from campaign.limit import Limit
from campaign.siege import Siege

if not sys.platform.startswith("linux"):
    pytest.skip("the campaign looks at processes through /proc", allow_module_level=True)

ATTACKS = (CommandLines(), Limit(), Siege(), Kills(), FailingWrites(), FailingReads(), PowerLoss())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("campaign")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_every_promise_holds_under_attack(
    attack: Attack, place: Path, pytestconfig: pytest.Config, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in attack.needs:
        pytest.importorskip(name)
    own = place / attack.name
    own.mkdir()
    attack.prepare(own)
    first = pytestconfig.getoption("first_case")
    cases = attack.cases(random.Random(f"{pytestconfig.getoption('seed')}:{attack.name}"))
    tried, failed = 0, 0
    for case in islice(cases, first - 1, first - 1 + (pytestconfig.getoption("cases") or attack.quick)):
        tried += 1
        try:
            problem = attack.attempt(case, own)
        except Exception:
            problem = traceback.format_exc(limit=-1)
        if problem is not None:
            failed += 1
            with capfd.disabled():  # a run that is ended early has reported what it found
                print(f"FAILED case {first + tried - 1}: {case.label}: {' '.join(problem.split())[:400]}")
    assert tried
    assert failed == 0, f"of {tried} cases {failed} do not keep this promise: {attack.promise}"
