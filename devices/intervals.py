"""Scores of rows as intervals that contain the host's scores, for devices that sum in another order.

A device gives each row an upper bound. Rows that may be among the best come back with their codes, and the host's
scanner scores them, so results equal the host's to the last bit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.devices.faiss_codec import turn_of
from edge.errors import CapabilityError
from edge.ivf.base import Bytes, CodecSpec, Scanner, Vectors
from edge.ivf.device import SearchRequest

SQ_LEVELS = 255.0
PQ_CENTROIDS = 256

_BLOCK = 64
"""A device sums blocks of a score in any order, with at most so many partial sums beside its components."""

_ROUNDING = 2.0**-23
"""Twice the rounding of one float32 operation, for the device's sum and the host's."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a device multiplies rows with or looks up, [queries, n], what it adds to each score [queries], and a bound
    of the error, [queries]; for flat per unit of a vector's length."""

    values: Vectors
    base: Vectors
    margin: Vectors


def prepared(device: str, spec: CodecSpec, queries: Vectors) -> Prepared:
    dim = spec.dim
    own = np.ascontiguousarray(queries, np.float32)
    state = np.frombuffer(spec.state, "<f4").astype(np.float32)
    base = np.zeros(len(own))
    if spec.name == "flat":
        values = np.pad(own, ((0, 0), (0, -dim % 4)))
        margin = np.linalg.norm(own, axis=1)
    elif spec.name == "sq8":
        low, step = state[:dim].astype(np.float64), state[dim:].astype(np.float64) / SQ_LEVELS
        start = low + step / 2  # a code represents the middle of its step
        values = np.pad((own * step).astype(np.float32), ((0, 0), (0, -dim % 16)))
        base = own @ start
        margin = np.abs(own) @ (np.abs(start) + SQ_LEVELS * np.abs(step))
    elif spec.has_tables:
        turn = turn_of(spec)
        if turn is not None:
            own = np.stack([turn @ query for query in own])
            state = state[dim * dim :]
        parts = spec.code_size
        table = state.reshape(parts, PQ_CENTROIDS, dim // parts)
        cut = own.reshape(len(own), parts, -1)
        values = np.einsum("pcd,qpd->qpc", table, cut).reshape(len(own), -1)
        margin = np.einsum("pd,qpd->q", np.abs(table).max(axis=1), np.abs(cut))
    else:
        raise CapabilityError(f"device {device} scans lists of the codecs flat, sq8, pq and opq, not {spec.name}")
    bound = margin * (dim + _BLOCK) * _ROUNDING + math.ulp(0.0)
    return Prepared(np.ascontiguousarray(values, np.float32), base.astype(np.float32), bound.astype(np.float32))


def offer(request: SearchRequest, query: int, codes: Bytes, labels: npt.NDArray[np.int64]) -> None:
    """Scores rows of a query, codes [n, code_size], as the host does, and merges them with the best ones so far."""
    seen = request.seen
    if seen.prepared is None:
        seen.prepared = {}
    scanners: dict[int, Scanner] = seen.prepared
    scanner = scanners.get(query)
    if scanner is None:
        scanner = scanners[query] = request.codec.scanner()
        scanner.set_query(request.queries[query])
    order = np.argsort(labels)
    scanner.scan(np.ascontiguousarray(codes[order]), labels[order], seen.scores[query], seen.labels[query])
