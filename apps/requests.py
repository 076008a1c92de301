"""The options of a search and of a question. Each option stands here once: the command line, JSON requests, tools of
MCP and Python calls take it from its field.

An option is a field that `_option` makes. Its place of work is all that a new option needs besides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import wraps
from typing import Any, TypeVar, cast

from edge.apps.collection.filters import Conditions, Filters
from edge.errors import ArgumentError, InputError
from edge.public_calls import checked_arguments

MOST = 10_000
"""The most results, or candidates to rerank, of one request."""

POOL = 60
"""Fused candidates that a search reranks."""

READ = 6
"""Number of passages that are judged for an answer and quoted from. Of 71 paraphrased questions of the
benchmark `answers`, 92 % have their answer in the first six passages and 82 % in the first four."""

GIVEN = 4
"""Number of passages that a language model is given. Reading each of them delays the first word of the answer."""

Options = TypeVar("Options", bound="RequestOptions")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Option:
    """The description of an option, beside its field's name, type and default.

    Attributes:
        help: one sentence or two for people. The help of a flag names the effect of the flag.
        what: the option in an error message, such as "the number of results".
        flags: its names on the command line; the flag of an option that is on by default turns it off.
        json: its name in JSON, if that is not the field's name.
        least, most: the bounds of a number.
        metavar: the placeholder of its value on the command line.
    """

    help: str
    what: str
    flags: tuple[str, ...]
    json: str
    least: float | None
    most: float | None
    metavar: str | None


_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "Conditions": str}
"""The type of an option's values on the command line and in JSON, by its field's annotation: `str` for a list of
texts."""


def _metadata(
    help: str,
    *flags: str,
    what: str = "",
    json: str = "",
    least: float | None = None,
    most: float | None = None,
    metavar: str | None = None,
) -> dict[str, Option]:
    """The `Option` as metadata of a field."""
    return {"option": Option(help, what, flags, json, least, most, metavar)}


def _option(default: Any, help: str, *flags: str, **more: Any) -> Any:
    """A field with these metadata."""
    return field(default=default, metadata=_metadata(help, *flags, **more))


class RequestOptions:
    """Base of the options of one kind of request, which command lines, JSON and Python calls share."""

    __slots__ = ()

    @classmethod
    def of(cls: type[Options], options: Options | None = None, **named: Any) -> Options:
        """Options for a Python call: those given, changed by arguments that are named one by one.

        Raises:
            ArgumentError: there is no option of a name, or its value is of the wrong type.
            InputError: a value makes no sense.
        """
        if not named and options is not None:
            return options
        known: dict[str, object] = cast("Any", cls).__dataclass_fields__
        if unknown := sorted(named.keys() - known.keys()):
            raise ArgumentError(f"there is no option {unknown[0]!r}; there are {', '.join(known)}")
        return cls(**named) if options is None else replace(cast("Any", options), **named)

    @classmethod
    def options(cls) -> dict[str, tuple[Field[Any], Option]]:
        """The fields with their options, by their names in JSON."""
        found = ((each, each.metadata["option"]) for each in fields(cast("Any", cls)) if "option" in each.metadata)
        return {option.json or each.name: (each, option) for each, option in found}

    @classmethod
    def from_json(cls: type[Options], values: Mapping[str, Any]) -> Options:
        """Reads the options from a JSON object, which may hold other members. A member that is null counts as absent.

        Raises:
            InputError: a value has the wrong type, or makes no sense.
        """
        options = cls.options().items()
        return cls(**{
            each.name: _read(name, value_type(each), values[name])
            for name, (each, _) in options
            if values.get(name) is not None
        })  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The members that `from_json` reads as these options; those with their defaults are left out."""
        found: dict[str, Any] = {}
        for name, (each, _) in self.options().items():
            value = getattr(self, each.name)
            if isinstance(value, Filters):
                value = value.texts
            if value != each.default and value != []:
                found[name] = value
        return found

    @classmethod
    def schema(cls) -> dict[str, dict[str, Any]]:
        """The members of a JSON object with these options, as properties of a JSON schema."""
        names: dict[type, str] = {int: "integer", float: "number", bool: "boolean"}
        found: dict[str, dict[str, Any]] = {}
        for name, (each, option) in cls.options().items():
            kind = value_type(each)
            texts = {"type": "array", "items": {"type": "string"}}
            member: dict[str, Any] = {"type": names[kind]} if kind in names else texts
            member["description"] = f"false: {option.help}" if each.default is True else option.help
            optional = {"minimum": option.least, "maximum": option.most, "default": each.default}
            found[name] = member | {key: value for key, value in optional.items() if value is not None}
        return found

    @classmethod
    def add_to(cls, command: Command) -> Command:
        """Adds the options to a command's function, which gets them as its argument `options`."""
        import click

        taken = [(each, option) for each, option in cls.options().values() if option.flags]

        @wraps(command)
        def call(*args: Any, **given: Any) -> Any:
            values = {each.name: given.pop(each.name) for each, _ in taken}
            return command(*args, options=cls(**values), **given)

        for each, option in reversed(taken):
            if value_type(each) is bool:
                inverted = (lambda context, parameter, value: not value) if each.default else None
                click.option(*option.flags, each.name, is_flag=True, callback=inverted, help=option.help)(call)
            else:
                kind = value_type(each)
                click.option(
                    *option.flags, each.name, type=kind, default=each.default, multiple=kind is str,
                    metavar=option.metavar, show_default=bool(each.default), help=option.help,
                )(call)  # fmt: skip
        return cast("Command", call)

    def _check(self) -> None:
        """"""
        for each, option in self.options().values():
            value = getattr(self, each.name)
            if value_type(each) is str:
                object.__setattr__(self, each.name, Filters.of(value))
                continue
            if value is None:
                continue
            most = sys.float_info.max if option.most is None else option.most
            if option.least is not None and not option.least <= value <= most:
                bounds = f"at least {option.least:,}" if option.most is None else f"{option.least:,} to {option.most:,}"
                raise InputError(f"{option.what} must be {bounds}, not {value}")
            object.__setattr__(self, each.name, value_type(each)(value))  # a number of numpy becomes one of Python


