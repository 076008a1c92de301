"""Opens a generator from one word that gives its kind and place."""

from __future__ import annotations

import os
from pathlib import Path

from edge.budget import MemoryBudget, OperationStage
from edge.config import Config
from edge.errors import ConfigError, EdgeError
from edge.models.gguf_file import GGUFFile
from edge.models.registry import find_generator
from edge.runtimes.generation.base import Generator
from edge.runtimes.generation.chat_template import USUAL_NBYTES
from edge.runtimes.generation.extractive import ExtractiveGenerator, Score
from edge.trace import Trace


def open_generator(
    spec: str | Path,
    budget: MemoryBudget,
    config: Config,
    *,
    score: Score | None = None,
    serving: bool = False,
    trace: Trace | None = None,
) -> Generator:
    """Opens a generator in `budget`: a GGUF file or known name, an `http://` or `https://` address (`#model` at its end
    if the server has several), or `extractive` (also if empty), for which `score` judges sentences. `serving`: several
    people ask it."""
    text = str(spec)
    if text in ("", ExtractiveGenerator.name):
        if score is None:
            raise ConfigError("extractive answers need something that scores sentences, such as a reranker")
        return ExtractiveGenerator(score)
    if text.startswith(("http://", "https://")):
        from edge.runtimes.generation.openai_http import DEFAULT_CONTEXT, OpenAIGenerator

        url, _, model = text.partition("#")
        return OpenAIGenerator(
            url, model=model, key=config.llm_key, remote=config.llm_remote, context=config.context or DEFAULT_CONTEXT
        )
    from edge.runtimes.generation.llama_cpp import LlamaGenerator
    from edge.runtimes.generation.llama_memory import GpuLayers

    return LlamaGenerator(
        find_generator(spec, config.models_dir or None),
        budget,
        cache=config.scratch_path,
        context=config.context,
        threads=config.llm_threads or config.threads,
        answers=config.answers,
        shared=None if serving and config.generation == "auto" else config.generation == "shared",
        gpu_layers=GpuLayers(config.gpu_layers, config.opened_device),
        trace=trace,
    )


def generator_stages(spec: str | os.PathLike[str], config: Config) -> tuple[OperationStage, ...]:
    """The memory that a generator in this process needs. A missing or damaged file is reported when it is opened."""
    from edge.runtimes.generation.llama_memory import least_nbytes

    text = os.fspath(spec)
    if text in ("", ExtractiveGenerator.name) or text.startswith(("http://", "https://")):
        return ()
    try:
        file = GGUFFile.open(find_generator(text, config.models_dir or None))
    except EdgeError:
        return ()
    needed = least_nbytes(file, config.context) + USUAL_NBYTES
    return (OperationStage(f"the language model {file.path.name}", own=needed, libraries=("llama_cpp",)),)
