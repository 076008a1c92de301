"""The processor cores that this process may compute on."""

from __future__ import annotations

import os
import sys

import psutil


def physical_cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)
