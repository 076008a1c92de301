"""The memory that a runtime's layers take, measured in a process of its own, beside the bound that they tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from edge.models.spec import LayerSpec
from naive.program import printed

_CODE = """
import ctypes, json, sys
import numpy as np
from edge.models.spec import LayerSpec
from edge.resident import small_pages
from edge.runtimes.base import load_runtime

small_pages()

def kilobytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

for spec, dtype, lengths, prefix in json.loads(sys.argv[2]):
    spec, lengths = LayerSpec(**spec), np.array(lengths, np.int32)
    kernel = load_runtime(sys.argv[1]).layer_kernel(spec, threads=2, hidden_dtype=dtype)
    weights = {t.name: np.ones(t.shape, t.dtype) for t in spec.tensors()}
    states = np.ones((int(lengths.sum()), spec.hidden), dtype)
    shared = kernel.run_prefix(np.ones((prefix, spec.hidden), dtype), weights)[1] if prefix else None
    # Code and thread stacks are paid for once, by the first call.
    kernel.run(states, lengths, weights, shared)
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = kilobytes("VmRSS")
    kernel.run(states, lengths, weights, shared)
    print((kilobytes("VmHWM") - before) * 1024, kernel.workspace(len(states), int(lengths.max()), prefix))
"""

Case = tuple[LayerSpec, str, Sequence[int], int]
"""A layer, the type of its states, the lengths of the sequences, and the tokens of their prefix."""


def check_workspaces(runtime: str, cases: Sequence[Case]) -> None:
    """Asserts that each layer takes no more than its `workspace`, which is not much more than that."""
    given: list[Any] = [(asdict(spec), *case) for spec, *case in cases]
    lines = printed(_CODE, runtime, json.dumps(given, default=np.ndarray.tolist)).splitlines()
    assert len(lines) == len(cases)
    for case, line in zip(cases, lines, strict=True):
        measured, bound = map(int, line.split())
        assert measured <= bound <= 2.5 * measured, case
