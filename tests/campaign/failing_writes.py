"""Disks that refuse the n-th write, or every write from the n-th on, and reads that fail."""

from __future__ import annotations

from campaign.kills import Interrupted


class FailingWrites(Interrupted):
    name = "failing-writes"
    promise = "a write that fails ends in one sentence; the state is that of some committed moment"
    quick = 12
    order = 21
    ways = (("EIO", False), ("ENOSPC", False), ("EIO", True), ("ENOSPC", True))


class FailingReads(Interrupted):
    name = "failing-reads"
    promise = "a read that fails ends in one sentence or is done without; nothing wrong is stored"
    quick = 4
    order = 22
    ways = (("EIO", False),)
    reads = True
