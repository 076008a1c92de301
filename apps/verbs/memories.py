"""What is asked of a memory: the options of `Memory`'s calls, and its verbs. Each verb is one class: what is asked, the
work, and what its command prints."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from edge.apps.memory.arguments import written
from edge.apps.verbs.options import Moment, RequestOptions, option
from edge.config import counted
from edge.errors import InputError
from edge.public_calls import checked_arguments

if TYPE_CHECKING:
    from edge.apps.memory.memory import Memory
    from edge.apps.verbs.home import Home
    from edge.apps.verbs.verb import Listener

MOST = 10_000


class _Unset:
    def __repr__(self) -> str:
        return "unchanged"


UNSET: Final = _Unset()
"""The default of a field for which None means "remove the value": leave the value unchanged."""

_REMOVING = {"expiration_date": "never", "valid_from": "said", "valid_until": "never"}


@dataclass(frozen=True, slots=True)
class GivenFields(RequestOptions):
    """The fields of a memory, beside its text, that a caller may give or change. Each names one of `Record`, which says
    how it is read and stored."""

    metadata: Mapping[str, Any] | None = option(
        None, 'Anything to filter by later, such as {"category": "food"}; of a change, the keys to set.', "--metadata",
        metavar="JSON",
    )  # fmt: skip
    timestamp: Moment = option(
        UNSET, "When it was said or happened, such as 2026-05-08 or 2026-05-08T13:56.", "--timestamp", metavar="WHEN"
    )
    expiration_date: Moment = option(
        UNSET, "The last day on which it is shown, such as 2026-12-31, or `never`.", "--expires", metavar="DAY"
    )
    valid_from: Moment = option(
        UNSET, "Since when it holds, such as 2024-09, or `said`: since it was said.", "--valid-from", metavar="WHEN"
    )
    valid_until: Moment = option(
        UNSET, "Until when it holds or held, or `never`: it holds still.", "--valid-until", metavar="WHEN"
    )
    importance: float | None = option(
        UNSET, "0 ... 1, for `search --importance`.", "--importance", what="the importance", least=0, most=1,
        agents=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        RequestOptions.__post_init__(self)
        for name, word in _REMOVING.items():
            if getattr(self, name) == word:
                object.__setattr__(self, name, None)

    def to_json(self) -> dict[str, Any]:
        removed = {name: word for name, word in _REMOVING.items() if getattr(self, name) is None}
        return RequestOptions.to_json(self) | removed


@checked_arguments
@dataclass(frozen=True, slots=True)
class RememberOptions(GivenFields):
    """How texts are remembered. A message may have a `timestamp` of its own; the day of one is the day in the time zone
    that it is given in, by default UTC.

    Attributes:
        supersede: let a statement end an earlier one of the same scope, role and speaker that it gives another value:
            "I moved to Trondheim" ends "I live in Oslo". Texts of one statement alone are compared, without a model.
            What is not understood ends nothing. `supersede(id, None)` undoes an ending.
        explain: add the verdict about each memory that was compared as `judged`.
    """

    supersede: bool = option(True, "End no earlier memory, whatever is said.", "--no-supersede", agents=False)
    explain: bool = option(False, "Show why each near memory was ended or not.", "--explain", agents=False)


@dataclass(frozen=True, slots=True)
class WhichOptions(RequestOptions):
    """Which memories are wanted, and how many at most. Filters may also name the scope (`edge.apps.memory.filters`)."""

    top_k: int | None = option(None, "How many.", "-n", "--top-k", what="the number of memories", least=0, most=MOST)
    limit: int | None = option(
        None, "Another name of top_k.", what="the number of memories", least=0, most=MOST, agents=False
    )
    filters: Mapping[str, Any] | None = option(
        None, 'Conditions on metadata and dates, such as {"category": "food"} or {"timestamp": {"gte": "2026-05-01"}}; '
        "operators eq ne gt gte lt lte in nin contains icontains, joined by AND, OR and NOT.", "--filters",
        metavar="JSON",
    )  # fmt: skip
    show_expired: bool = option(
        False, "Also memories that expired, ended or were forgotten.", "--show-expired", agents=False
    )

    usual: ClassVar[int]
    """How many if it is not said."""

    @property
    def count(self) -> int:
        return next(value for value in (self.top_k, self.limit, self.usual) if value is not None)


@checked_arguments
@dataclass(frozen=True, slots=True)
class ListOptions(WhichOptions):
    """Which memories are listed, newest first."""

    offset: int = option(0, "So many of the newest memories are left out.", what="an offset", least=0, agents=False)

    usual = 20


@checked_arguments
@dataclass(frozen=True, slots=True)
class RecallOptions(WhichOptions):
    """How memories are searched for.

    Attributes:
        explain: add each stage's figures as `score_details`.
        as_of: a moment. Return what held then instead of what holds now, as far as is known. A day means its end.
        max_tokens: the most tokens of all results, their neighbours and what conversations were about, with the dates
            of what was said, as `most_tokens` bounds them. The best that fit are returned, no turn twice, with the sum
            as `tokens` and the ids of the other results as `left_out`.
        neighbours: the number of turns before and after each result to return as its `neighbours`.
        conversations: the number of whole conversations to return beside the memories, as `conversations`: the id of
            the first turn, when it `began` and `ended`, how many `turns`, and its most central sentences as `about`.
            `filters={"conversation_of": id}` returns its turns.
        recency, importance: weights beside relevance in the order of results, which becomes
            `(1 - recency - importance) * order + recency * 0.5 ** (age / half_life) + importance * value`. All three
            parts lie in 0 ... 1. The age is counted from a memory's timestamp, or from its creation if it has none;
            pinned memories do not age. The importance of a memory without a value counts as 0.5, that of a pinned
            memory as 1.
    """

    threshold: float | None = option(
        None, "Lowest score, 0 ... 1.", "--threshold", what="threshold", least=0, most=1, agents=False
    )
    rerank: bool = option(
        True, "Keep the fused order of words and vectors; quicker, less exact.", "--no-rerank", agents=False
    )
    explain: bool = option(False, "Show the score that each stage gave to each result.", "--explain", agents=False)
    neighbours: int = option(
        0, "Show so many turns before and after each result.", "--neighbours", what="the number of neighbours",
        least=0, most=MOST,
    )  # fmt: skip
    conversations: int = option(
        0, "Show so many conversations, and what each was about.", "--conversations",
        what="the number of conversations", least=0, most=MOST,
    )  # fmt: skip
    recency: float = option(
        0.0, "Weight of how recent a memory is, 0 ... 1.", "--recency", what="recency", least=0, most=1, agents=False
    )
    importance: float = option(
        0.0, "Weight of how important a memory is, 0 ... 1.", "--importance", what="importance", least=0, most=1,
        agents=False,
    )  # fmt: skip
    as_of: Moment = option(
        None, "What held then instead of what holds now, such as 2026-05-08.", "--as-of", metavar="WHEN"
    )
    max_tokens: int | None = option(
        None, "The best results with at most so many tokens, for any common tokenizer.", "--max-tokens",
        what="the number of tokens", least=1,
    )  # fmt: skip
    half_life: float = option(30.0, "Days after which recency has halved.", "--half-life", agents=False)
    order: str = option(
        "relevance", "relevance: the best first; time: the best results as they followed one another.", "--order",
        choices=("relevance", "time"),
    )  # fmt: skip

    usual = 10

    def __post_init__(self) -> None:
        RequestOptions.__post_init__(self)
        both = self.recency + self.importance
        if both > 1:
            raise InputError(f"recency and importance weigh {both:g} together; 1 is all there is")
        if not 0 < self.half_life < math.inf:
            raise InputError(f"half_life is a positive number of days, not {self.half_life!r}")

    @property
    def weighs(self) -> bool:
        return self.recency > 0 or self.importance > 0


@checked_arguments
@dataclass(frozen=True, slots=True)
class ChangeOptions(GivenFields):
    """Changes of a memory. What is not given stays as it is. `metadata` are merged into the existing ones; None removes
    a date or the importance, and so does the word `never` for a day or an end (`said` for `valid_from`)."""

    text: str | None = option(None, "The new text.", "[TEXT]")
    pinned: bool | None = option(None, "A pinned memory neither expires nor ages.", "--pin/--unpin", agents=False)
    forgotten: bool | None = option(
        None, "A forgotten memory is hidden, not deleted.", "--forget/--recall", agents=False
    )


VERBS: list[type[OfMemory]] = []
"""The verbs of a memory that a server does, too."""


@dataclass(frozen=True, kw_only=True)
class OfMemory(RequestOptions):
    """What is asked of whose memory. A class below is a verb, whose docstring is the help of its command."""

    user_id: str | None = option(None, "Whose memory; `default` if no id is given.", "--user-id")
    agent_id: str | None = option(None, "Which agent's memory.", "--agent-id")
    run_id: str | None = option(None, "Which session's memory.", "--run-id")
    path: str | None = option(None, "Directory of the memory.", "--path", metavar="DIRECTORY")

    verb: ClassVar[str] = ""
    writes: ClassVar[bool] = False
    model: ClassVar[str | None] = None
    """A model that its command lets one choose, empty if it only uses some; None for a verb without models."""

    def __init_subclass__(cls, verb: str = "", writes: bool = False, model: str | None = None) -> None:
        if verb:
            cls.verb, cls.writes, cls.model = verb, writes, model
            VERBS.append(cls)

    @property
    def ids(self) -> dict[str, str | None]:
        return {"user_id": self.user_id, "agent_id": self.agent_id, "run_id": self.run_id}

    def check(self) -> None:
        """Raises `InputError` if arguments of a command make no sense together."""

    def work(self, memory: Memory) -> Any:
        """Does the verb, for the command's own process and for the server."""
        raise NotImplementedError

    def lines(self, result: Any) -> Iterator[str]:
        """What its command prints of a result; nothing where nothing was found."""
        yield from () if result is None else [f"{result['id']}  {shown(result)}"]

    def document(self, done: Mapping[str, Any]) -> Any:
        """What its command prints as JSON."""
        return done["result"]

    def found(self, result: Any) -> bool:
        """Whether its command ends as one that has found something."""
        return True


