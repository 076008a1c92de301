"""`LlamaSampler`: chooses the next token with llama.cpp's own samplers, and returns its probability."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.runtimes.generation.base import Sampling
from edge.runtimes.generation.llama_context import LlamaContext


class LlamaSampler:
    """The sampler for one answer. Two samplers with the same settings make the same choices."""

    def __init__(self, api: Any, sampling: Sampling) -> None:
        self._api = api
        self._chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        for sampler in self._samplers(sampling):
            api.llama_sampler_chain_add(self._chain, sampler)  # the chain owns it now

    def choose(self, context: LlamaContext) -> tuple[int, float]:
        """The next token after the context, and its log-probability under the model itself."""
        token = int(self._api.llama_sampler_sample(self._chain, context.pointer, -1))
        return token, log_probability(context.logits(), token)

    def close(self) -> None:
        """Frees the samplers. A second call does nothing."""
        chain, self._chain = self._chain, None
        if chain:
            self._api.llama_sampler_free(chain)

    def _samplers(self, sampling: Sampling) -> list[Any]:
        api = self._api
        if sampling.temperature == 0:
            return [api.llama_sampler_init_greedy()]
        chain = []
        if sampling.top_p < 1:
            chain.append(api.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p > 0:
            chain.append(api.llama_sampler_init_min_p(sampling.min_p, 1))
        return [*chain, api.llama_sampler_init_temp(sampling.temperature), api.llama_sampler_init_dist(sampling.seed)]


def log_probability(logits: npt.NDArray[np.float32], token: int) -> float:
    """Logarithm of the softmax of `logits` [vocabulary] at `token`."""
    highest = logits.max()
    return float(logits[token] - highest - np.log(np.exp(logits - highest).sum(dtype=np.float64)))
