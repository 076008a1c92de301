"""Files that are not flushed: what was written is in the page cache, where every process sees it.

Only a loss of power tells a flushed file from another one. `tests/campaign/interruptions.py` tests that, with processes
of its own, which flush. The stores' tests would wait for the disk half of their time.
"""

from __future__ import annotations

import os


def leave_unflushed() -> None:
    """Has this process flush no file from now on."""
    from edge.apps.store import connections

    os.fsync = _checked
    connections._SYNCHRONOUS = "OFF"


def _checked(descriptor: int) -> None:
    """In place of `os.fsync`: still an error for a descriptor that is not open."""
    os.fstat(descriptor)