def remembered(home: Home, asked: OfMemory, listener: Listener) -> dict[str, Any]:
    """The work of a memory's verbs: the result, with the state of the memory beside it."""
    with home.memory(asked) as memory:
        result, health = asked.work(memory), memory.health()
    return {"result": result, "health": health.to_json(), "troubles": [str(trouble) for trouble in health]}


def shown(document: Mapping[str, Any]) -> str:
    when = document.get("local_timestamp") or document.get("timestamp")
    text = f"[{written(when)}] {document['memory']}" if when else str(document["memory"])
    until = document.get("valid_until")
    return f"{text}  (until {written(until)})" if until else text


@dataclass(frozen=True, kw_only=True)
class Remember(OfMemory, RememberOptions, verb="add", writes=True, model="embedder"):
    """Remember each TEXT; - reads stdin, a text a line."""

    texts: Sequence[str] = option((), "The texts.", "TEXT...")

    def work(self, memory: Memory) -> Any:
        return memory.add(list(self.texts), options=self)

    def lines(self, result: Any) -> Iterator[str]:
        for added in result["results"]:
            yield f"{added['id']}  {added['memory']}{'  (known already)' * (added['event'] == 'NONE')}"
            for other in added.get("similar", ()):
                yield f"    much like {other['id']} ({other['similarity']:.2f})  {other['memory']}"
            for other in added.get("supersedes", ()):
                yield f"    in place of {other['id']}  {other['memory']}"
            for other in added.get("judged", ()):
                verb = "ends" if other["ends"] else "keeps"
                yield f"    {verb} {other['id']} ({other['probability']:.2f})  {other['memory']}"


