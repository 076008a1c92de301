"""Hidden states in a GPU's memory, and the vectors of sequences that come back from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.runtimes.base import StatesElsewhere
from edge.streaming.hidden_states import HiddenStates, StatesShape, TokenChunk

_SHADER = Path(__file__).with_name("layer.wgsl")


class GpuVectors:
    """Vectors on their way from the GPU. `np.asarray` waits for them."""

    def __init__(self, states: GpuStates, landing: Any, shape: tuple[int, int]) -> None:
        self._states = states
        self._landing = landing
        self._shape = shape
        self._found: npt.NDArray[np.float32] | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if self._found is None:
            count, width = self._shape
            found = self._states.card.read(self._landing, 4 * count * width)
            self._found = found.view(np.float32).reshape(count, width)
            self._states.landed(self._landing)
        return np.array(self._found, dtype or np.float32)


class GpuRows(StatesElsewhere):
    """States [tokens, hidden] of a chunk, from row `first` of a buffer on."""

    def __init__(self, states: GpuStates, buffer: Any, first: int) -> None:
        self._states = states
        self.buffer = buffer
        self.first = first

    def __getitem__(self, rows: slice) -> GpuRows:
        return GpuRows(self._states, self.buffer, self.first + (rows.start or 0))

    def read(self, token: Literal["first", "last", "all"], lengths: npt.NDArray[np.int32]) -> GpuVectors:
        ends = self.first + np.cumsum(lengths.astype(np.int64))
        rows = np.empty((len(lengths), 2), np.uint32)
        rows[:, 0] = ends - 1 if token == "last" else ends - lengths
        rows[:, 1] = lengths if token == "all" else 1
        return self._states.pool(self.buffer, rows)


class GpuStates(HiddenStates):
    """All hidden states on the GPU."""

    def __init__(self, shape: StatesShape, device: Any, chunk_tokens: int, finished: Any) -> None:
        """Makes states on a `WebGpuDevice` for chunks of at most `chunk_tokens`. A chunk in which pruning has left gaps
        is copied together; layer 0's input of a chunk is computed in host memory. `finished` is called when the states
        are closed."""
        super().__init__(shape)
        self.card = device.card
        self._row = self.width * self.dtype.itemsize
        self._finished = finished
        tokens = min(self.tokens, max(chunk_tokens, int(shape.lengths.max(initial=0))))
        sequences = len(shape.lengths)
        self._landings: list[Any] = []
        self._leases = [device.memory.reserve("hidden states", self.device_nbytes(self.tokens, tokens, shape))]
        try:
            host = tokens * self._row + 8 * sequences * self.width  # of one layer's vectors, there and here
            self._leases.append(device.host.reserve("states on their way", host))
            self._flat: Any = None
            self._flat = self.card.buffer(self.tokens * self._row)
            self._small = [self.card.buffer(4 * sequences * self.width), self.card.buffer(8 * sequences)]
        except BaseException:
            if self._flat is not None:
                self.card.destroy(self._flat)
            for lease in self._leases:
                lease.release()
            raise
        self._tokens = tokens
        self._copy: Any = None

    @staticmethod
    def device_nbytes(tokens: int, chunk: int, shape: StatesShape) -> int:
        """Bytes of the states on the GPU, of the copy of a chunk, and of the vectors that are read."""
        row = shape.width * np.dtype(shape.dtype).itemsize
        return (tokens + chunk) * row + len(shape.lengths) * (4 * shape.width + 8) + 64

    def room(self, chunk: TokenChunk) -> npt.NDArray[Any]:
        """Host memory for layer 0's input of a chunk."""
        return np.empty((chunk.tokens, self.width), self.dtype)

    def stream(self, chunks: Sequence[TokenChunk]) -> Iterator[tuple[TokenChunk, Any]]:
        for chunk in chunks:
            runs = self._runs(chunk)
            if len(runs) == 1:
                yield chunk, GpuRows(self, self._flat, runs[0][0])
                continue
            if self._copy is None:
                self._copy = self.card.buffer(self._tokens * self._row)
            self._move(runs, outward=False)
            yield chunk, GpuRows(self, self._copy, 0)

    def store(self, chunk: TokenChunk, states: Any) -> None:
        runs = self._runs(chunk)
        if isinstance(states, GpuRows):
            if states.buffer is not self._flat:  # else they were changed in place
                self._move(runs, outward=True)
            return
        (first, _), *others = runs
        assert not others, "the chunks of the first layer have no gaps"
        self.card.write(self._flat, first * self._row, states)

    def pool(self, buffer: Any, rows: npt.NDArray[np.uint32]) -> GpuVectors:
        """Starts computing means of rows of a buffer (first row and number of rows of each mean, [n, 2]) and sending
        them to the host."""
        card, (vectors, bounds), nbytes = self.card, self._small, 4 * len(rows) * self.width
        landing = card.landing(nbytes)
        self._landings.append(landing)
        with card.lock, card.answering():
            card.write(bounds, 0, rows)
            pipeline = card.pipeline(_SHADER, "pool", K=self.width, HALF=self.dtype == np.float16)
            encoder = card.device.create_command_encoder()
            work = encoder.begin_compute_pass()
            work.set_pipeline(pipeline)
            work.set_bind_group(0, card.bind(pipeline, {2: buffer, 4: vectors, 8: bounds}))
            work.dispatch_workgroups(len(rows))
            work.end()
            encoder.copy_buffer_to_buffer(vectors, 0, landing, 0, nbytes)
            card.device.queue.submit([encoder.finish()])
        return GpuVectors(self, landing, (len(rows), self.width))

    def landed(self, landing: Any) -> None:
        """Frees what vectors have come through."""
        self._landings.remove(landing)
        landing.destroy()

    def close(self) -> None:
        for landing in self._landings:
            landing.destroy()
        self._landings.clear()
        for buffer in (self._flat, self._copy, *self._small):
            if buffer is not None:
                self.card.destroy(buffer)
        self._flat = self._copy = None
        self._small = []
        self._finished()
        for lease in self._leases:
            lease.release()

    def _move(self, runs: list[tuple[int, int]], *, outward: bool) -> None:
        """Copies runs of rows (first row, number of rows) of all states to the contiguous copy, or back."""
        card, row, at = self.card, self._row, 0
        with card.lock, card.answering():
            encoder = card.device.create_command_encoder()
            for first, rows in runs:
                places = [(self._flat, first * row), (self._copy, at * row)]
                (source, begin), (into, start) = reversed(places) if outward else places
                encoder.copy_buffer_to_buffer(source, begin, into, start, rows * row)
                at += rows
            card.device.queue.submit([encoder.finish()])
