"""Opens an engine for rerankers and embedders: from the configuration, in a new memory budget or a shared one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.errors import InputError
from edge.models.packed import Kind, PackedModel
from edge.models.registry import resolve
from edge.resident import anonymous_resident
from edge.runtimes.base import chosen_runtime, runtime_for
from edge.runtimes.engine import MOST_TOKENS, Engine
from edge.runtimes.needs import engine_needs, too_small
from edge.runtimes.tuning import Tuning
from edge.trace import Trace


@contextmanager
def opened_model(chosen: str | Path | PackedModel, kind: Kind, config: Config) -> Iterator[PackedModel]:
    """The model by name or path, or the open model that was passed. A model that was opened here is closed again if the
    body of the `with` statement fails.

    Raises:
        ModelError: the model is missing, broken or of another kind.
    """
    if isinstance(chosen, PackedModel):
        yield chosen
        return
    model = resolve(chosen, kind=kind, directory=config.models_dir or None)
    try:
        yield model
    except BaseException:
        model.close()
        raise


def open_engine(
    model: PackedModel,
    config: Config,
    *,
    memory: str | int | None,
    budget: MemoryBudget | None,
    max_tokens: int | None,
    trace: Trace | None,
    tuning: Tuning | None,
) -> Engine:
    """Opens an engine in `budget`. Without one, a new budget is made with the limit `memory`, or the configuration's.

    Raises:
        BudgetExceeded: the limit is too small; the error names the smallest that works.
        ConfigError: `memory` is no size.
        InputError: `max_tokens` is less than 1.
    """
    if max_tokens is not None and (not isinstance(max_tokens, int | np.integer) or max_tokens < 1):
        raise InputError(f"the longest sequence is a whole number of at least 1 token, not {max_tokens!r}")
    if budget is None:
        limit = config.memory if memory is None else parse_size(memory)
        tokens = min(max_tokens or MOST_TOKENS, model.spec.max_tokens)
        needs = engine_needs(
            model, runtime_for(chosen_runtime(config), model.spec.layer), threads=config.threads, max_tokens=tokens
        )
        held = anonymous_resident()
        if held + needs.nbytes > limit:
            raise too_small(model, limit, held + needs.nbytes)
        budget = MemoryBudget(limit)
    return Engine(
        model,
        budget,
        runtime=chosen_runtime(config),
        threads=config.threads,
        max_tokens=max_tokens,
        scratch=config.scratch_path,
        trace=trace,
        tuning=tuning,
    )
