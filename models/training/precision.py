"""The arithmetic of training and of its measures: bfloat16 where the processor computes in it, float32 elsewhere."""

from __future__ import annotations

import time
from functools import cache

import torch

CHOICES = ("auto", "bfloat16", "float32")

_ROWS, _WIDTH = 256, 384
_TRIES = 3


def in_bfloat16(choice: str = "auto", device: str = "cpu") -> bool:
    """Whether to run under bfloat16 autocast.

    Args:
        choice: one of `CHOICES`; auto takes what is faster on this machine, which on an accelerator is bfloat16.
        device: the type of device that computes.
    """
    if choice == "auto":
        return device != "cpu" or bfloat16_is_faster()
    return choice == "bfloat16"


@cache
def bfloat16_is_faster() -> bool:
    """Measured once, on a product of a small encoder's size: a processor with the instructions gains a factor of two to
    four, one without them (AVX2 alone) loses one of a hundred."""
    return _seconds(torch.bfloat16) < _seconds(torch.float32)


def _seconds(kind: torch.dtype) -> float:
    """Of the fastest try: the first one also sets the library up."""
    rows, weights = torch.ones(_ROWS, _WIDTH, dtype=kind), torch.ones(_WIDTH, _WIDTH, dtype=kind)
    tries = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        torch.mm(rows, weights)
        tries.append(time.perf_counter() - started)
    return min(tries)
