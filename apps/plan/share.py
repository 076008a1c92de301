"""`edge plan share`: divides devices between generation and retrieval."""

from __future__ import annotations

import json

import click

from edge.apps.options import json_option
from edge.planner.searchers import Alternation, queue_length


@click.command("share")
@click.option("--devices", type=click.IntRange(2, 10**6), default=16, show_default=True, help="To be divided.")
@click.option("--interval", type=click.IntRange(1, 10**6), required=True, help="Tokens between two retrievals.")
@click.option(
    "--token",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help="Seconds in which one device writes a token for the batch.",
)
@click.option(
    "--retrieval",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help="Seconds in which one device retrieves for the batch.",
)
@click.option("--batch", type=click.IntRange(1, 10**6), default=1, show_default=True, help="Sequences at a time.")
@click.option(
    "-n",
    "--results",
    type=click.IntRange(1, 10**5),
    default=100,
    show_default=True,
    help="Nearest passages that are wanted.",
)
@click.option("--whole-lists", is_flag=True, help="A list lies on one device, and is not dealt evenly over all.")
@json_option
def share(
    devices: int,
    interval: int,
    token: float,
    retrieval: float,
    batch: int,
    results: int,
    whole_lists: bool,
    as_json: bool,
) -> None:
    """Divide devices of equal cost between generation and retrieval, and size the searchers' result queues (Chameleon).

    Each retrieving device keeps a queue of its nearest passages. Where every list is dealt evenly over the devices,
    short queues lose nothing in 99 of 100 searches.
    """
    work = Alternation(interval, batch, token, retrieval)
    generating, retrieving = work.divided(devices)
    length = results if whole_lists else queue_length(results, retrieving)
    even = work.efficiency(0.5)
    if as_json:
        click.echo(json.dumps({
            "generating": generating, "retrieving": retrieving, "share": work.generating_share,
            "tokens_per_s": work.throughput(generating, retrieving), "queue_length": length,
            "even_division": even, "origin": "predicted",
        }))  # fmt: skip
        return
    reason = "whole lists allow no shorter ones" if whole_lists else "no result lost in 99 of 100 searches"
    click.echo(
        f"{generating} of {devices} devices should generate and {retrieving} retrieve ({work.generating_share:.1%} "
        f"generate at the optimum): {work.throughput(generating, retrieving):,.3g} tokens per second. Half and half "
        f"would reach {even:.0%} of the best rate. Each retrieving device keeps a queue of {length} of the {results} "
        f"nearest passages ({reason})."
    )
