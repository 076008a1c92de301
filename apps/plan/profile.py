"""`edge profile`: measures the duration of an answer's stages on this machine."""

from __future__ import annotations

import json

import click

from edge.apps.collection.registry import locate
from edge.apps.options import Setup, json_option, setup_options
from edge.apps.plan.machine import conditions, measure, profile_path
from edge.apps.plan.presentation import duration
from edge.apps.plan.questions import Questions, questions_options, rounds_option, say
from edge.config import format_size
from edge.planner.measured import MachineProfile


@click.command("profile")
@questions_options(
    "File with questions such as yours, one per line; about twenty are enough. The first one warms up.",
    "As for `edge ask`; its writing is measured, too.",
)
@rounds_option
@setup_options()
@json_option
def profile(questions: Questions, rounds: int, setup: Setup, as_json: bool) -> None:
    """Measure embedding, search, reranking and writing on this machine, for `edge plan here`.

    The questions are answered under the memory limit in force, with several reranking depths and numbers of passages.
    Each is visited in several rounds, in processes of their own. Run it once for each limit that you think of, when
    nothing else runs. The figures are kept beside the collection, for this machine and these models.
    """
    config = setup.config(llm=questions.llm)
    place = locate(questions.collection)
    asked = questions.read()
    here = conditions(config, questions.pipeline)
    path = profile_path(place, here)
    known = MachineProfile.load(path, here)
    measured = measure(
        place, config, asked, pipeline=questions.pipeline, max_tokens=questions.max_tokens, rounds=rounds, say=say
    )
    known.limits[measured.limit] = measured
    known.save(path)
    if as_json:
        rows = [{name: getattr(row, name) for name in row.__dataclass_fields__} for row in measured.readings]
        click.echo(json.dumps({
            "limit": measured.limit, "conditions": dict(known.conditions), "origin": "measured", "readings": rows,
        }))  # fmt: skip
        return
    click.echo(
        f"{'depth':>6}{'passages':>10}{'embed':>10}{'search':>10}{'rerank':>10}{'write':>10}{'written':>9}{'peak':>10}"
    )
    for row in measured.readings:
        times = "".join(f"{duration(s):>10}" for s in (row.embed, row.search, row.rerank, row.write))
        click.echo(f"{row.depth:>6}{row.passages:>10}{times}{row.written:>9.0%}{format_size(int(row.nbytes)):>10}")
    click.echo(
        f"measured with {len(asked) - 1} questions in {rounds} rounds under {format_size(measured.limit)}; "
        f"{len(known.limits)} limits are known",
        err=True,
    )