def value_type(each: Field[Any]) -> type:
    """The type of an option's values on the command line and in JSON: `str` for a list of texts."""
    return _TYPES[str(each.type).removesuffix(" | None")]


_ENTRIES = 10_000
"""The most entries of a list in JSON. Each of them is looked at."""

_KINDS: dict[type, str] = {list: "a list", dict: "an object", bool: "true or false"}


def _read(name: str, kind: type, value: Any) -> Any:
    """A value of JSON as its field takes it."""
    if kind is str:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and len(texts) <= _ENTRIES and all(isinstance(text, str) for text in texts):
            return texts
        wanted = f"a text or a list of at most {_ENTRIES:,} texts"
    elif kind is bool:
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return value
        wanted = "a whole number of 64 bits"
    else:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
            return float(value)
        wanted = "a finite number"
    said = repr(value[:60]) if isinstance(value, str) else _KINDS.get(type(value)) or str(value)[:60]
    raise InputError(f"the field `{name}` must be {wanted}, not {said}")


_WHERE = _metadata(
    "Only files that meet this; may be repeated: path:docs/**, type:pdf, type:python, after:2024-01-31, "
    "before:2024-07-01, larger:1MB, smaller:20kB; of mails also from:ann, to:bo@b.org, subject:cheese, thread:ID, and "
    "dates are their own. Several values of one key are alternatives.",
    "--filter", json="filters", metavar="KEY:VALUE",
)  # fmt: skip


