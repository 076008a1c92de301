"""Qwen3 decoders (Qwen team, 2025) in their two retrieval forms, Qwen3-Reranker and Qwen3-Embedding; Qwen2 embedders.

Qwen2 has biases of queries, keys and values where Qwen3 norms queries and keys.

The reranker's instruction template and the embedder's query instruction come from the two model cards.
"""

from __future__ import annotations

import re
from dataclasses import replace

from edge.errors import ModelError
from edge.models.family import Config, Family, activation, number, whole
from edge.models.keys import OFF, Keys, words
from edge.models.spec import HeadSpec, LayerSpec, ModelSpec, Precision

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The task that both model cards use by default."""

_USED = re.compile(r"(embed_tokens|layers\.\d+|norm|lm_head|score)\.")

LAYER = {
    "norm1.weight": ("layers.{i}.input_layernorm.weight",),
    "norm2.weight": ("layers.{i}.post_attention_layernorm.weight",),
    "q_norm.weight": ("layers.{i}.self_attn.q_norm.weight",),
    "k_norm.weight": ("layers.{i}.self_attn.k_norm.weight",),
    "qkv.weight": tuple(f"layers.{{i}}.self_attn.{name}_proj.weight" for name in "qkv"),
    "out.weight": ("layers.{i}.self_attn.o_proj.weight",),
    "up.weight": ("layers.{i}.mlp.gate_proj.weight", "layers.{i}.mlp.up_proj.weight"),
    "down.weight": ("layers.{i}.mlp.down_proj.weight",),
}


def reranker_head() -> HeadSpec:
    """The head of Qwen3-Reranker: its chat template, and the probability of `yes` against `no` as the next token."""
    return HeadSpec(
        kind="yes-no",
        prefix=(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
            'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
            f"<Instruct>: {INSTRUCTION}\n<Query>: "
        ),
        infix="\n<Document>: ",
        suffix="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        no_token="no",
        yes_token="yes",
    )


def embedder_head() -> HeadSpec:
    """The head of Qwen3-Embedding: the last token's state (its tokenizer appends `<|endoftext|>`), unit length."""
    return HeadSpec(kind="last-token", normalize=True, query_prefix=f"Instruct: {INSTRUCTION}\nQuery:")


def sanitize(name: str) -> str | None:
    """A checkpoint's tensor name without its `model.` prefix (embedding checkpoints have none). None for a tensor that
    inference does not use."""
    name = name.removeprefix("model.")
    return name if _USED.match(name) else None


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json.

    Raises:
        ModelError: something in the config is missing or not supported (sliding windows, scaled rotary positions).
    """
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise ModelError("config.json: layer_types other than full_attention are not supported")
    causal = config.get("is_causal", True)
    if head.kind == "yes-no" and causal is not True:
        raise ModelError(f"config.json: is_causal = {causal!r} is not supported in a reranker of yes and no")
    theta = rope_theta(config.get("rope_parameters") or {}, number(config, "rope_theta", 10_000.0))
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    kv_heads = whole(config, "num_key_value_heads") if "num_key_value_heads" in config else heads
    if heads % kv_heads:
        raise ModelError(f"config.json: {heads} heads cannot share {kv_heads} key-value heads evenly")
    second = config.get("model_type") == "qwen2"
    layer = LayerSpec(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=whole(config, "head_dim") if config.get("head_dim") else hidden // heads,
        ffn=whole(config, "intermediate_size"),
        activation=activation(config, "silu"),
        gated=True,
        norm="rms",
        norm_first=True,
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope_theta=theta,
        causal=bool(causal),
        qk_norm=not second,
        bias=second,
        precision=precision,
    )
    return ModelSpec(
        architecture="qwen2" if second else "qwen3",
        layers=whole(config, "num_hidden_layers"),
        layer=layer,
        vocab=whole(config, "vocab_size"),
        positions=0,
        position_offset=0,
        token_types=0,
        max_tokens=whole(config, "max_position_embeddings"),
        head=head,
    )


def rope_theta(rope: object, default: float) -> float:
    """The base of the rotary positions from a dictionary that transformers 5 writes.

    Raises:
        ModelError: the positions are scaled, or the dictionary has an unknown key.
    """
    if not isinstance(rope, dict):
        raise ModelError(f"config.json: rope_parameters = {rope!r} is not supported, an object is needed")
    Keys(
        used=words("rope_theta"), accepted={"rope_type": ("default", None), "partial_rotary_factor": (1.0, 1, None)}
    ).check("config.json: rope_parameters", rope)
    return number(rope, "rope_theta", default)


FAMILY = Family(
    architecture="qwen3",
    spec_from_config=spec_from_config,
    sanitize=sanitize,
    prefix="model.",
    layer=LAYER,
    table="embed_tokens.weight",
    embed={},
    final_norm="norm.weight",
    output="lm_head.weight",
    keys=Keys(
        used=words(
            "hidden_size num_attention_heads num_key_value_heads num_hidden_layers head_dim intermediate_size"
            " hidden_act rms_norm_eps rope_theta rope_parameters vocab_size max_position_embeddings layer_types"
            " is_causal tie_word_embeddings"
        ),
        harmless=words("sliding_window max_window_layers"),  # without use_sliding_window they do nothing
        accepted={"use_sliding_window": OFF, "attention_bias": OFF, "rope_scaling": (None,)},
    ),
)

QWEN2 = replace(
    FAMILY,
    architecture="qwen2",
    layer={name: parts for name, parts in LAYER.items() if "_norm." not in name}
    | {"qkv.bias": tuple(f"layers.{{i}}.self_attn.{name}_proj.bias" for name in "qkv")},
    output=None,  # a decoder that answers yes or no is a Qwen3
    absent=frozenset(("out.bias", "up.bias", "down.bias")),
)
