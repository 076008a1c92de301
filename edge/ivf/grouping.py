"""Batches: which queries go together, and on which device (TeleRAG, section 4.2)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Vectors


def group(queries: Vectors, size: int) -> list[npt.NDArray[np.int64]]:
    """Cuts a batch into micro-batches of at most `size` by greedy nearest neighbours (L2), so that those in one share
    the lists that are fetched for it.

    Args:
        queries: [q, dim].

    Returns:
        Numbers of queries, each in exactly one group: the first that is left, and those nearest to it.
    """
    left = np.arange(len(queries))
    groups = []
    while len(left):
        difference = queries[left] - queries[left[0]]
        distance = np.einsum("ij,ij->i", difference, difference)
        distance[0] = -1.0  # the seed itself, also beside a duplicate
        near = np.argsort(distance, kind="stable")[:size]
        groups.append(left[near])
        left = np.delete(left, near)
    return groups


def assign(batches: Sequence[Collection[Hashable]], devices: Sequence[Collection[Hashable]]) -> list[int]:
    """Gives each micro-batch to a device, greedily by the largest overlap of its lists with those the device holds.

    A device gets no second batch before all have one, no third before all have two, and so on: overlap decides who
    takes what, not who works.

    Args:
        batches: the lists each micro-batch will probe.
        devices: the lists each device holds.

    Returns:
        The device of each batch.
    """
    overlap = np.array([[len(set(batch) & set(held)) for held in devices] for batch in batches]).reshape(
        len(batches), len(devices)
    )
    device_of = [-1] * len(batches)
    waiting, free = set(range(len(batches))), set(range(len(devices)))
    while waiting:
        free = free or set(range(len(devices)))
        batch, device = min(
            ((batch, device) for batch in waiting for device in free),
            key=lambda pair: (-int(overlap[pair]), pair),
        )
        device_of[batch] = device
        waiting.remove(batch)
        free.remove(device)
    return device_of