@checked_arguments
@dataclass(frozen=True, slots=True)
class SearchOptions(RequestOptions):
    """How passages are searched for.

    Attributes:
        top_k: the most results.
        where: conditions on the files, such as `["type:pdf", "after:2024-01-01"]` (see `Filters`).
        min_score: leaves out hits whose `score` is lower.
        pool: number of candidates that are reranked; more if `top_k` needs more.
        rerank: False keeps the fused order and leaves the reranker closed.
        max_tokens: the most tokens of the passages of all results with their contexts, as `most_tokens` bounds them.
            The best results that fit are kept.
    """

    top_k: int = _option(10, "How many results.", "-n", "--top-k", what="the number of results", least=1, most=MOST)
    where: Conditions = field(default=None, metadata=_WHERE)
    min_score: float = _option(
        0.0, "Leave out results of a lower score (0 ... 1).", "--min-score", what="the least score", least=0, most=1
    )
    pool: int = _option(
        POOL, "How many candidates the reranker judges; more if the results need more.", "--pool",
        what="the number of candidates to rerank", least=1, most=MOST,
    )  # fmt: skip
    rerank: bool = _option(True, "Keep the fused order of words and vectors; quicker, less exact.", "--no-rerank")
    max_tokens: int | None = _option(
        None, "The best results whose passages have at most so many tokens together, for any common tokenizer.",
        "--max-tokens", what="the number of tokens", least=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        """
        Raises:
            InputError: a number is outside its bounds, or a filter is invalid.
        """
        self._check()

    @property
    def filters(self) -> Filters:
        """The conditions on the files."""
        return Filters.of(self.where)

    @property
    def candidates(self) -> int:
        """How many passages are retrieved: twice as many as results, because neighbouring hits are merged, and at least
        `POOL` for the reranker, whose scores compare with those."""
        return max(POOL, self.judged) if self.rerank else 2 * self.top_k

    @property
    def judged(self) -> int:
        """How many of them the reranker reads."""
        return max(self.pool, 2 * self.top_k)


def search_options(top_k: int | None, options: SearchOptions | None, named: Mapping[str, Any]) -> SearchOptions:
    """The options of a Python call that takes them together or one by one. Raises as `SearchOptions.of` does."""
    return SearchOptions.of(options, **(named if top_k is None else {**named, "top_k": top_k}))


@checked_arguments
@dataclass(frozen=True, slots=True)
class AskOptions(RequestOptions):
    """How a question is answered.

    Attributes:
        passages: the most passages that are judged and given to the generator. None: `READ` passages are judged and
            quoted from, and a language model is given the best `GIVEN` of them.
        pool: candidates that the reranker reads, over all queries of a round; more if `passages` is more.
        min_relevance: the probability that the passages answer the question below which the answer is "not in the
            documents". None: the threshold fitted for the models. Without a fitted threshold this is the relevance
            that each passage needs, `MIN_RELEVANCE` if None.
        rerank: False keeps the retrieval order, and then no question is refused.
        check: numbers and names of an answer that no passage holds are not shown as certain (see `grounding`).
        lookahead: fetch clusters while the generator writes. This changes times, never results.
        temperature, max_tokens, seed: sampling of answers. Intermediate texts are always written greedily.
        rounds: the most rounds, for the pipelines that have rounds.
        where: the files that may be searched.
        order_tolerance: passages whose relevance differs by at most this much may change places in the prompt, so that
            a passage with cached KV states comes first. 0 keeps the order. Another order may change a model's answer.
    """

    passages: int | None = _option(
        None, f"Passages to answer from, at most; if not given, {READ} are judged and quoted from, and a language "
        f"model is given the best {GIVEN}.", "-n", "--passages", what="the number of passages", least=1, most=MOST,
    )  # fmt: skip
    pool: int = _option(
        30, "How many candidates the reranker judges in a round; more if the passages are more.", "--pool",
        what="the pool", least=1, most=MOST,
    )  # fmt: skip
    min_relevance: float | None = _option(
        None, "Lowest relevance of the passages, else the answer is not in the documents; the default was "
        "fitted for the models.", "--min-score", json="min_score", what="the least relevance", least=0, most=1,
    )  # fmt: skip
    rerank: bool = _option(True, "Keep the retrieval order; then nothing is refused.", "--no-rerank")
    check: bool = _option(
        True, "Show a language model's sentences even if no passage holds what they say.", "--no-check"
    )
    lookahead: bool = _option(True, "Fetch index lists only when they are searched.", "--no-lookahead")
    temperature: float = _option(0.0, "0: the most probable answer.", "--temperature", what="the temperature", least=0)
    max_tokens: int = _option(256, "Longest answer.", "--max-tokens", what="the length of an answer", least=1)
    seed: int = _option(
        0,
        "The same seed gives the same answer.",
        "--seed",
        what="the seed",
        least=0,
        most=2**32 - 2,
    )
    rounds: int = _option(
        3, "The most rounds, for pipelines that have rounds.", "--rounds", what="the number of rounds", least=1
    )
    where: Conditions = field(default=None, metadata=_WHERE)
    order_tolerance: float = _option(
        0.0, "Passages whose relevance differs by at most so much may change places, so that KV states are "
        "reused; 0 keeps the order.", "--order-tolerance", what="the tolerance of the order", least=0, most=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        """
        Raises:
            InputError: a number is outside its bounds, or a filter is invalid.
        """
        self._check()
        object.__setattr__(self, "pool", max(self.pool, self.passages or 1))

    @property
    def filters(self) -> Filters:
        """The conditions on the files."""
        return Filters.of(self.where)

    @property
    def read(self) -> int:
        """The number of passages that are judged."""
        return min(READ, self.pool) if self.passages is None else self.passages

    def given(self, *, writes: bool) -> int:
        """The number of passages that a generator is given; `writes` tells a language model from one that quotes."""
        return min(GIVEN, self.read) if self.passages is None and writes else self.read