@dataclass(frozen=True, kw_only=True)
class FindMemories(OfMemory):
    def document(self, done: Mapping[str, Any]) -> Any:
        return {**done["result"], "health": done["health"]}

    def found(self, result: Any) -> bool:
        return bool(result["results"])


@dataclass(frozen=True, kw_only=True)
class Recall(FindMemories, RecallOptions, verb="search", model="reranker"):
    """Find the memories about QUERY, best first; exit code 1 if there are none."""

    query: str = option("", "A question or a description.", "QUERY...")

    def work(self, memory: Memory) -> Any:
        return memory.search(self.query, options=self)

    def lines(self, result: Any) -> Iterator[str]:
        for place, hit in enumerate(result["results"], 1):
            yield f"{place:3d}  {hit['score']:.2f}  {hit['id']}  {shown(hit)}"
            if self.explain:
                stages = hit["score_details"].items()  # a rank is a whole number
                shares = (f"{name} {value if isinstance(value, int) else f'{value:.3f}'}" for name, value in stages)
                yield f"            {'  '.join(shares)}"
            for older in hit.get("newer_than", ()):
                yield f"            newer than {older}"
            for turn in hit.get("neighbours", ()):
                yield f"     {turn['offset']:+d}     {shown(turn)}"
        for talk in result.get("conversations", ()):
            turns = counted(talk["turns"], "turn")
            yield f"{talk['id']}  {written(talk['began'])}, {turns}: {' '.join(talk['about'])}"


