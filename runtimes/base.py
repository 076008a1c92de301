"""The interface between the scheduling core and the runtimes, which execute transformer layers.

A `Runtime` turns a `LayerSpec` into one `LayerKernel`: a compiled layer function that takes the weights as arguments.
One kernel therefore serves every layer of a model, and streamed weights need no recompilation. Runtimes are found
through the entry-point group `edge.runtimes`. A third party's runtime is one class in a pip-installed package.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import psutil

from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import ConfigError
from edge.ivf.device import parse_device
from edge.link import Lane
from edge.models.spec import LayerSpec
from edge.plugins import load, names
from edge.streaming.memory_plan import Request, least
from edge.trace import Trace

if TYPE_CHECKING:
    from edge.runtimes.workplace import Workplace

Hidden = npt.NDArray[Any]
HiddenDtype = Literal["float32", "float16"]
Weights = Mapping[str, npt.NDArray[Any]]

AUTOMATIC = ("native", "onnx")
"""The runtimes that "auto" chooses from, the fastest first. The last one supports every layer."""


class StatesElsewhere(ABC):
    """Hidden states [tokens, hidden] outside host memory. Vectors are computed from them on their own device."""

    @abstractmethod
    def read(self, token: Literal["first", "last", "all"], lengths: npt.NDArray[np.int32]) -> Any:
        """The state of each sequence's first or last token, or the mean of all its tokens: [batch, hidden] fp32. The
        result becomes an array by `np.asarray`."""


class LayerKernel(ABC):
    """One compiled layer. Sequences are packed: their tokens lie one after the other, without padding. The result of a
    sequence depends on its own tokens and the weights only. Other sequences in the same chunk do not change it by more
    than rounding of 1e-6."""

    spec: LayerSpec
    hidden_dtype: HiddenDtype
    saturating_tokens: int | None = None
    """Number of tokens in a chunk beyond which a pass gets no faster, if it is known without a measurement."""

    def bind(self, weights: Weights) -> Weights:
        """Prepares a layer's weights once for all following chunks, for example with a copy to the memory of a GPU.
        `run` and `run_prefix` take the result in place of the weights, until the next layer is bound. The memory of the
        result is part of `workspace`."""
        return weights

    @abstractmethod
    def run(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> Hidden:
        """Advances a chunk of packed sequences through the layer.

        Args:
            states: [tokens, hidden] in `hidden_dtype`, C-contiguous, sequence after sequence; never written to.
            lengths: [batch] tokens of each sequence, at least 1, in that order; they sum to `tokens`.
            weights: every tensor of `spec.tensors()` by name; read only, and not kept after the call.
            prefix: the keys and values that `run_prefix` returned for this layer. With it every sequence attends to the
                prefix's tokens as well, and its own positions start after them. Only for causal layers.

        Returns:
            [tokens, hidden] in `hidden_dtype`, owned by the caller.
        """

    def advance(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> None:
        """Like `run`, but replaces the content of `states` with the result. A kernel that can write its result in place
        saves an array and a copy."""
        states[...] = self.run(states, lengths, weights, prefix)

    @abstractmethod
    def run_prefix(self, states: Hidden, weights: Weights) -> tuple[Hidden, object]:
        """Advances a shared prefix, [tokens, hidden], through a causal layer.

        Returns:
            The prefix's new hidden states, and its keys and values as an opaque object for `run`
            (`kv_heads * tokens * head_size * 2` fp32 values).

        Raises:
            CapabilityError: the layer is not causal.
        """

    @abstractmethod
    def workspace(self, tokens: int, longest: int, prefix: int = 0) -> int:
        """Upper bound on the bytes that `run` allocates, result included and arguments not included. The chunk has
        `tokens` tokens, and its longest sequence has `longest`."""


class Runtime(ABC):
    """Compiles layers for one execution library.

    Attributes:
        libraries: modules that the runtime imports. They stay in memory when its kernels are gone.
        compiled_nbytes: upper bound on the bytes of a compiled layer, without its weights and its workspace.
    """

    name: str
    libraries: tuple[str, ...] = ()
    compiled_nbytes: int = 8 << 20

    def planned(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype) -> Callable[[int, int, int], int]:
        """A function that bounds `LayerKernel.workspace` of such layers from above, with the same arguments. Plans use
        it before the kernel is compiled. A runtime with slow compilation overrides this method."""
        return self.layer_kernel(spec, threads=threads, hidden_dtype=hidden_dtype).workspace

    def workplace(self, budget: MemoryBudget, lane: Lane, trace: Trace) -> Workplace:
        """The memory in which this runtime's kernels find weights and states. The engine opens it before it calls
        `layer_kernel`, and closes it.

        Args:
            budget: the process's memory budget.
            lane: the lane that reads weights from the disk.

        Raises:
            CapabilityError: the device is missing.
            BudgetExceeded: the host memory that the place needs does not fit.
        """
        from edge.runtimes.workplace import HostPlace

        return HostPlace(budget, lane)

    def working_nbytes(self, one: Request) -> int:
        """Bytes of host memory that a pass over one longest sequence needs."""
        return least(one)

    def refusal(self, spec: LayerSpec) -> str | None:
        """The reason why this runtime cannot run such layers on this machine. None if it can, or if only `layer_kernel`
        finds out."""
        return None

    @abstractmethod
    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32") -> LayerKernel:
        """Compiles a layer.

        Args:
            threads: number of compute threads; 0 means one per physical core that this process may use.
            hidden_dtype: dtype of the hidden states between layers.

        Raises:
            CapabilityError: the library is missing (the message has the pip line) or the layer kind is not supported.
        """


def physical_cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def runtime_for(name: str, spec: LayerSpec) -> Runtime:
    """The runtime called `name`, or for "auto" the first of `AUTOMATIC` that runs such layers here.

    Raises:
        CapabilityError: there is no such runtime.
    """
    if name != "auto":
        return load_runtime(name)
    offered = names("edge.runtimes")
    for candidate in AUTOMATIC[:-1]:
        if candidate in offered and (runtime := load_runtime(candidate)).refusal(spec) is None:
            return runtime
    return load_runtime(AUTOMATIC[-1])


def chosen_runtime(config: Config) -> str:
    """The runtime of a configuration: the one it names, else that of its device if it runs layers, else `auto`."""
    opened = config.opened_device
    name, _ = parse_device(opened)
    return opened if config.runtime == "auto" and name and name in names("edge.runtimes") else config.runtime


def load_runtime(text: str) -> Runtime:
    """The runtime registered in the entry-point group `edge.runtimes`.

    Args:
        text: the runtime's name. The runtime of a device takes the device's options as well, as in `cuda:cap=2GB`.

    Raises:
        CapabilityError: there is no such runtime; the message lists the registered ones.
        ConfigError: the runtime has no such option.
    """
    name, options = parse_device(text)
    try:
        runtime = load("edge.runtimes", name)(**options)
    except TypeError as error:
        raise ConfigError(f"runtime {name} cannot be used with these options: {error}") from error
    assert isinstance(runtime, Runtime)
    return runtime
