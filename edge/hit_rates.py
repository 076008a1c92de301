"""The hit rate of the unluckiest query of a batch (VectorLiteRAG, section IV-A2)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edge.errors import InputError

Floats = npt.NDArray[np.float64]

_GRID = 512

_SHARPEST = 1e6
"""Concentration (a + b) beyond which hit rates are as good as equal."""

_TERMS = 5000
"""The fraction needs about the square root of the concentration."""


def tail_hit_rate(mean: float, variance: float, batch: int) -> float:
    """Expected smallest hit rate in a batch of queries whose hit rates are Beta distributed (formula 2).

    The integral of B x f(x) (1 - F(x))^(B-1) over [0, 1] is, by parts, that of (1 - F(x))^B, which has no poles.

    Raises:
        InputError: the mean is not in [0, 1], the variance is negative, or the batch is empty.
    """
    if not 0 <= mean <= 1 or variance < 0 or batch < 1:
        raise InputError(f"no hit rates have mean {mean} and variance {variance} in a batch of {batch}")
    if variance == 0 or mean in (0.0, 1.0):
        return mean
    if variance >= mean * (1 - mean):  # nothing but zeros and ones
        return mean**batch
    concentration = min(mean * (1 - mean) / variance - 1, _SHARPEST)
    # Clustered towards both ends, where a Beta distribution can be as steep as it likes.
    angle = (np.arange(_GRID) + 0.5) * (np.pi / _GRID)
    x = (1 - np.cos(angle)) / 2
    survival = 1 - incomplete_beta(mean * concentration, (1 - mean) * concentration, x)
    return float(np.sum(np.clip(survival, 0, 1) ** batch * np.sin(angle)) * (np.pi / (2 * _GRID)))


def incomplete_beta(a: float, b: float, x: Floats) -> Floats:
    """The regularised incomplete beta function I_x(a, b), the cumulative Beta distribution, for x in [0, 1] [n].

    By Lentz's continued fraction (Press et al., Numerical Recipes, section 6.4), on the side where it converges fast.
    """
    x = np.asarray(x, np.float64)
    swap = x > (a + 1) / (a + b + 2)
    front = np.where(swap, 1 - x, x)
    first, second = np.where(swap, b, a), np.where(swap, a, b)
    with np.errstate(divide="ignore"):
        log_front = first * np.log(front) + second * np.log1p(-front)
    scale = np.exp(log_front + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / first
    value = scale * _fraction(first, second, front)
    result: Floats = np.clip(np.where(swap, 1 - value, value), 0.0, 1.0)
    return result


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    tiny = 1e-300
    c = np.ones_like(x)
    d = 1 / _away(1 - (a + b) * x / (a + 1), tiny)
    result: Floats = d.copy()
    for m in range(1, _TERMS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + numerator * d, tiny)
            c = _away(1 + numerator / c, tiny)
            result *= d * c
        if np.all(np.abs(d * c - 1) < 1e-12):
            break
    return result


def _away(value: Floats, tiny: float) -> Floats:
    far: Floats = np.where(np.abs(value) < tiny, tiny, value)
    return far
