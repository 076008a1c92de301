"""LlamaIndex: the reranker as a node postprocessor.

pip install 'edge-rag[llama-index]'
"""

from __future__ import annotations

from llama_index.core.bridge.pydantic import ConfigDict
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from edge.errors import InputError
from edge.runtimes.reranker import Reranker


class EdgeRerank(BaseNodePostprocessor):
    """Keeps the nodes that answer the query best, in that order, with the reranker's score.

    >>> index.as_query_engine(node_postprocessors=[EdgeRerank(reranker=Reranker(memory="300MB"), top_n=5)])

    Attributes:
        reranker: the caller must close it.
        top_n: number of nodes to keep.
        retrieved: whether the nodes are in a retriever's order, which is then blended in.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    reranker: Reranker
    top_n: int = 5
    retrieved: bool = True

    @classmethod
    def class_name(cls) -> str:
        return "EdgeRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("reranking needs the query: pass query_bundle or query_str")
        if not nodes:
            return []
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        ranked = self.reranker.rank(query_bundle.query_str, texts, self.top_n, retrieved=self.retrieved)
        return [NodeWithScore(node=nodes[result.index].node, score=result.score) for result in ranked]
