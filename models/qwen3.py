"""Qwen3 decoders (Qwen team, 2025) as Qwen3-Reranker and Qwen3-Embedding, with the instructions of their model cards;
Qwen2 embedders, which have biases where Qwen3 norms queries and keys."""

from __future__ import annotations

import re
from dataclasses import replace

from edge.errors import ModelError
from edge.models.family import Config, Family, activation, number
from edge.models.keys import OFF, SHAPE, Keys, words
from edge.models.rotary import rope_theta, rotary_spec
from edge.models.spec import HeadSpec, ModelSpec, Precision

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
    """A checkpoint's tensor name without its `model.` prefix; None for a tensor that inference does not use."""
    name = name.removeprefix("model.")
    return name if _USED.match(name) else None


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json. ModelError for sliding windows or scaled rotary positions."""
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise ModelError("config.json: layer_types other than full_attention are not supported")
    causal = config.get("is_causal", True)
    if head.kind == "yes-no" and causal is not True:
        raise ModelError(f"config.json: is_causal = {causal!r} is not supported in a reranker of yes and no")
    theta = rope_theta(config.get("rope_parameters") or {}, number(config, "rope_theta", 10_000.0))
    second = config.get("model_type") == "qwen2"
    return rotary_spec(
        {"num_key_value_heads": 32, **({} if second else {"head_dim": 128}), **config},
        head,
        precision,
        "qwen2" if second else "qwen3",
        activation=activation(config, "silu"),
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope_theta=theta,
        causal=bool(causal),
        qk_norm=not second,
        bias=second,
    )


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
        used=SHAPE
        | words(
            "num_key_value_heads head_dim hidden_act rms_norm_eps rope_theta rope_parameters layer_types is_causal"
            " tie_word_embeddings"
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
