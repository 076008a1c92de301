"""`edge embed`: turns texts into vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge.apps.commands.texts import read_texts
from edge.apps.options import (
    OutputFile,
    Report,
    Setup,
    print_stats,
    report_options,
    setup_options,
    text_options,
)
from edge.apps.serve.connection import own_options
from edge.apps.verbs.home import OwnHome
from edge.apps.verbs.requests import Embed, vectors_of
from edge.apps.verbs.verb import EMBED, do
from edge.budget import OperationPlan
from edge.errors import as_storage_error
from edge.files.output_file import open_output

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@click.command()
@Embed.add_to
@click.option("--out", type=OutputFile(), help="Write a .npy array [n, dim] instead.")
@text_options
@setup_options(device=True, server=True)
@report_options
def embed(
    docs: str,
    options: Embed,
    out: Path | None,
    max_tokens: int | None,
    setup: Setup,
    report: Report,
) -> None:
    """Embed texts; prints one JSON array per text, in the order of the input."""
    config = setup.config(embedder=options.model)

    def planned(texts: Sequence[str]) -> OperationPlan:
        from edge.apps.store.planning import texts_plan

        return texts_plan("embedding", "embedder", config, texts, max_tokens)

    documents = read_texts(docs, config.memory, ["edge.runtimes.embedder"], planned)
    asked = replace(options, texts=[document.text for document in documents], model=config.embedder or None)
    alone = own_options(memory=setup.memory, threads=setup.threads, trace=report.trace, max_tokens=max_tokens)
    home = OwnHome(config, report.trace, max_tokens=max_tokens)
    done = do(EMBED, asked, home, alone=alone)
    vectors, figures = vectors_of(done.result, len(documents)), {**done.result["stats"], "server": done.server}
    if out is not None:
        _save(vectors, out)
    elif report.as_json:
        click.echo(json.dumps({"embeddings": vectors.tolist(), "stats": figures}))
    else:
        for vector in vectors:
            click.echo(json.dumps([round(float(x), 6) for x in vector]))
    if report.stats:
        print_stats(figures)
    home.write_trace()  # vectors are not lost if the trace cannot be written


def _save(vectors: npt.NDArray[np.float32], out: Path) -> None:
    import numpy as np

    with as_storage_error(f"{out} cannot be written"), open_output(out) as file:
        np.save(file, vectors)
    click.echo(f"{len(vectors)} vectors of {vectors.shape[1]} dimensions written to {out}", err=True)
