"""`edge plan banks`: places embedding tables in memory banks so that a look-up in all of them is fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from edge.apps.options import json_option
from edge.apps.plan.presentation import duration
from edge.config import format_size, parse_size
from edge.errors import InputError
from edge.files.input_file import SMALL, read_input, read_stdin
from edge.planner.bank_placement import BankPlacement, Banks, EmbeddingTable, placed


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
            f"{duration(placement.seconds)} a look-up, {format_size(placement.nbytes)}"
        )
    pairs = [table for bank in (best.near, *best.banks) for table in bank if len(table.parts) > 1]
    if pairs:
        click.echo("joined: " + ", ".join(" x ".join(table.parts) for table in pairs))
    click.echo(f"Joining saves {1 - best.seconds / plain.seconds:.0%} of the time for "
               f"{best.nbytes / plain.nbytes - 1:.1%} more storage.")  # fmt: skip


def read_tables(text: str) -> list[EmbeddingTable]:
    """The tables of a file.

    Raises:
        InputError: the file cannot be read, or holds no list of tables.
    """
    try:
        data = read_stdin() if text == "-" else read_input(Path(text), most=SMALL)
        rows = json.loads(data)
    except OSError as error:
        raise InputError(f"{text} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{text} is not valid JSON: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{text} holds no list of tables")
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
