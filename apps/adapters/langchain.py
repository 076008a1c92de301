"""LangChain: the reranker as a document compressor, collections and memories as retrievers.

pip install 'edge-rag[langchain]'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from edge.apps.collection.collection import Collection
from edge.apps.memory.memory import Memory
from edge.runtimes.reranker import Reranker


class EdgeCompressor(BaseDocumentCompressor):
    """Keeps the documents that answer the query best, in that order, with `relevance_score` in their metadata.

    >>> compressor = EdgeCompressor(reranker=Reranker(memory="300MB"), top_n=5)
    >>> ContextualCompressionRetriever(base_compressor=compressor, base_retriever=retriever)

    Attributes:
        reranker: the caller must close it.
        top_n: number of documents to keep.
        retrieved: whether the documents are in a retriever's order, which is then blended in.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    reranker: Reranker
    top_n: int = 5
    retrieved: bool = True

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        if not documents:
            return []
        texts = [document.page_content for document in documents]
        return [
            Document(
                id=documents[ranked.index].id,
                page_content=ranked.text,
                metadata={**documents[ranked.index].metadata, "relevance_score": ranked.score},
            )
            for ranked in self.reranker.rank(query, texts, self.top_n, retrieved=self.retrieved)
        ]


class CollectionRetriever(BaseRetriever):
    """Searches an indexed collection.

    Attributes:
        collection: the caller must close it.
        k: number of documents.
        rerank: whether the cross-encoder reranks them.
        where: conditions on the files, as `Filters.parse` takes them.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    collection: Collection
    k: int = 5
    rerank: bool = True
    where: Sequence[str] = ()

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        hits = self.collection.search(query, self.k, rerank=self.rerank, where=self.where)
        return [
            Document(
                id=str(hit.id),
                page_content=hit.text,
                metadata={
                    "source": hit.path, "line_start": hit.line_start, "line_end": hit.line_end, "page": hit.page,
                    "title": hit.title, "relevance_score": hit.score, "mail": hit.mail and asdict(hit.mail),
                },
            )
            for hit in hits
        ]  # fmt: skip


class MemoryRetriever(BaseRetriever):
    """Searches a memory, which must be bound to a scope.

    Attributes:
        memory: the caller must close it.
        k: number of memories.
        options: further arguments of `Memory.search`, such as `filters` or `rerank`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    memory: Memory
    k: int = 5
    options: dict[str, Any] = {}  # noqa: RUF012  (pydantic copies defaults)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        found = self.memory.search(query, self.k, **self.options)["results"]
        return [
            Document(
                id=hit["id"],
                page_content=hit["memory"],
                metadata={
                    **{k: v for k, v in hit.items() if k not in ("id", "memory")},
                    "relevance_score": hit["score"],
                },
            )
            for hit in found
        ]
