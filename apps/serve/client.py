"""`Client`: the user's server for Python programs, with the methods and results of the classes that work alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.apps.collection.registry import locate
from edge.apps.serve.connection import MODELS, OwnServer, Refused, Unserved
from edge.apps.verbs.options import RequestOptions
from edge.apps.verbs.requests import Embed, Rerank, Search, SearchOptions, search_options, vectors_of
from edge.apps.verbs.verb import EMBED, RERANK, SEARCH, Deaf, Verb, served
from edge.config import Config
from edge.errors import CapabilityError, EdgeError, InputError
from edge.public_calls import checked_arguments

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from edge.apps.collection.hits import Hit
    from edge.runtimes.reranker import Ranked


@checked_arguments
class Client:
    """A server of the same user (`edge serve`), over its Unix socket. Thread-safe; there is nothing to close.

    Examples:
        >>> client = Client()
        >>> best = client.rank("who wrote Hamlet", ["Shakespeare wrote it.", "It rains."], top_k=1)
        >>> hits = client.search("when does the river flood", collection="notes")
    """

    def __init__(self, *, config: Config | None = None) -> None:
        """Finds the server.

        Args:
            config: settings that the server must have, too, so that results equal those of working alone.

        Raises:
            CapabilityError: none runs, or it has other settings.
        """
        self._config = config or Config.load()
        try:
            self._connection = OwnServer()
            self._connection.check(self._config, MODELS)
        except Unserved as reason:
            raise CapabilityError(f"there is no server that can be used: {reason}") from None

    def rank(
        self,
        query: str,
        docs: Sequence[str],
        top_k: int | None = None,
        *,
        retrieved: bool = False,
        mode: str | None = None,
        threshold: str | float | None = None,
    ) -> list[Ranked]:
        """As `Reranker.rank`, by the reranker of `config`.

        Raises:
            InputError: the server cannot take the request.
            CapabilityError: the server does not do it, or has ended.
        """
        from edge.runtimes.reranker import Ranked

        texts = list(docs)
        asked = Rerank(
            query=query, texts=texts, top_k=top_k, retrieved=retrieved, model=self._config.reranker or None,
            mode=mode or self._config.mode,
            threshold=str(self._config.threshold if threshold is None else threshold),
        )  # fmt: skip
        answer = self._asked(RERANK, asked)
        return [Ranked(index, score, texts[index], relevance) for index, score, relevance in answer["results"]]

    def embed(self, texts: Sequence[str], *, query: bool = False) -> npt.NDArray[np.float32]:
        """As `Embedder.embed`, by the embedder of `config`: [n, dim] float32. Raises as `rank` does."""
        given = list(texts)
        return vectors_of(
            self._asked(EMBED, Embed(texts=given, query=query, model=self._config.embedder or None)), len(given)
        )

    def search(
        self,
        query: str,
        top_k: int | None = None,
        *,
        collection: str | Path = "",
        options: SearchOptions | None = None,
        **named: Any,
    ) -> list[Hit]:
        """Searches as `Collection.search` does. Raises as `rank` does.

        Args:
            collection: a name or a directory, as `edge search -c` takes it.
        """
        from edge.apps.collection.hits import hit_from_json

        options = search_options(top_k, options, named)
        given = {each.name: getattr(options, each.name) for each in fields(options)}
        asked = Search(**given, query=query, collections={"": str(locate(collection or None))})
        return [hit_from_json(hit) for hit in self._asked(SEARCH, asked)["hits"]]

    def _asked(self, verb: Verb, asked: RequestOptions) -> Any:
        try:
            self._connection.check(self._config, verb.settings)
            return served(self._connection, verb, asked, Deaf())
        except Refused as reason:
            raise (InputError if reason.status == 422 else EdgeError)(str(reason)) from None
        except Unserved as reason:
            raise CapabilityError(f"the server was not used: {reason}") from None
