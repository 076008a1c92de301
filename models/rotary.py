"""Models whose layers norm their inputs, rotate queries and keys, and have gates: Qwen3 decoders (Qwen team, 2025) as
Qwen3-Reranker and Qwen3-Embedding with the instructions of their model cards, Qwen2 embedders, Gemma 3 encoders
(EmbeddingGemma, Vera et al., 2025) and ModernBERT (Warner et al., 2024)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edge.errors import ModelError
from edge.models.family import OFF, SHAPE, Config, Family, Keys, activation, number, whole, words
from edge.models.spec import Architecture, HeadSpec, LayerSpec, ModelSpec, Precision

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def _rotary_spec(
    config: Config,
    head: HeadSpec,
    precision: Precision,
    architecture: Architecture,
    local_layers: tuple[int, ...] = (),
    **layer: Any,
) -> ModelSpec:
    """The description from config.json; `layer` are fields of `LayerSpec` in which these models differ."""
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    shared, given = config.get("num_key_value_heads"), config.get("head_dim")
    kv_heads = heads if shared is None else whole(config, "num_key_value_heads")
    size = hidden // heads if given is None else whole(config, "head_dim")
    if heads % kv_heads or size % 2 or (given is None and hidden % heads):
        raise ModelError(
            f"config.json: hidden_size = {hidden}, num_attention_heads = {heads}, num_key_value_heads = {kv_heads} and "
            f"heads of {size} numbers do not fit one another"
        )
    common = {"gated": True, "norm": "rms", "norm_first": True, "causal": False, "bias": False, "precision": precision}
    return ModelSpec(
        architecture=architecture,
        layers=whole(config, "num_hidden_layers"),
        layer=LayerSpec(
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_size=size,
            ffn=whole(config, "intermediate_size"),
            **{**common, **layer},
        ),
        vocab=whole(config, "vocab_size"),
        positions=0,
        position_offset=0,
        token_types=0,
        max_tokens=whole(config, "max_position_embeddings"),
        head=head,
        local_layers=local_layers,
    )


def _local_layers(config: Config, every: int, first: int) -> tuple[int, ...]:
    """The layers that attend within a window: as `layer_types` says, else all but layer `first` and each `every`-th
    before and after it."""
    layers, kinds = whole(config, "num_hidden_layers"), config.get("layer_types")
    if kinds is None:
        return tuple(number for number in range(min(layers, 1000)) if (number - first) % every)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (_GLOBAL, _LOCAL) for kind in kinds):
        raise ModelError(f"config.json: layer_types is not one of {_GLOBAL} and {_LOCAL} for each of {layers} layers")
    return tuple(number for number, kind in enumerate(kinds) if kind == _LOCAL)


def _window(config: Config, key: str, default: int) -> int:
    """Tokens on each side that a token of a local layer attends to."""
    tokens = whole({key: default, **config}, key) // 2
    if not tokens:
        raise ModelError(f"config.json: {key} = 1 is not supported")
    return tokens


def _layer_theta(config: Config, kind: str, key: str, default: float) -> float:
    """The rotary base of a kind of layers (`key` in older configurations). ModelError if scaled."""
    ropes = config.get("rope_parameters") or {}
    if not isinstance(ropes, Mapping) or not set(ropes) <= {_GLOBAL, _LOCAL}:
        raise ModelError(f"config.json: rope_parameters = {ropes!r} is not supported, only those of layer_types")
    return rope_theta(ropes.get(kind) or {}, number(config, key, default))


def rope_theta(rope: object, default: float) -> float:
    """The base of the rotary positions from a dictionary of transformers 5. ModelError if they are scaled."""
    if not isinstance(rope, dict):
        raise ModelError(f"config.json: rope_parameters = {rope!r} is not supported, an object is needed")
    Keys(
        used=words("rope_theta"), accepted={"rope_type": ("default", None), "partial_rotary_factor": (1.0, 1, None)}
    ).check("config.json: rope_parameters", rope)
    return number(rope, "rope_theta", default)


INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The task that both model cards use by default."""

_QWEN_USED = re.compile(r"(embed_tokens|layers\.\d+|norm|lm_head|score)\.")

