"""The number of lists that a search probes."""

from __future__ import annotations

from collections.abc import Sequence

from edge.errors import InputError
from edge.ivf.base import Snapshot


def lists_to_probe(snapshot: Snapshot, target: float) -> int:
    """The number of lists to probe if the caller of a search names neither a number nor a recall.

    A tuned index probes at least the share of its lists that was chosen, even where its own curve ends earlier.

    Args:
        target: the recall to aim at where the index was not tuned.
    """
    if snapshot.tuned is None:
        return choose_nprobe(snapshot, target)
    chosen, of = snapshot.tuned.nprobe, snapshot.tuned.parameters.lists
    share = min(snapshot.nlist, -(-chosen * snapshot.nlist // of))
    return max(share, choose_nprobe(snapshot, snapshot.tuned.aim))


def choose_nprobe(snapshot: Snapshot, recall: float) -> int:
    """The fewest lists that reached `recall` when it was measured.

    If no number of lists reached it, the fewest that reached the highest measured recall; if nothing was measured, all
    lists.

    Raises:
        InputError: `recall` is not between 0 and 1.
    """
    if not 0 < recall <= 1:
        raise InputError(f"recall is above 0 and at most 1, not {recall}")
    return probed(snapshot.recall, recall)[0] if snapshot.recall else snapshot.nlist


def probed(curve: Sequence[tuple[int, float]], recall: float) -> tuple[int, float]:
    """The first point (lists, recall@10) of an ascending measured curve that reaches `recall`.

    If there is none, the first point that reaches the highest recall of the curve.
    """
    wanted = min(recall, curve[-1][1])
    return next(point for point in curve if point[1] >= wanted)
