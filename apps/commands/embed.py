"""`edge embed`: turns texts into vectors."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from edge.apps.commands.texts import InputText, read_texts
from edge.apps.options import (
    OutputFile,
    Report,
    Setup,
    print_stats,
    report_options,
    setup_options,
    text_options,
)
from edge.apps.serve.background import connected, own_options
from edge.apps.serve.connection import MODELS, Unserved
from edge.budget import OperationPlan
from edge.config import Config
from edge.errors import as_storage_error
from edge.files.output_file import open_output
from edge.resident import ResidentWatch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from edge.trace import Trace


@click.command()
@click.option("--model", help="Embedder: a known name or the path of a packed model.")
@click.option("--query", is_flag=True, help="The texts are questions (models trained with an instruction get it).")
@click.option("--out", type=OutputFile(), help="Write a .npy array [n, dim] instead.")
@text_options
@setup_options(device=True, server=True)
@report_options
def embed(
    docs: str,
    model: str | None,
    query: bool,
    out: Path | None,
    max_tokens: int | None,
    setup: Setup,
    report: Report,
) -> None:
    """Embed texts; prints one JSON array per text, in the order of the input."""
    config = setup.config(embedder=model)

    def planned(texts: Sequence[str]) -> OperationPlan:
        from edge.apps.store.planning import texts_plan

        return texts_plan("embedding", "embedder", config, texts, max_tokens)

    documents = read_texts(docs, config.memory, ["edge.runtimes.embedder"], planned)
    recorder: Trace | None = None
    try:
        alone = own_options(memory=setup.memory, threads=setup.threads, trace=report.trace, max_tokens=max_tokens)
        vectors, figures = _served(documents, query, config, alone)
    except Unserved as reason:
        vectors, figures, recorder = _embedded(documents, query, config, max_tokens, report.trace)
        figures["server"] = f"not used: {reason}"
    try:
        if report.trace is not None and recorder is not None:
            recorder.write(report.trace)
    finally:  # vectors are not lost if the trace cannot be written
        if out is not None:
            _save(vectors, out)
        elif report.as_json:
            click.echo(json.dumps({"embeddings": vectors.tolist(), "stats": figures}))
        else:
            for vector in vectors:
                click.echo(json.dumps([round(float(x), 6) for x in vector]))
        if report.stats:
            print_stats(figures)


Vectors: TypeAlias = "npt.NDArray[np.float32]"


def _served(documents: list[InputText], query: bool, config: Config, alone: str) -> tuple[Vectors, dict[str, Any]]:
    """The vectors made by the server, and its figures.

    Raises:
        Unserved: the server cannot be used for this request.
    """
    connection = connected(config, MODELS, alone)
    import numpy as np

    texts = [document.text for document in documents]
    answer = connection.ask("/own/embed", {"texts": texts, "query": query, "model": config.embedder})
    vectors = np.frombuffer(base64.b64decode(answer["vectors"]), "<f4").reshape(len(texts), -1)
    return vectors, {**answer["stats"], "server": f"used: process {connection.hello['pid']}"}


def _embedded(
    documents: list[InputText], query: bool, config: Config, max_tokens: int | None, trace: Path | None
) -> tuple[Vectors, dict[str, Any], Trace]:
    """The vectors made by this process, its figures, and the trace."""
    from edge.apps.store.planning import check_texts
    from edge.runtimes.embedder import Embedder
    from edge.trace import Trace

    with ResidentWatch() as watch:
        texts = [document.text for document in documents]
        recorder = Trace(events=trace is not None)
        check_texts("embedding", "embedder", config, texts, max_tokens)
        with Embedder(config=config, max_tokens=max_tokens, trace=recorder) as embedder:
            vectors = embedder.embed(texts, query=query)
            last = embedder.stats
        watch.sample()
        assert last is not None
    return vectors, replace(last, peak_resident=watch.high_water).to_json(), recorder


def _save(vectors: Vectors, out: Path) -> None:
    import numpy as np

    with as_storage_error(f"{out} cannot be written"), open_output(out) as file:
        np.save(file, vectors)
    click.echo(f"{len(vectors)} vectors of {vectors.shape[1]} dimensions written to {out}", err=True)
