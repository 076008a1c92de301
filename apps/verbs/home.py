"""`Home`: where a verb is done, with what its work opens. `OwnHome` is this process; a server is another home."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from edge.apps.verbs.verb import interruptible
from edge.config import Config

if TYPE_CHECKING:
    from edge.apps.assistant.assistant import Assistant
    from edge.apps.collection.collection import Together
    from edge.apps.memory.memory import Memory
    from edge.apps.verbs.memories import OfMemory
    from edge.apps.verbs.requests import Ask, Embed, Rerank
    from edge.resident import ResidentWatch
    from edge.runtimes.embedder import Embedder
    from edge.runtimes.reranker import Reranker
    from edge.trace import Trace

Result = TypeVar("Result")


class Home(Protocol):
    """Opens what a verb needs. What is open inside a block may be closed behind it."""

    trace: Trace
    limit: int

    def peak(self) -> int:
        """The most anonymous memory that the process was seen to hold, in bytes."""

    def collections(self, places: Mapping[str, str], candidates: int) -> AbstractContextManager[Together]:
        """Collections, for searches with so many candidates."""

    def refresh(self, root: str, query: str) -> None:
        """Brings the collection of a project up to date, for a query first."""

    def rerank(self, asked: Rerank, work: Callable[[Reranker], Result]) -> Result:
        """What `work` returns for the open reranker."""

    def embed(self, asked: Embed, work: Callable[[Embedder], Result]) -> Result:
        """What `work` returns for the open embedder."""

    def assistant(self, asked: Ask) -> AbstractContextManager[Assistant]:
        """The assistant that answers a question."""

    def memory(self, asked: OfMemory) -> AbstractContextManager[Memory]:
        """Bound to the scope of a request."""

    def ending(self, cancel: Callable[[], None]) -> AbstractContextManager[None]:
        """The user may end an answer by `cancel` inside."""


class OwnHome:
    """This process. A command whose work the server does never enters it."""

    trace: Trace
    _watch: ResidentWatch

    def __init__(
        self, config: Config, trace: Path | None = None, *, max_tokens: int | None = None, kv_cache: bool = True
    ) -> None:
        """`trace`: file for a trace. `max_tokens`: longest sequence of reranker and embedder."""
        self.config = config
        self.limit = config.memory
        self._file = trace
        self._max_tokens = max_tokens
        self._kv_cache = kv_cache
        self._worked = False

    def __enter__(self) -> OwnHome:
        from edge.resident import ResidentWatch
        from edge.trace import Trace

        self.trace = Trace(events=self._file is not None)
        self._worked = True
        self._watch = ResidentWatch().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)

    def peak(self) -> int:
        self._watch.sample()
        return self._watch.high_water

    def write_trace(self) -> None:
        if self._file is not None and self._worked:
            self.trace.write(self._file)

    @contextmanager
    def collections(self, places: Mapping[str, str], candidates: int) -> Iterator[Together]:
        from edge.apps.collection.collection import Together

        with Together.opened(places, self.config, self.trace, candidates=candidates) as opened:
            yield opened

    def refresh(self, root: str, query: str) -> None:
        from edge.apps.collection.project import refresh

        refresh(root, query, self.config)

    def rerank(self, asked: Rerank, work: Callable[[Reranker], Result]) -> Result:
        from edge.apps.store.models import check_texts
        from edge.runtimes.reranker import Reranker

        check_texts("ranking", "reranker", self.config, asked.texts, self._max_tokens, asked.query)
        with Reranker(config=self.config, max_tokens=self._max_tokens, trace=self.trace) as reranker:
            return work(reranker)

    def embed(self, asked: Embed, work: Callable[[Embedder], Result]) -> Result:
        from edge.apps.store.models import check_texts
        from edge.runtimes.embedder import Embedder

        check_texts("embedding", "embedder", self.config, asked.texts, self._max_tokens)
        with Embedder(config=self.config, max_tokens=self._max_tokens, trace=self.trace) as embedder:
            return work(embedder)

    @contextmanager
    def assistant(self, asked: Ask) -> Iterator[Assistant]:
        from edge.apps.assistant.assistant import Assistant

        with self.collections(asked.collections or {}, 2 * asked.pool) as collections:
            several = len(collections.collections) > 1
            with Assistant(
                collections if several else collections.first, pipeline=asked.pipeline, options=asked,
                kv_cache=self._kv_cache,
            ) as assistant:  # fmt: skip
                yield assistant

    @contextmanager
    def memory(self, asked: OfMemory) -> Iterator[Memory]:
        from edge.apps.memory.memory import Memory

        ids: dict[str, Any] = asked.ids
        with Memory(asked.path, **ids, config=self.config, trace=self.trace) as memory:
            yield memory

    def ending(self, cancel: Callable[[], None]) -> AbstractContextManager[None]:
        """Ctrl-C."""
        return interruptible(cancel)