_QWEN_LAYER = {
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


def _sanitize_qwen(name: str) -> str | None:
    """A checkpoint's tensor name without its `model.` prefix; None for a tensor that inference does not use."""
    name = name.removeprefix("model.")
    return name if _QWEN_USED.match(name) else None


def _qwen_spec(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json. ModelError for sliding windows or scaled rotary positions."""
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise ModelError("config.json: layer_types other than full_attention are not supported")
    causal = config.get("is_causal", True)
    if head.kind == "yes-no" and causal is not True:
        raise ModelError(f"config.json: is_causal = {causal!r} is not supported in a reranker of yes and no")
    theta = rope_theta(config.get("rope_parameters") or {}, number(config, "rope_theta", 10_000.0))
    second = config.get("model_type") == "qwen2"
    return _rotary_spec(
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


QWEN3 = Family(
    architecture="qwen3",
    spec_from_config=_qwen_spec,
    sanitize=_sanitize_qwen,
    prefix="model.",
    layer=_QWEN_LAYER,
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
    QWEN3,
    architecture="qwen2",
    layer={name: parts for name, parts in _QWEN_LAYER.items() if "_norm." not in name}
    | {"qkv.bias": tuple(f"layers.{{i}}.self_attn.{name}_proj.bias" for name in "qkv")},
    output=None,  # a decoder that answers yes or no is a Qwen3
    absent=frozenset(("out.bias", "up.bias", "down.bias")),
)


def _gemma_spec(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json. ModelError for causal attention or scaled rotary positions."""
    if config.get("use_bidirectional_attention") is not True:
        raise ModelError("config.json: without use_bidirectional_attention the model is no encoder, and not supported")
    config = {"sliding_window_pattern": 6, "head_dim": 256, "num_key_value_heads": 4, **config}
    if config.get("query_pre_attn_scalar", 256) != config["head_dim"]:
        raise ModelError("config.json: a query_pre_attn_scalar other than head_dim is not supported")
    pattern = whole(config, "sliding_window_pattern")
    return _rotary_spec(
        config,
        head,
        precision,
        "gemma3",
        _local_layers(config, pattern, pattern - 1),
        activation=activation(config, "gelu_pytorch_tanh", "hidden_activation"),
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope_theta=_layer_theta(config, _GLOBAL, "rope_theta", 1_000_000.0),
        qk_norm=True,
        window=_window(config, "sliding_window", 4096),
        local_theta=_layer_theta(config, _LOCAL, "rope_local_base_freq", 10_000.0),
        post_norms=True,
    )


GEMMA3 = Family(
    architecture="gemma3",
    spec_from_config=_gemma_spec,
    sanitize=_sanitize_qwen,
    prefix="model.",
    layer={
        **_QWEN_LAYER,
        "norm2.weight": ("layers.{i}.pre_feedforward_layernorm.weight",),
        "norm3.weight": ("layers.{i}.post_attention_layernorm.weight",),
        "norm4.weight": ("layers.{i}.post_feedforward_layernorm.weight",),
    },
    table="embed_tokens.weight",
    embed={},
    scaled=True,
    norm_offset=1.0,
    final_norm="norm.weight",
    keys=Keys(
        used=SHAPE
        | words(
            "num_key_value_heads head_dim hidden_activation rms_norm_eps rope_theta rope_local_base_freq"
            " rope_parameters layer_types sliding_window sliding_window_pattern query_pre_attn_scalar"
            " use_bidirectional_attention"
        ),
        harmless=words("tie_word_embeddings final_logit_softcapping _sliding_window_pattern"),
        accepted={"attention_bias": OFF, "rope_scaling": (None,), "attn_logit_softcapping": (None,)},
    ),
)


_MODERN_USED = ("embeddings.", "layers.", "final_norm.", "head.", "classifier.")


def _sanitize_modern(name: str) -> str | None:
    """A checkpoint's tensor name without its `model.` prefix. None for the masked-language head's output."""
    name = name.removeprefix("model.")
    return name if name.startswith(_MODERN_USED) else None


def _modern_spec(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json. ModelError for biases or scaled rotary positions."""
    if head.kind == "classifier":
        pooling = config.get("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            raise ModelError(f"config.json: classifier_pooling = {pooling!r} is not supported, only cls and mean")
        acts = activation(config, "gelu", "classifier_activation")
        head = replace(head, activation=acts, pooled="first" if pooling == "cls" else "all", normed=True)
    every = whole({"global_attn_every_n_layers": 3, **config}, "global_attn_every_n_layers")
    return _rotary_spec(
        {"max_position_embeddings": 8192, **config},
        head,
        precision,
        "modernbert",
        _local_layers(config, every, 0),
        activation=activation(config, "gelu", "hidden_activation"),
        norm="layer",
        norm_eps=number(config, "norm_eps", 1e-5),
        rope_theta=_layer_theta(config, _GLOBAL, "global_rope_theta", 160_000.0),
        qk_norm=False,
        window=_window(config, "local_attention", 128),
        local_theta=_layer_theta(config, _LOCAL, "local_rope_theta", 10_000.0),
    )


MODERNBERT = Family(
    architecture="modernbert",
    spec_from_config=_modern_spec,
    sanitize=_sanitize_modern,
    prefix="model.",
    layer={
        "norm1.weight": ("layers.{i}.attn_norm.weight",),
        "norm2.weight": ("layers.{i}.mlp_norm.weight",),
        "qkv.weight": ("layers.{i}.attn.Wqkv.weight",),
        "out.weight": ("layers.{i}.attn.Wo.weight",),
        "up.weight": ("layers.{i}.mlp.Wi.weight",),
        "down.weight": ("layers.{i}.mlp.Wo.weight",),
    },
    absent=frozenset(("norm1.bias", "norm2.bias", "norm.bias", "dense.bias")),
    plain_first=True,
    table="embeddings.tok_embeddings.weight",
    embed={"norm.weight": "embeddings.norm.weight"},
    dense="head.dense",
    dense_norm="head.norm.weight",
    out="classifier",
    final_norm="final_norm.weight",
    keys=Keys(
        used=SHAPE
        | words(
            "hidden_activation norm_eps layer_types global_attn_every_n_layers local_attention rope_parameters"
            " global_rope_theta local_rope_theta classifier_pooling classifier_activation"
        ),
        harmless=words(
            "tie_word_embeddings initializer_cutoff_factor embedding_dropout mlp_dropout deterministic_flash_attn"
            " decoder_bias sparse_prediction sparse_pred_ignore_index reference_compile repad_logits_with_grad"
            " layer_norm_eps position_embedding_type"  # published files have both; no code reads them
        ),
        accepted={
            "attention_bias": OFF,
            "mlp_bias": OFF,
            "norm_bias": OFF,
            "classifier_bias": OFF,
            "rope_scaling": (None,),
            "is_causal": OFF,
            "causal_mask": OFF,
        },
    ),
)
