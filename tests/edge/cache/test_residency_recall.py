"""A block that was asked for is taken back only while its transfer has not begun and nobody else wants it."""

from __future__ import annotations

import threading

import pytest
from naive.residing import SIZE, Rig


@pytest.mark.parametrize("wanted_by", ["nobody", "another search", "a prediction"])
def test_a_block_is_taken_back_if_nobody_else_wants_it(wanted_by: str) -> None:
    rig = Rig(blocks=4)
    begun, go_on = threading.Event(), threading.Event()

    def occupied() -> int:
        begun.set()
        assert go_on.wait(60)
        return 0

    rig.lane.submit("standing", occupied, 0)
    assert begun.wait(60)
    handle = rig.admit(3)
    assert handle is not None
    other = rig.claim(3) if wanted_by == "another search" else None
    if wanted_by == "a prediction":
        rig.prefetch(3)
    held = rig.budget.used
    taken = rig.residency.recall(handle)
    assert taken == (wanted_by == "nobody")
    assert (3 in rig.residency) == (not taken)
    if taken:
        assert rig.budget.used <= held - SIZE
        assert not rig.residency.recall(handle), "it is released already"
    go_on.set()
    for waiting in [] if taken else [handle, *([other] if other else [])]:
        rig.check(waiting, 3)
        assert not rig.residency.recall(waiting), "it has arrived"
        waiting.release()
    rig.residency.close()
    rig.lane.close()
    assert rig.budget.used == 0
