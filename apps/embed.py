"""`edge embed`: turns texts into vectors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from edge.apps.options import OutputFile, configure, engine_options, print_stats, report_options, text_options
from edge.apps.planning import check_texts
from edge.apps.texts import read_documents
from edge.errors import StorageError
from edge.output_file import open_output
from edge.resident import ResidentWatch
from edge.runtimes.embedder import Embedder
from edge.trace import Trace


@click.command()
@click.option("--model", help="Embedder: a known name or the path of a packed model.")
@click.option("--query", is_flag=True, help="The texts are questions (models trained with an instruction get it).")
@click.option("--out", type=OutputFile(), help="Write a .npy array [n, dim] instead.")
@text_options
@engine_options
@report_options
def embed(
    docs: str,
    model: str | None,
    query: bool,
    out: Path | None,
    max_tokens: int | None,
    memory: str | None,
    runtime: str | None,
    threads: int | None,
    as_json: bool,
    stats: bool,
    trace: Path | None,
) -> None:
    """Embed texts; prints one JSON array per text, in the order of the input."""
    config = configure(memory=memory, runtime=runtime, threads=threads, embedder=model)
    with ResidentWatch() as watch:
        texts = [document.text for document in read_documents(docs, config.memory)]
        recorder = Trace(events=trace is not None)
        check_texts("embedding", "embedder", config, texts, max_tokens)
        with Embedder(config=config, max_tokens=max_tokens, trace=recorder) as embedder:
            vectors = embedder.embed(texts, query=query)
            last = embedder.stats
        watch.sample()
        assert last is not None
        figures = replace(last, peak_resident=watch.high_water).to_json()
    try:
        if trace is not None:
            recorder.write(trace)
    finally:  # vectors are not lost where the trace cannot be written
        if out is not None:
            _save(vectors, out)
        elif as_json:
            click.echo(json.dumps({"embeddings": vectors.tolist(), "stats": figures}))
        else:
            for vector in vectors:
                click.echo(json.dumps([round(float(x), 6) for x in vector]))
        if stats:
            print_stats(figures)


def _save(vectors: npt.NDArray[np.float32], out: Path) -> None:
    try:
        with open_output(out) as file:
            np.save(file, vectors)
    except OSError as error:
        raise StorageError(f"{out} cannot be written: {error.strerror}") from error
    click.echo(f"{len(vectors)} vectors of {vectors.shape[1]} dimensions written to {out}", err=True)
