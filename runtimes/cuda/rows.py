"""Hidden states on a device, and the transfer of vectors from them to the host."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.ivf.device import Event
from edge.runtimes.base import StatesElsewhere


class Readback:
    """Page-locked host memory for vectors from the device. It has room for all sequences of a pass twice, because the
    vectors of one layer are read before those of the second layer after it arrive."""

    def __init__(self, device: Any, budget: MemoryBudget, sequences: int, width: int) -> None:
        """
        Args:
            device: `edge.devices.cuda.device.CudaDevice`.

        Raises:
            BudgetExceeded: the memory does not fit.
        """
        self._rows = 2 * sequences
        self._width = width
        self._lease = budget.reserve("vectors of a pass", self.memory_needed(sequences, width))
        self._pinned = device.pinned(self._rows * width * 4)
        self._card = device.card
        self._next = 0

    @staticmethod
    def memory_needed(sequences: int, width: int) -> int:
        """Bytes of page-locked memory for `sequences` vectors of `width` numbers, twice."""
        return max(64 << 10, 2 * sequences * width * 4)

    def take(self, rows: int) -> tuple[Any, npt.NDArray[np.float32]]:
        """Memory for `rows` vectors, as an object for torch and as a numpy array [rows, width] float32."""
        if self._next + rows > self._rows:
            self._next = 0
        low, high = self._next * self._width * 4, (self._next + rows) * self._width * 4
        self._next += rows
        array = self._pinned.array[low:high].view(np.float32).reshape(rows, self._width)
        return self._card.torch.from_numpy(array), array

    def close(self) -> None:
        """Frees the memory. No transfer may be running."""
        self._pinned.close()
        self._lease.release()


class Arriving:
    """Vectors that are being transferred from the device. `np.asarray` waits for the transfer and returns them."""

    def __init__(self, values: npt.NDArray[np.float32], event: Event) -> None:
        self._values = values
        self._event = event

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        self._event.wait()
        return np.array(self._values, dtype or np.float32)


class DeviceRows(StatesElsewhere):
    """States [tokens, hidden] of packed sequences on a device.

    Attributes:
        tensor: the states.
    """

    def __init__(self, tensor: Any, card: Any, readback: Readback | None = None) -> None:
        self.tensor = tensor
        self._card = card
        self._readback = readback

    @classmethod
    def of(cls, states: npt.NDArray[Any], card: Any) -> DeviceRows:
        """A copy of states in host memory on the device."""
        source = card.torch.from_numpy(np.array(states))
        tensor = card.allocate(*states.shape, dtype=source.dtype)
        card.compute.run(lambda: tensor.copy_(source))
        return cls(tensor, card)

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: slice) -> DeviceRows:
        return DeviceRows(self.tensor[rows], self._card, self._readback)

    def read(self, token: Literal["first", "last", "all"], lengths: npt.NDArray[np.int32]) -> Arriving:
        assert self._readback is not None, "states that nobody reads have no way back"
        into, values = self._readback.take(len(lengths))
        torch, device, tensor, own = self._card.torch, self._card.device, self.tensor, lengths.astype(np.int64)

        def read() -> None:
            ends = np.cumsum(own)
            if token == "all":
                counts = torch.from_numpy(own).to(device, non_blocking=True)
                vectors = torch.segment_reduce(tensor.to(torch.float32), "mean", lengths=counts, unsafe=True)
            else:
                at = torch.from_numpy(ends - own if token == "first" else ends - 1).to(device, non_blocking=True)
                vectors = tensor[at].to(torch.float32)
            into.copy_(vectors, non_blocking=True)

        self._card.compute.run(read)
        return Arriving(values, self._card.compute.record())
