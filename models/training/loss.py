"""The loss of one batch of lists, for every layer's scores at once.

The main part is listwise cross-entropy (Cao et al., "ListNet", ICML 2007). A small binary cross-entropy keeps the
sigmoid of a score usable as a probability. The layers below the last one also learn the ranking of the last layer
(self-distillation, Zhang et al., "Be Your Own Teacher", ICCV 2019), so that a runtime can prune early. The retrievers'
order of the unlabelled passages is distilled as well, so that the encoder does not forget its earlier knowledge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, softmax


@dataclass(frozen=True)
class LossConfig:
    """The weights of the loss.

    Attributes:
        layers: weight of each layer, the first layer first.
        binary: weight of the binary cross-entropy.
        imitation: share of self-distillation; the labels have the rest.
        teacher_sharpness: factor for the retrievers' scores before their softmax.
    """

    layers: tuple[float, ...] = (0.1, 0.4, 0.8, 0.8, 0.4, 1.0)
    binary: float = 0.2
    imitation: float = 0.5
    teacher_sharpness: float = 1.5


def retention(scores: Tensor, positive: Tensor, teacher: Tensor, trust: Tensor, sharpness: float) -> Tensor:
    """Cross-entropy against the retrievers' order of the passages that are *not* labelled relevant.

    It teaches the retrievers' ranking without contradicting the label. ``trust`` is the weight of each list. The mean
    is over all lists, so a batch of lists with weight 0 gives zero.
    """
    labelled = positive > 0
    wanted = softmax((teacher * sharpness).masked_fill(labelled, -1e4), dim=-1)
    given = log_softmax(scores.masked_fill(labelled, -1e4), dim=-1)
    return (trust * -(wanted * given.masked_fill(labelled, 0.0)).sum(-1)).mean()


def list_loss(
    logits: Tensor, positive: Tensor, teacher: Tensor, trust: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor]:
    """The loss, and the ranking part of each layer.

    ``logits``: layers x lists x candidates. ``positive``: lists x candidates, 1.0 where relevant. ``teacher``: the
    retrievers' standardized scores, lists x candidates. ``trust``: weight of the teacher in [0, 1], one per list.
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
