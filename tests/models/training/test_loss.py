"""The loss, and the precision of training."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from edge.models.training import precision  # noqa: E402
from edge.models.training.loss import LossConfig, list_loss  # noqa: E402

CONFIG = LossConfig(layers=(0.3, 1.0), binary=0.2, imitation=0.4, teacher_sharpness=1.5)


def case(lists: int = 5, width: int = 4, seed: int = 0):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, lists, width, generator=generator)
    teacher = torch.randn(lists, width, generator=generator)
    positive = torch.zeros(lists, width)
    positive[:, 0] = 1.0
    return logits, positive, teacher, torch.linspace(0.0, 0.5, lists)


def soft(values: list[float]) -> list[float]:
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def entropy(wanted: float, given: float) -> float:
    return -(wanted * math.log(given) + (1 - wanted) * math.log(1 - given))


def naive(logits, teacher, trust) -> float:  # type: ignore[no-untyped-def]
    depth, lists, width = logits.shape
    total = 0.0
    for layer in range(depth):
        rank = binary = kept = 0.0
        for n in range(lists):
            scores, final = logits[layer, n].tolist(), logits[-1, n].tolist()
            own, last = soft(scores), soft(final)
            share = CONFIG.imitation if layer < depth - 1 else 0.0
            rank += -(1 - share) * math.log(own[0]) - share * sum(
                t * math.log(s) for t, s in zip(last, own, strict=True)
            )
            for k in range(width):
                label, given = float(k == 0), sigmoid(scores[k])
                binary += (1 - share) * entropy(label, given) + share * entropy(sigmoid(final[k]), given)
            wanted = soft([CONFIG.teacher_sharpness * v for v in teacher[n].tolist()[1:]])
            others = soft(scores[1:])
            kept += -float(trust[n]) * sum(w * math.log(o) for w, o in zip(wanted, others, strict=True))
        weight = CONFIG.layers[layer]
        total += weight * (rank / lists + kept / lists + CONFIG.binary * binary / (lists * width))
    return total


def test_loss_equals_the_sum_written_out() -> None:
    logits, positive, teacher, trust = case()
    loss, ranking = list_loss(logits, positive, teacher, trust, CONFIG)
    assert float(loss) == pytest.approx(naive(logits, teacher, trust), rel=1e-5)
    assert ranking.shape == (2,)
    with pytest.raises(ValueError, match="3 layer weights for scores of 2 layers"):
        list_loss(logits, positive, teacher, trust, LossConfig(layers=(1.0, 1.0, 1.0)))


def test_the_last_layer_does_not_learn_from_the_layers_below() -> None:
    logits, positive, teacher, trust = case()
    logits.requires_grad_()
    only_below = LossConfig(layers=(1.0, 0.0), binary=0.2, imitation=1.0)
    list_loss(logits, positive, teacher, trust, only_below)[0].backward()
    assert float(logits.grad[1].abs().sum()) == 0.0
    assert float(logits.grad[0].abs().sum()) > 0.0


@pytest.mark.parametrize("faster", [torch.bfloat16, torch.float32])
def test_auto_takes_the_faster_one(faster: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    precision.bfloat16_is_faster.cache_clear()
    monkeypatch.setattr(precision, "_seconds", lambda kind: 1.0 if kind == faster else 100.0)
    assert precision.in_bfloat16() == (faster == torch.bfloat16)
    precision.bfloat16_is_faster.cache_clear()
