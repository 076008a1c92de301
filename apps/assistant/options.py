"""What `edge ask` and `edge chat` share: their options, and the assistant that these describe."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import click

from edge.apps.assistant.answer import Answer
from edge.apps.assistant.assistant import Assistant
from edge.apps.assistant.base import AskOptions
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.presentation import notices
from edge.apps.assistant.stream import AnswerStream
from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.place import locate
from edge.apps.options import collection_option, configure
from edge.apps.troubles import tell
from edge.trace import Trace

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = AskOptions()


def assistant_options(command: Command) -> Command:
    """`--pipeline`, `--llm` and how answers are made."""
    for option in (
        click.option("--no-lookahead", is_flag=True, help="Fetch index lists only when they are searched."),
        click.option("--no-kv-cache", is_flag=True, help="Compute every document's KV states anew."),
        click.option("--no-check", is_flag=True,
                     help="Show what a language model writes even if no passage holds its numbers and names."),
        click.option("--no-rerank", is_flag=True, help="Keep the retrieval order; then nothing is refused."),
        click.option(
            "--min-score", type=float,
            help="Relevance that the passages need, else the answer is not in the documents; if not given, what was "
            "fitted for the models.",
        ),
        click.option("--order-tolerance", type=float, default=0.0, show_default=True,
                     help="Passages whose relevance differs by at most so much may change places, so that KV states "
                     "are reused; 0 keeps the order."),
        click.option("-n", "--passages", type=int, default=_DEFAULTS.passages, show_default=True,
                     help="Passages to answer from, at most."),
        click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same answer."),
        click.option("--max-tokens", type=int, default=_DEFAULTS.max_tokens, show_default=True,
                     help="Longest answer."),
        click.option("--temperature", type=float, default=0.0, show_default=True, help="0: the most probable answer."),
        click.option("--filter", "filters", multiple=True, metavar="KEY:VALUE",
                     help="Which files: path:GLOB, type:KIND, after:DATE, before:DATE, larger:SIZE, smaller:SIZE."),
        collection_option,
        click.option("--context", type=int,
                     help="Tokens of prompt and answer together (0: what the model was trained for, at most 4,096)."),
        click.option("--llm", metavar="MODEL",
                     help="FILE.gguf, a generator that `edge models pull` fetched, the http:// address of a server on "
                     "this machine, or extractive: the best sentences of the documents (the default, unless EDGE_LLM "
                     "or the user's file say otherwise)."),
        click.option("--pipeline", type=click.Choice(list(PIPELINES)), default="plain", show_default=True),
    ):  # fmt: skip
        command = option(command)
    return command


@contextmanager
def opened(trace: Trace, **chosen: Any) -> Iterator[Assistant]:
    """The assistant that the options of a command line describe."""
    config = configure(**{name: chosen[name] for name in ("memory", "runtime", "threads", "llm", "context")})
    options = AskOptions(
        passages=chosen["passages"],
        pool=max(_DEFAULTS.pool, chosen["passages"]),
        min_relevance=chosen["min_score"],
        rerank=not chosen["no_rerank"],
        check=not chosen["no_check"],
        lookahead=not chosen["no_lookahead"],
        temperature=chosen["temperature"],
        max_tokens=chosen["max_tokens"],
        seed=chosen["seed"],
        order_tolerance=chosen["order_tolerance"],
        where=Filters.parse(chosen["filters"]),
    )
    place = locate(chosen["collection"])
    with (
        Collection(place, config=config, trace=trace, read_only=True) as collection,
        Assistant(
            collection, pipeline=chosen["pipeline"], options=options, kv_cache=not chosen["no_kv_cache"]
        ) as assistant,
    ):  # fmt: skip
        tell(collection.health())
        yield assistant


def shown(stream: AnswerStream) -> None:
    """Prints an answer as it is written. The first Ctrl-C ends it before its next token, a second one at once; what was
    written stays, on lines of its own."""
    written = False
    try:
        with stream, interruptible(stream):
            for text in stream:
                click.echo(text, nl=False)
                written = True
    finally:
        if written:
            click.echo()


@contextmanager
def interruptible(stream: AnswerStream) -> Iterator[None]:
    """Within it the first Ctrl-C ends the answer before its next token; a second one is a `KeyboardInterrupt`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stream.cancel()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def warned(answer: Answer) -> None:
    """Says on stderr what somebody should know who trusts an answer."""
    for line in notices(answer):
        click.echo(f"edge: {line}", err=True)
