"""Pipelines written down as schemas, and schemas read from files."""

from __future__ import annotations

import json

import pytest

from edge.errors import InputError
from edge.planner.schedule import cluster_placements
from edge.planner.tables import PUBLISHED, RagSchema


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_schema_survives_being_written(name: str) -> None:
    schema = PUBLISHED[name]
    assert RagSchema.from_json(json.dumps(schema.to_json())) == schema


def test_a_model_may_be_named_or_described() -> None:
    text = '{"name": "mine", "llm": {"params": 135e6, "kv_nbytes": 46080}, "reranker": "encoder-120m"}'
    schema = RagSchema.from_json(text)
    assert schema.llm.params == 135e6
    assert schema.llm.name == "llm"
    assert schema.reranker is not None
    assert [stage.name for stage in schema.stages()] == ["retrieve", "rerank", "prefill", "decode"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 100000, "not valid JSON"),
        ('{"llm": "llama-8b"}', "lacks the field 'name'"),
        ('{"name": "a", "llm": "llama-8b", "color": 1}', "no field 'color'"),
        ('{"name": "a", "llm": "gpt"}', "no model 'gpt'"),
        ('{"name": "a", "llm": 7}', "name of a model or an object"),
        ('{"name": "a", "llm": null}', "name of a model or an object"),
        ('{"name": "a", "llm": {"layers": 3}}', "number of its weights"),
        ('{"name": "a", "llm": {"params": 1, "size": 3}}', "no field 'size'"),
        ('{"name": "a", "llm": {"params": -1}}', "above 0"),
        ('{"name": "a", "llm": {"params": "many"}}', "llm.params of the schema is a number"),
        ('{"name": "a", "llm": "llama-8b", "prefix_tokens": 1.5}', "prefix_tokens of the schema is a whole number"),
        ('{"name": "a", "llm": "llama-8b", "prefix_tokens": 0}', "above 0"),
        ('{"name": "a", "llm": "llama-8b", "decode_tokens": -1}', "at least 0"),
        ('{"name": "a", "llm": "llama-8b", "scanned": 2}', "scanned share"),
        ('{"name": "a", "llm": "llama-8b", "rounds": 3}', "retrieval frequency"),
        ('{"name": "a", "llm": "llama-8b", "overlapped": "yes"}', "true or false"),
        ('{"name": "a", "llm": "llama-8b", "vectors": NaN}', "a number"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        RagSchema.from_json(text)


def test_placements_are_all_cuts_of_what_comes_before_the_decoder() -> None:
    """Case 4: rewrite-prefill, rewrite-decode, rerank and prefill in their order, 2^3 cuts."""
    placements = cluster_placements(PUBLISHED["case-4"])
    assert len(placements) == len(set(placements)) == 8
    for groups in placements:
        assert groups[0] == ("retrieve",)
        assert groups[-1] == ("decode",)
        joined = [name for group in groups[1:-1] for name in group]
        assert joined == ["rewrite-prefill", "rewrite-decode", "rerank", "prefill"]


def test_published_workloads_have_the_sizes_of_table_3_3() -> None:
    """Section 3.4: 32 tokens asked, 5 passages of 100 in a prompt of 512, 256 tokens answered, 0.1 % scanned."""
    for schema in PUBLISHED.values():
        assert (schema.prefix_tokens, schema.decode_tokens) == (512, 256)
    for name in ("case-1", "case-1-70b", "case-3", "case-4"):
        assert (PUBLISHED[name].vectors, PUBLISHED[name].vector_nbytes, PUBLISHED[name].scanned) == (64e9, 96, 0.001)
    long = PUBLISHED["case-2"]  # a million tokens; every vector of 768 components in 16 bits is compared
    assert (long.encoder_tokens, long.vectors, long.vector_nbytes, long.scanned) == (10**6, 10**4, 1536, 1.0)
    assert (PUBLISHED["case-3"].retrieval_frequency, PUBLISHED["case-3"].looping) == (4, 3)
    rewriting = PUBLISHED["case-4"]
    assert (rewriting.rewrite_prefix, rewriting.rewrite_decode) == (32, 32)
    assert (rewriting.candidates, rewriting.passage_tokens) == (16, 100)
    models = {name: (schema.llm.params, schema.llm.nbytes) for name, schema in PUBLISHED.items()}
    assert models["case-1"] == (8e9, 16e9)
    assert all(models[name] == (70e9, 140e9) for name in models if name != "case-1")
    assert rewriting.rewriter is not None
    assert rewriting.rewriter.params == 8e9
    assert rewriting.reranker == long.encoder
    assert long.encoder is not None
    assert long.encoder.params == 120e6
