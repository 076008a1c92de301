"""The arithmetic of training and scoring: bfloat16 if the processor has instructions for it, otherwise float32."""

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
        choice: one of `CHOICES`; auto takes the faster arithmetic, which on an accelerator is bfloat16.
        device: the type of device that computes.
    """
    if choice == "auto":
        return device != "cpu" or bfloat16_is_faster()
    return choice == "bfloat16"


@cache
def bfloat16_is_faster() -> bool:
    """Whether bfloat16 is faster here, measured once on a product of a small encoder's size. A processor with bfloat16
    instructions is two to four times as fast as in float32; one without them (AVX2 alone) is a hundred times slower."""
    return _seconds(torch.bfloat16) < _seconds(torch.float32)


def _seconds(kind: torch.dtype) -> float:
    """The time of the fastest of several runs, since the first run also initializes the library."""
    rows, weights = torch.ones(_ROWS, _WIDTH, dtype=kind), torch.ones(_WIDTH, _WIDTH, dtype=kind)
    tries = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        torch.mm(rows, weights)
        tries.append(time.perf_counter() - started)
    return min(tries)