@dataclass(frozen=True, kw_only=True)
class ListMemories(FindMemories, ListOptions, verb="list"):
    """List the memories, newest first; exit code 1 if there are none."""

    def work(self, memory: Memory) -> Any:
        return memory.get_all(options=self)

    def lines(self, result: Any) -> Iterator[str]:
        return (f"{each['id']}  {shown(each)}" for each in result["results"])


@dataclass(frozen=True, kw_only=True)
class OneMemory(OfMemory):
    memory_id: str = option("", "The id of the memory.", "MEMORY_ID")


@dataclass(frozen=True, kw_only=True)
class GetMemory(OneMemory, verb="get"):
    """Show one memory; exit code 1 if there is none."""

    def work(self, memory: Memory) -> Any:
        return memory.get(self.memory_id)

    def lines(self, result: Any) -> Iterator[str]:
        for name, value in (result or {}).items():
            yield f"{name:16} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"

    def found(self, result: Any) -> bool:
        return result is not None


@dataclass(frozen=True, kw_only=True)
class Change(OneMemory, ChangeOptions, verb="update", writes=True, model=""):
    """Change a memory: its TEXT, or the fields that options name."""

    def work(self, memory: Memory) -> Any:
        memory.update(self.memory_id, options=self)
        return memory.get(self.memory_id)


@dataclass(frozen=True, kw_only=True)
class Delete(OfMemory, verb="delete", writes=True):
    """Delete memories; their history stays, unless --purge erases both."""

    memory_ids: Sequence[str] = option((), "The ids of the memories.", "MEMORY_ID...")
    everything: bool = option(False, "Every memory of the ids given.", "--all")
    purge: bool = option(False, "Erase them with their history, also what was deleted before.", "--purge")

    def check(self) -> None:
        if bool(self.memory_ids) == self.everything:
            raise InputError("name the memories to delete, or give --all")

    def work(self, memory: Memory) -> Any:
        """Says which, and with `purge` what was erased."""
        if self.everything:
            done = [memory.delete_all(purge=self.purge)]
        else:
            done = [memory.delete(memory_id, purge=self.purge) for memory_id in self.memory_ids]
        result: dict[str, Any] = {"deleted": "all" if self.everything else list(self.memory_ids)}
        if self.purge and done:
            counts = {what: sum(one["erased"][what] for one in done) for what in done[0]["erased"]}
            result |= done[-1] | {"erased": counts}
        return result

    def lines(self, result: Any) -> Iterator[str]:
        return iter(())  # the command says what stays, or what was erased


@dataclass(frozen=True, kw_only=True)
class Supersede(OneMemory, verb="supersede", writes=True):
    """End a memory where the memory BY takes its place; both stay stored."""

    by: str | None = option(None, "The id of the memory that takes its place.", "[BY]")
    undo: bool = option(False, "Let it hold again.", "--undo")

    def check(self) -> None:
        if (self.by is None) != self.undo:
            raise InputError("name the memory that takes its place, or give --undo")

    def work(self, memory: Memory) -> Any:
        memory.supersede(self.memory_id, self.by)
        return memory.get(self.memory_id)


@dataclass(frozen=True, kw_only=True)
class History(OneMemory, verb="history"):
    """Show every change of a memory, also of a deleted one; exit code 1 if there is none."""

    whole_chain: bool = option(False, "With the memories that it superseded and that superseded it.", "--chain")

    def work(self, memory: Memory) -> Any:
        return memory.history(self.memory_id, whole_chain=self.whole_chain)

    def lines(self, result: Any) -> Iterator[str]:
        for change in result:
            text = change["new_memory"] if change["new_memory"] is not None else change["old_memory"]
            yield f"{written(change['updated_at'])}  {change['event']:9} {text}"

    def document(self, done: Mapping[str, Any]) -> Any:
        return {"history": done["result"]}

    def found(self, result: Any) -> bool:
        return bool(result)
