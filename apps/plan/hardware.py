"""`edge plan banks` and `edge plan share`: division of hardware. Embedding tables are placed in memory banks so that a
look-up in all of them is fast, and devices are divided between generation and retrieval."""

from __future__ import annotations

import json
from typing import Any

import click

from edge.apps.options import FiniteRange, json_option
from edge.config import format_duration, format_size, parse_size
from edge.errors import InputError
from edge.files.input_file import read_text
from edge.planner.bank_placement import BankPlacement, Banks, EmbeddingTable, placed
from edge.planner.search_accelerator import Alternation, queue_length

_MOST_TABLES = 2000
"""Their placement takes some seconds, and the time grows faster than the square of their number."""


@click.command("banks")
@click.argument("tables", metavar="TABLES")
@click.option(
    "--banks",
    "count",
    type=click.IntRange(1, 4096),
    default=34,
    show_default=True,
    help="Banks of memory that are read side by side.",
)
@click.option("--bank", "size", default="256MiB", show_default=True, help="Size of a bank.")
@click.option("--near", default="8MiB", show_default=True, help="Memory on the chip.")
@json_option
def banks(tables: str, count: int, size: str, near: str, as_json: bool) -> None:
    """Place the embedding tables of the file TABLES over banks of memory, small ones joined in pairs (MicroRec).

    TABLES holds one JSON list of objects with `rows`, `dim` and, if you like, `name` (- reads stdin). Times come from a
    model of a bank that fits a published row, and are calibrated, not measured.
    """
    given = read_tables(tables)
    where = Banks(count=count, nbytes=parse_size(size), near=parse_size(near))
    best, plain = placed(given, where), placed(given, where, combine=False)
    if as_json:
        click.echo(json.dumps({"origin": "calibrated", "combined": _json(best), "plain": _json(plain)}))
        return
    for name, placement in (("each by itself", plain), ("joined in pairs", best)):
        lying = sum(map(len, placement.banks))
        click.echo(
            f"{name:16}{len(placement.near):>4} on the chip,{lying:>5} in banks, {placement.rounds} rounds, "
            f"{format_duration(placement.seconds)} a look-up, {format_size(placement.nbytes)}"
        )
    pairs = [table for bank in (best.near, *best.banks) for table in bank if len(table.parts) > 1]
    if pairs:
        click.echo("joined: " + ", ".join(" x ".join(table.parts) for table in pairs))
    click.echo(f"Joining saves {1 - best.seconds / plain.seconds:.0%} of the time for "
               f"{best.nbytes / plain.nbytes - 1:.1%} more storage.")  # fmt: skip


_SECONDS = FiniteRange(1e-12, 1e9)
"""Bounds that no real time exceeds. With far smaller or larger ones, sums and quotients are no numbers any more."""


@click.command("share")
@click.option("--devices", type=click.IntRange(2, 10**6), default=16, show_default=True, help="To be divided.")
@click.option("--interval", type=click.IntRange(1, 10**6), required=True, help="Tokens between two retrievals.")
@click.option(
    "--token",
    type=_SECONDS,
    required=True,
    help="Seconds in which one device writes a token for the batch.",
)
@click.option(
    "--retrieval",
    type=_SECONDS,
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


def read_tables(text: str) -> list[EmbeddingTable]:
    """The tables of a file.

    Raises:
        InputError: the file cannot be read, or holds no list of tables, or too many of them.
    """
    try:
        rows = json.loads(read_text(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{text} is not valid JSON: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{text} holds no list of tables")
    if len(rows) > _MOST_TABLES:
        raise InputError(f"{text} holds {len(rows):,} tables, and {_MOST_TABLES:,} are the most that are placed")
    return [_table(number, row) for number, row in enumerate(rows, 1)]


def _table(number: int, row: Any) -> EmbeddingTable:
    given = row if isinstance(row, dict) else {}
    rows: Any = given.get("rows")
    dim: Any = given.get("dim")
    if not (_is_size(rows) and _is_size(dim)):
        raise InputError(f"table {number} needs whole numbers above 0 as rows and dim, not {str(row)[:80]}")
    return EmbeddingTable(int(rows), int(dim), (str(given.get("name", number)),))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40


def _json(placement: BankPlacement) -> dict[str, Any]:
    return {
        "seconds": placement.seconds, "rounds": placement.rounds, "nbytes": placement.nbytes,
        "near": [list(table.parts) for table in placement.near],
        "banks": [[list(table.parts) for table in bank] for bank in placement.banks],
    }  # fmt: skip
