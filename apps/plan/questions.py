"""`Questions`: questions that are answered to measure this machine, and the options that name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.options import Command, collection_option, gathered
from edge.apps.plan.visits import ROUNDS
from edge.errors import InputError
from edge.files.input_file import read_input

_FEWEST = 2


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions, and how they are answered.

    Attributes:
        file: file with one question per line.
        llm: the model that writes; None takes the configured one.
        max_tokens: longest answer of a language model.
        collection: the collection, see `edge.apps.collection.registry.locate`.
    """

    file: Path
    llm: str | None
    pipeline: str
    max_tokens: int
    collection: Path | None

    def read(self) -> list[str]:
        """The questions.

        Raises:
            InputError: the file cannot be read, or has fewer than two questions.
        """
        try:
            lines = read_input(self.file).decode().splitlines()
        except OSError as error:
            raise InputError(f"{self.file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{self.file} is not valid UTF-8 (byte {error.start})") from None
        questions = [line.strip() for line in lines if line.strip()]
        if len(questions) < _FEWEST:
            raise InputError(f"{self.file} has {len(questions)} questions; at least {_FEWEST} are needed, one per line")
        return questions


rounds_option = click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=ROUNDS,
    show_default=True,
    help="Visits of each schedule; each question counts with its median.",
)


def say(text: str) -> None:
    """Prints a line about the progress to stderr."""
    click.echo(text, err=True)


def questions_options(which: str, llm: str) -> Callable[[Command], Command]:
    """Adds the options of `Questions`, which the function gets as `questions`.

    Args:
        which: the help text of `--questions`.
        llm: the help text of `--llm`.
    """
    return gathered(
        "questions",
        Questions,
        click.option("--questions", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help=which),
        click.option("--llm", metavar="MODEL", help=llm),
        click.option("--pipeline", type=click.Choice(list(PIPELINES)), default="plain", show_default=True),
        click.option(
            "--max-tokens",
            type=click.IntRange(1, 4096),
            default=64,
            show_default=True,
            help="Longest answer of a language model.",
        ),
        collection_option,
    )
