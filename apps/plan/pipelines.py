"""The assistant's pipelines as schemas of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edge.apps.assistant.base import AskOptions
from edge.apps.assistant.pipelines import INTERVAL
from edge.planner.hardware import MODELS, Model
from edge.planner.schema import RagSchema

_OPTIONS = AskOptions()
_PASSAGE = 200
"""The approximate number of tokens of a collection's passage."""

_QUESTION = 120
"""The approximate number of tokens of the instructions and the question."""

_READ = _QUESTION + _OPTIONS.given(writes=True) * _PASSAGE
_ANSWER = 128
"""The approximate number of tokens of an answer; at most 256 are written."""

EMBEDDER = Model("embedder", 22.7e6, 6, 384, weight_nbytes=4)
RERANKER = Model("reranker", 22.7e6, 6, 384, weight_nbytes=4)
"""The sizes of the default models."""


def _schemas() -> dict[str, RagSchema]:
    llm = MODELS["llama-8b"]
    plain = RagSchema(
        "plain", llm, prefix_tokens=_READ, decode_tokens=_ANSWER, vectors=1e6, vector_nbytes=388, scanned=0.05,
        encoder=EMBEDDER, encoder_tokens=32, reranker=RERANKER, candidates=_OPTIONS.pool, passage_tokens=_PASSAGE,
    )  # fmt: skip
    rounds = _OPTIONS.rounds
    return {
        "plain": plain,
        # A hypothetical passage of up to 128 tokens is embedded beside the question.
        "hyde": replace(
            plain, name="hyde", rewriter=llm, rewrite_prefix=_QUESTION, rewrite_decode=128, encoder_tokens=160
        ),
        # Up to four questions are searched as one batch, and share the pool.
        "subquestion": replace(
            plain, name="subquestion", rewriter=llm, rewrite_prefix=_QUESTION, rewrite_decode=80,
            queries_per_retrieval=4, encoder_tokens=4 * 32,
        ),
        # A round asks a narrower question, answers it in up to 96 tokens, and judges whether that is enough in 4.
        "iterative": replace(
            plain, name="iterative", rewriter=llm, rewrite_prefix=2 * _QUESTION, rewrite_decode=32, rewrites=rounds,
            rounds=rounds, retrieval_frequency=rounds, encoder_tokens=rounds * 32,
            drafts=2 * rounds, draft_prefix=(_READ + 2 * _QUESTION) // 2, draft_decode=50,
        ),
        "iter-retgen": replace(
            plain, name="iter-retgen", rounds=rounds, retrieval_frequency=rounds,
            encoder_tokens=32 + (rounds - 1) * (32 + _ANSWER), drafts=rounds - 1, draft_prefix=_READ,
            draft_decode=_ANSWER,
        ),
        # A sentence that is uncertain is looked up while the answer is written, up to `rounds` times.
        "flare": replace(plain, name="flare", retrieval_frequency=1 + rounds, encoder_tokens=(1 + rounds) * 32),
        # Decides whether to retrieve; then drafts from each of three passages, with two judgements each. The best draft
        # is the answer.
        "self-rag": replace(
            plain, name="self-rag", rewriter=llm, rewrite_prefix=_QUESTION, rewrite_decode=4, decode_tokens=0,
            drafts=9, draft_prefix=_QUESTION + 2 * _PASSAGE // 3, draft_decode=(_ANSWER + 4 + 4) // 3,
        ),
        "piperag": replace(
            plain, name="piperag", retrieval_frequency=_ANSWER / INTERVAL, overlapped=True,
            encoder_tokens=_ANSWER // INTERVAL * 64,
        ),
    }  # fmt: skip


PIPELINE_SCHEMAS: Mapping[str, RagSchema] = _schemas()
"""The schemas by the names of `--pipeline`. They assume a collection of a million passages, the default embedder and
reranker, and a generator of 8 billion weights. Lengths of replies are the prompts' limits, or about half of them where
models stop early."""
