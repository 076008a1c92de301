"""The input of training steps: lists are drawn, tokenized and cut into chunks, optionally in worker processes."""

from __future__ import annotations

import multiprocessing
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from .lists import TrainingList
from .model import batches, padded

_AHEAD = 3
"""Number of steps that are prepared in advance per worker."""

Chunk = tuple[Tensor, Tensor, Tensor]


class Source(Protocol):
    """A source of lists. The n-th list of a run is always the same list."""

    def draw(self, number: int) -> TrainingList: ...


@dataclass(frozen=True)
class Step:
    """All pairs of one step in chunks of similar length.

    Attributes:
        lists: number of lists in the step.
        width: number of passages in each list; the positive comes first.
        chunks: ids, mask and types of each chunk, sequences x tokens.
        places: for each row of the chunks the number of its pair, counted list by list.
        teacher: the retrievers' scores, lists x width.
        trust: the teacher's weight for each list.
        tokens: number of tokens of all pairs together, without padding.
    """

    lists: int
    width: int
    chunks: list[Chunk]
    places: list[int]
    teacher: Tensor
    trust: Tensor
    tokens: int


@dataclass(frozen=True)
class _Plain:
    """A step as plain arrays. Between processes each tensor would be sent as a shared file of its own."""

    lists: int
    width: int
    chunks: list[list[npt.NDArray[np.int32]]]
    places: list[int]
    teacher: npt.NDArray[np.float32]
    trust: npt.NDArray[np.float32]
    tokens: int


def prepared(source: Source, tokenizer: Tokenizer, number: int, lists: int, batch_tokens: int) -> Step:
    """The ``number``-th step. Every list is cut to the length of the step's shortest list."""
    drawn = [source.draw(n) for n in range(number * lists, (number + 1) * lists)]
    width = min(len(row.passages) for row in drawn)
    encoded = tokenizer.encode_batch([(row.query, passage) for row in drawn for passage in row.passages[:width]])
    groups = batches(encoded, batch_tokens)
    return Step(
        lists,
        width,
        [padded([encoded[n] for n in group]) for group in groups],
        [n for group in groups for n in group],
        torch.tensor([row.teacher[:width] for row in drawn]),
        torch.tensor([row.trust for row in drawn]),
        sum(len(e.ids) for e in encoded),
    )


class Feed:
    """The steps in order. With workers, forked processes prepare them in advance.

    Raises:
        ValueError: ``workers`` is not 0 on a system that cannot fork processes (Windows).
    """

    def __init__(self, source: Source, tokenizer: Tokenizer, lists: int, batch_tokens: int, workers: int = 0) -> None:
        if workers and "fork" not in multiprocessing.get_all_start_methods():
            raise ValueError("workers need a system that forks processes: train with --workers 0")
        self._work = (source, tokenizer, lists, batch_tokens)
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: deque[tuple[int, Future[_Plain]]] = deque()

    def step(self, number: int) -> Step:
        """The ``number``-th step of the run.

        Raises:
            ValueError: with workers, the steps are not requested in order.
        """
        if not self._workers:
            source, tokenizer, lists, batch_tokens = self._work
            return prepared(source, tokenizer, number, lists, batch_tokens)
        if self._pool is None:
            # A forked process shares the memory of the list pools with this process.
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(self._workers, context, initializer=_begin, initargs=self._work)
        first = self._waiting[-1][0] + 1 if self._waiting else number
        for wanted in range(first, number + _AHEAD * self._workers):
            self._waiting.append((wanted, self._pool.submit(_prepare, wanted)))
        found, future = self._waiting.popleft()
        if found != number:
            raise ValueError(f"step {number} was asked for, but step {found} comes next")
        return _tensors(future.result())

    def close(self) -> None:
        """End the workers, and drop the steps that they have prepared."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
            self._waiting.clear()


_inherited: dict[str, Any] = {}
"""The arguments of `prepared` in a worker process."""


def _begin(source: Source, tokenizer: Tokenizer, lists: int, batch_tokens: int) -> None:
    torch.set_num_threads(1)
    _inherited.update(source=source, tokenizer=tokenizer, lists=lists, batch_tokens=batch_tokens)


def _prepare(number: int) -> _Plain:
    step = prepared(number=number, **_inherited)
    chunks = [[part.numpy().astype(np.int32) for part in chunk] for chunk in step.chunks]
    return _Plain(step.lists, step.width, chunks, step.places, step.teacher.numpy(), step.trust.numpy(), step.tokens)


def _tensors(plain: _Plain) -> Step:
    chunks: list[Chunk] = []
    for chunk in plain.chunks:
        ids, mask, types = (torch.from_numpy(part).long() for part in chunk)
        chunks.append((ids, mask, types))
    teacher, trust = torch.from_numpy(plain.teacher), torch.from_numpy(plain.trust)
    return Step(plain.lists, plain.width, chunks, plain.places, teacher, trust, plain.tokens)
