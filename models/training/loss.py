"""The loss of one batch of lists, for every layer's scores at once.

Listwise cross-entropy (Cao et al., "ListNet", ICML 2007) ranks, a small binary cross-entropy keeps the sigmoid
of a score readable as a probability, and the layers below the last one also follow the last one's own ranking
(self-distillation, Zhang et al., "Be Your Own Teacher", ICCV 2019), which is what lets a runtime prune early.
The retrievers' order of the unlabelled passages is distilled as well, against forgetting what the encoder knew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, softmax


@dataclass(frozen=True)
class LossConfig:
    """Weights: per layer (first layer first), of the binary part, of self-distillation against the labels."""

    layers: tuple[float, ...] = (0.1, 0.4, 0.8, 0.8, 0.4, 1.0)
    binary: float = 0.2
    imitation: float = 0.5
    teacher_sharpness: float = 1.5


def retention(scores: Tensor, positive: Tensor, teacher: Tensor, trust: Tensor, sharpness: float) -> Tensor:
    """Cross-entropy against the retrievers' order of the passages that are *not* labelled relevant.

    It keeps what the retrievers knew without arguing with the label. ``trust`` weighs each list; the mean is
    over all lists, so a batch of untrusted lists gives zero.
    """
    labelled = positive > 0
    wanted = softmax((teacher * sharpness).masked_fill(labelled, -1e4), dim=-1)
    given = log_softmax(scores.masked_fill(labelled, -1e4), dim=-1)
    return (trust * -(wanted * given.masked_fill(labelled, 0.0)).sum(-1)).mean()


def list_loss(
    logits: Tensor, positive: Tensor, teacher: Tensor, trust: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor]:
    """(loss, ranking part of each layer).

    ``logits``: layers x lists x candidates. ``positive``: lists x candidates, 1.0 where relevant.
    ``teacher``: the retrievers' standardised scores, same shape. ``trust``: of these, in [0, 1] per list.
    """
    if len(config.layers) != logits.shape[0]:
        raise ValueError(f"{len(config.layers)} layer weights for scores of {logits.shape[0]} layers")
    wanted = positive / positive.sum(-1, keepdim=True)
    final = logits[-1].detach()
    imitated, likely = softmax(final, dim=-1), torch.sigmoid(final)
    total = logits.new_zeros(())
    ranking = []
    for depth, weight in enumerate(config.layers):
        scores = logits[depth]
        given = log_softmax(scores, dim=-1)
        rank = -(wanted * given).sum(-1).mean()
        binary = binary_cross_entropy_with_logits(scores, positive)
        ranking.append(rank.detach())
        if depth < len(config.layers) - 1:
            share = config.imitation
            follow = -(imitated * given).sum(-1).mean()
            follow_binary = binary_cross_entropy_with_logits(scores, likely)
            rank = (1 - share) * rank + share * follow
            binary = (1 - share) * binary + share * follow_binary
        rank = rank + retention(scores, positive, teacher, trust, config.teacher_sharpness)
        total = total + weight * (rank + config.binary * binary)
    return total, torch.stack(ranking)
