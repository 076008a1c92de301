"""The contract between the scheduling core and what executes a transformer layer.

A `Runtime` turns a `LayerSpec` into one `LayerKernel`: a compiled layer function whose weights are arguments, so that
one kernel serves every layer of a model and streaming weights costs no recompilation. Runtimes are found through the
entry-point group `edge.runtimes`; a third party's runtime is one class in a pip-installed package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.models.spec import LayerSpec
from edge.plugins import load, names

Hidden = npt.NDArray[Any]
HiddenDtype = Literal["float32", "float16"]
Weights = Mapping[str, npt.NDArray[Any]]

AUTOMATIC = ("native", "onnx")
"""What "auto" chooses from, the fastest first. The last one refuses no layer."""


class LayerKernel(ABC):
    """One compiled layer. Sequences are packed: their tokens lie one after the other, without padding. The result of a
    sequence depends on nothing but its own tokens and the weights, not on what shares its chunk (beyond rounding of
    1e-6)."""

    spec: LayerSpec
    hidden_dtype: HiddenDtype

    def bind(self, weights: Weights) -> Weights:
        """Prepares a layer's weights once for the chunks that follow: copies them to where the kernel computes, for
        example. `run` and `run_prefix` take the result in place of the weights, until the next layer is bound. What it
        holds is part of `workspace`."""
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
            prefix: what `run_prefix` returned for this very layer: every sequence then attends to the prefix's
                tokens too, and its own positions start after them. Only for causal layers.

        Returns:
            [tokens, hidden] in `hidden_dtype`, owned by the caller.
        """

    @abstractmethod
    def run_prefix(self, states: Hidden, weights: Weights) -> tuple[Hidden, object]:
        """Advances a shared prefix, [tokens, hidden], through a causal layer.

        Returns:
            Its new hidden states, and its keys and values for `run` (opaque; `kv_heads * tokens * head_size * 2`
            fp32 values).

        Raises:
            CapabilityError: the layer is not causal.
        """

    @abstractmethod
    def workspace(self, tokens: int, longest: int, prefix: int = 0) -> int:
        """Upper bound on the bytes that `run` allocates beyond its arguments for a chunk of `tokens` whose longest
        sequence has `longest`, its result included."""


class Runtime(ABC):
    """Compiles layers for one execution library.

    Attributes:
        libraries: modules that it imports, and that stay when its kernels are gone.
        compiled_nbytes: what a compiled layer takes at most, besides its weights and its workspace.
    """

    name: str
    libraries: tuple[str, ...] = ()
    compiled_nbytes: int = 8 << 20

    def planned(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype) -> Callable[[int, int, int], int]:
        """An upper bound on `LayerKernel.workspace` of the kernel of such layers, with the same arguments, for plans
        made before it is compiled. A runtime that compiles at a cost overrides this."""
        return self.layer_kernel(spec, threads=threads, hidden_dtype=hidden_dtype).workspace

    def refusal(self, spec: LayerSpec) -> str | None:
        """Why this runtime cannot run such layers on this machine, or None where it can or where only
        `layer_kernel` finds out."""
        return None

    @abstractmethod
    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32") -> LayerKernel:
        """Compiles a layer.

        Args:
            threads: compute threads; 0 takes one per physical core this process may use.
            hidden_dtype: how hidden states are passed between layers.

        Raises:
            CapabilityError: the library is missing (the message has the pip line) or the layer kind is not supported.
        """


def runtime_for(name: str, spec: LayerSpec) -> Runtime:
    """The runtime called `name`, or for "auto" the fastest of `AUTOMATIC` that runs such layers here.

    Raises:
        CapabilityError: no such runtime.
    """
    if name != "auto":
        return load_runtime(name)
    offered = names("edge.runtimes")
    for candidate in AUTOMATIC[:-1]:
        if candidate in offered and (runtime := load_runtime(candidate)).refusal(spec) is None:
            return runtime
    return load_runtime(AUTOMATIC[-1])


def load_runtime(name: str) -> Runtime:
    """The runtime registered under `name` in the entry-point group `edge.runtimes`.

    Raises:
        CapabilityError: no such runtime; the message lists those there are.
    """
    runtime = load("edge.runtimes", name)()
    assert isinstance(runtime, Runtime)
    return runtime
