"""`ComputedReplay`: replays recorded answers while llama.cpp computes as many tokens, so that the processor is busy."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

from making.random_gguf import made_model
from making.recording import Speed
from making.replay import ReplayGenerator

from edge.budget import MemoryBudget
from edge.runtimes.base import physical_cores
from edge.runtimes.generation.gguf_file import GGUFFile
from edge.runtimes.generation.llama_context import ContextShape, LlamaContext
from edge.runtimes.generation.llama_library import llama_library
from edge.runtimes.generation.llama_model import LlamaModel

_CONTEXT, _BATCH = 4096, 512
_FIRST = 300
"""A token of every vocabulary. Which tokens are computed does not change the time."""

_NO_PAUSE = Speed(float("inf"), float("inf"))


def computing(shape: str | None, work_dir: Path) -> dict[str, Any]:
    """The keys of a worker's task that let it compute with a random model of a shape in `SHAPES`; none without one."""
    if shape is None:
        return {}
    return {"computes": str(made_model(work_dir, shape)), "model_threads": physical_cores()}


def pace(shape: str | None, prefill: float, decode: float) -> dict[str, Any]:
    """The conditions of a replay: its speeds, or the model that computes."""
    if shape is None:
        return {"prefill": prefill, "decode": decode, "pace": f"at {prefill:.0f} and {decode:.0f} tokens/s"}
    return {"computes": shape, "pace": f"while llama.cpp computes each token with the random model {shape}"}


class ComputedReplay(ReplayGenerator):
    """Gives recorded answers. A token comes when the model has computed it, and the first one when it has also read a
    prompt of the recorded length."""

    def __init__(self, path: str | Path, model: str | Path, budget: MemoryBudget, *, threads: int) -> None:
        """Loads the model.

        Raises:
            ModelError: the recording or the model cannot be used.
            BudgetExceeded: the model does not fit.
        """
        super().__init__(path, speed=_NO_PAUSE)
        file = GGUFFile.open(model)
        with budget.charge("language model"):
            self._model = LlamaModel(llama_library(), file, load="read")
            self._context = LlamaContext(self._model, ContextShape(_CONTEXT, _BATCH, "f16", threads))
        weakref.finalize(self, _close, self._context, self._model)

    def _next_token(self, prompt_tokens: int, cancel: threading.Event) -> bool:
        if prompt_tokens:
            self._context.truncate(0)
            prompt = [_FIRST] * min(prompt_tokens, _CONTEXT // 2)
            self._context.append(prompt, cancelled=cancel.is_set, logits=True)
        if not cancel.is_set():
            self._context.append([_FIRST], logits=True)
        return cancel.is_set()


def _close(context: LlamaContext, model: LlamaModel) -> None:
    context.close()
    model.close()
