"""The streams of a GPU, and a stand-in where torch has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from edge.errors import EdgeError
from edge.streams import Event, Stream


class Streams(Protocol):
    """Makes the streams of one device."""

    def open(self, name: str) -> Stream:
        """A further stream."""


@dataclass(frozen=True, slots=True)
class _CudaEvent:
    """A `torch.cuda.Event`."""

    event: Any

    @property
    def done(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()


class _CudaStream:
    """A `torch.cuda.Stream`."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._stream = torch.cuda.Stream(device)

    def run(self, work: Callable[[], object]) -> None:
        try:
            with self._torch.cuda.stream(self._stream), self._torch.inference_mode():
                work()
        except self._torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
            raise EdgeError(
                f"torch needs more device memory than the ledger knows of; raise the limit: {reason}"
            ) from error

    def record(self) -> Event:
        # A thread that waits for the event sleeps and leaves the core to others.
        event = self._torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return _CudaEvent(event)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self._stream.wait_event(event.event)

    def synchronize(self) -> None:
        self._stream.synchronize()


@dataclass(frozen=True, slots=True)
class CudaStreams:
    """The streams of one GPU."""

    torch: Any
    device: Any

    def open(self, name: str) -> Stream:
        return _CudaStream(self.torch, self.device)


class _Past:
    """An event of a stream that does everything at once."""

    done = True

    def wait(self) -> None:
        """It is past."""


class _DirectStream:
    """Does its work in the calling thread."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def run(self, work: Callable[[], object]) -> None:
        with self._torch.inference_mode():
            work()

    def record(self) -> Event:
        return _Past()

    def wait(self, event: Event) -> None:
        event.wait()

    def synchronize(self) -> None:
        """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class DirectStreams:
    """For torch's CPU device, which has no streams."""

    torch: Any

    def open(self, name: str) -> Stream:
        return _DirectStream(self.torch)
