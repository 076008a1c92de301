"""The adapters against the real frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from making.synth import synth
from naive.program import write_tiny_models
from naive.words import WordEmbedder, WordReranker

from edge.apps.memory.memory import Memory
from edge.errors import InputError
from edge.runtimes.reranker import Reranker

TEXTS = ["The river floods in spring.", "Cells make energy from sugar.", "Old ice looks blue.", "Bread needs time."]
QUERY = "when does the river flood"


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reranker]:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    synth("tiny-bert", folder).close()
    with Reranker(folder, memory="10GB") as model:
        yield model


@pytest.mark.parametrize("retrieved", [True, False])
def test_langchain_compressor(reranker: Reranker, retrieved: bool) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document

    from edge.apps.adapters.langchain import EdgeCompressor

    documents = [Document(page_content=text, id=f"d{n}", metadata={"n": n}) for n, text in enumerate(TEXTS)]
    compressor = EdgeCompressor(reranker=reranker, top_n=3, retrieved=retrieved)
    kept = compressor.compress_documents(documents, QUERY)
    expected = reranker.rank(QUERY, TEXTS, 3, retrieved=retrieved)
    assert [(d.id, d.page_content, d.metadata["n"]) for d in kept] == [
        (f"d{r.index}", r.text, r.index) for r in expected
    ]
    assert [d.metadata["relevance_score"] for d in kept] == pytest.approx([r.score for r in expected])
    assert "relevance_score" not in documents[0].metadata
    assert compressor.compress_documents([], QUERY) == []
    with pytest.raises(InputError):
        compressor.compress_documents(documents, " ")


def test_langchain_memory_retriever(tmp_path: Path) -> None:
    pytest.importorskip("langchain_core")
    from edge.apps.adapters.langchain import MemoryRetriever

    with Memory(tmp_path, user_id="ann", memory="10GB", embedder=WordEmbedder(), reranker=WordReranker()) as memory:
        memory.add(TEXTS, metadata={"k": 1})
        retriever = MemoryRetriever(memory=memory, k=2, options={"filters": {"k": 1}, "rerank": False})
        documents = retriever.invoke("the river floods")
        assert documents[0].page_content == TEXTS[0]
        assert len(documents) == 2
        assert documents[0].metadata["user_id"] == "ann"
        assert documents[0].metadata["relevance_score"] >= documents[1].metadata["relevance_score"]
        assert retriever.options is not MemoryRetriever(memory=memory).options


def test_langchain_collection_retriever(tmp_path: Path) -> None:
    pytest.importorskip("langchain_core")
    from edge.apps.adapters.langchain import CollectionRetriever
    from edge.apps.collection.collection import Collection
    from edge.config import Config

    write_tiny_models(tmp_path / "models")
    config = Config(memory=10**11, embedder="tiny-embedder", reranker="tiny", models_dir=str(tmp_path / "models"))
    with Collection(tmp_path / "collection", config=config) as collection:
        collection.add(TEXTS, ids=["a", "b", "c", "d"])
        documents = CollectionRetriever(collection=collection, k=2).invoke(QUERY)
        assert [d.page_content for d in documents] == [hit.text for hit in collection.search(QUERY, 2)]
        assert {d.metadata["source"] for d in documents} <= {"a", "b", "c", "d"}
        none = CollectionRetriever(collection=collection, where=["type:pdf"]).invoke(QUERY)
        assert none == []


@pytest.mark.parametrize("retrieved", [True, False])
def test_llama_index_postprocessor(reranker: Reranker, retrieved: bool) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core.schema import NodeWithScore, TextNode

    from edge.apps.adapters.llama_index import EdgeRerank

    nodes = [NodeWithScore(node=TextNode(text=text, id_=f"d{n}"), score=0.5) for n, text in enumerate(TEXTS)]
    postprocessor = EdgeRerank(reranker=reranker, top_n=3, retrieved=retrieved)
    kept = postprocessor.postprocess_nodes(nodes, query_str=QUERY)
    expected = reranker.rank(QUERY, TEXTS, 3, retrieved=retrieved)
    assert [(n.node.node_id, n.score) for n in kept] == [(f"d{r.index}", pytest.approx(r.score)) for r in expected]
    assert postprocessor.postprocess_nodes([], query_str=QUERY) == []
    with pytest.raises(InputError, match="needs the query"):
        postprocessor.postprocess_nodes(nodes)
