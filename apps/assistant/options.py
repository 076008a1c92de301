"""The common options of `edge ask` and `edge chat`, and the opening of the assistant from them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import click

from edge.apps.assistant.assistant import Assistant
from edge.apps.assistant.base import GIVEN, READ, AskOptions
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.stream import AnswerStream
from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.registry import locate
from edge.apps.options import collection_option, configure
from edge.apps.troubles import tell
from edge.config import Config
from edge.trace import Trace

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = AskOptions()


def assistant_options(command: Command) -> Command:
    """Adds the options of answering, such as `--pipeline` and `--llm`, to a command."""
    for option in (
        click.option("--no-lookahead", is_flag=True, help="Fetch index lists only when they are searched."),
        click.option("--no-kv-cache", is_flag=True, help="Compute every document's KV states anew."),
        click.option("--no-check", is_flag=True,
                     help="Show a language model's answer even if no passage holds its numbers and names."),
        click.option("--no-rerank", is_flag=True, help="Keep the retrieval order; then nothing is refused."),
        click.option(
            "--min-score", type=float,
            help="Lowest relevance of the passages, else the answer is not in the documents; the default was fitted "
            "for the models.",
        ),
        click.option("--order-tolerance", type=float, default=0.0, show_default=True,
                     help="Passages whose relevance differs by at most so much may change places, so that KV states "
                     "are reused; 0 keeps the order."),
        click.option("-n", "--passages", type=int,
                     help=f"Passages to answer from, at most; if not given, {READ} are judged and quoted from, and a "
                     f"language model is given the best {GIVEN}."),
        click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same answer."),
        click.option("--max-tokens", type=int, default=_DEFAULTS.max_tokens, show_default=True,
                     help="Longest answer."),
        click.option("--temperature", type=float, default=0.0, show_default=True, help="0: the most probable answer."),
        click.option("--filter", "filters", multiple=True, metavar="KEY:VALUE",
                     help="Which files: path:GLOB, type:KIND, after:DATE, before:DATE, larger:SIZE, smaller:SIZE."),
        collection_option,
        click.option("--context", type=int,
                     help="Tokens of prompt and answer together (0: as the model was trained for, at most 4,096)."),
        click.option("--llm", metavar="MODEL",
                     help="FILE.gguf, a generator that `edge models pull` fetched, the http:// address of a server on "
                     "this machine, or extractive: the best sentences of the documents (the default, unless EDGE_LLM "
                     "or the user's file say otherwise)."),
        click.option("--pipeline", type=click.Choice(list(PIPELINES)), default="plain", show_default=True),
    ):  # fmt: skip
        command = option(command)
    return command


def configured(chosen: Mapping[str, Any]) -> Config:
    """The configuration that the options of a command line describe."""
    settings = {name: chosen[name] for name in ("memory", "runtime", "threads", "llm", "context")}
    return configure(no_server=chosen.get("no_server", True), **settings)


def values(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `AskOptions` that the options of a command line describe, but for the filters."""
    return {
        "passages": chosen["passages"],
        "pool": max(_DEFAULTS.pool, chosen["passages"] or 0),
        "min_relevance": chosen["min_score"],
        "rerank": not chosen["no_rerank"],
        "check": not chosen["no_check"],
        "lookahead": not chosen["no_lookahead"],
        "temperature": chosen["temperature"],
        "max_tokens": chosen["max_tokens"],
        "seed": chosen["seed"],
        "order_tolerance": chosen["order_tolerance"],
    }


@contextmanager
def opened(trace: Trace, **chosen: Any) -> Iterator[Assistant]:
    """Opens the collection and the assistant that the options of a command line describe."""
    config = configured(chosen)
    options = AskOptions(**values(chosen), where=Filters.parse(chosen["filters"]))
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
    """Prints an answer while it is written. The first Ctrl-C ends the answer before its next token, the second one ends
    it at once. The text written so far stays, and ends with a line break."""
    written = False
    try:
        with stream, interruptible(stream.cancel):
            for text in stream:
                click.echo(text, nl=False)
                written = True
    finally:
        if written:
            click.echo()


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """A context in which the first Ctrl-C calls `cancel`, which ends the answer before its next token. The second one
    raises `KeyboardInterrupt`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        cancel()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
