"""`Family`: one architecture's checkpoints, the names of the tensors and the meaning of the config. `Keys`: what each
key of a checkpoint's JSON files does here: it is used, it changes no result, or its value is refused. An unknown key is
refused by name unless it is null: it may change the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.errors import ModelError
from edge.models.checkpoint import read_json
from edge.models.clipping import steps
from edge.models.spec import Activation, Architecture, HeadSpec, LayerSpec, ModelSpec, Precision, TensorSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer


OFF = (False, None)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a JSON file: used, harmless to a pass in fp32 without dropout, or accepted by value."""

    used: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    accepted: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def check(self, file: str | Path, content: Mapping[str, Any]) -> None:
        """Checks all keys of a file. ModelError names the first that is unknown or has another value."""
        for key, value in content.items():
            if key in self.accepted:
                if not any(value == known and type(value) is type(known) for known in self.accepted[key]):
                    wanted = " or ".join(repr(known) for known in self.accepted[key])
                    raise ModelError(f"{file}: {key} = {_short(value)} is not supported, only {wanted}")
            elif value is not None and key not in self.used and key not in self.harmless:
                raise ModelError(
                    f"{file}: {key} = {_short(value)} may change the results, and this program does not know the key; "
                    "remove it from the file if it changes none"
                )


def _short(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 60 else f"{text[:57]}..."


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MONOTONIC = (None, "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity")

SHAPE = words("hidden_size num_attention_heads num_hidden_layers intermediate_size vocab_size max_position_embeddings")
"""Keys of most families, all used."""

CONFIG = Keys(
    used=words("model_type architectures"),
    harmless=words(
        # names, versions, and how the model is run, saved or trained
        "transformers_version dtype torch_dtype _name_or_path name_or_path _commit_hash tokenizer_class language"
        " use_cache output_hidden_states output_attentions return_dict use_return_dict torchscript use_bfloat16"
        " attn_implementation _attn_implementation _attn_implementation_autoset _attn_implementation_internal"
        " chunk_size_feed_forward gradient_checkpointing initializer_range initializer_factor transformers.js_config"
        " tf_legacy_loss problem_type finetuning_task task_specific_params unsloth_version unsloth_fixed"
        " hidden_dropout_prob attention_probs_dropout_prob attention_dropout hidden_dropout classifier_dropout dropout"
        # the number of labels is read from the classification head's weights
        " id2label label2id num_labels _num_labels"
        " pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id"
        # generation of text
        " decoder_start_token_id forced_bos_token_id forced_eos_token_id return_dict_in_generate output_scores prefix"
        " max_length min_length do_sample num_beams num_beam_groups num_return_sequences temperature top_k top_p"
        " typical_p repetition_penalty length_penalty diversity_penalty no_repeat_ngram_size early_stopping"
        " encoder_no_repeat_ngram_size bad_words_ids exponential_decay_length_penalty suppress_tokens"
        " begin_suppress_tokens remove_invalid_values tie_encoder_decoder output_past"
    ),
    accepted={
        "is_decoder": OFF,
        "is_encoder_decoder": OFF,
        "add_cross_attention": OFF,
        "cross_attention_hidden_size": (None,),
        "pruned_heads": ({}, None),
        "quantization_config": (None,),
        "auto_map": (None,),  # the model's own code may compute something else
        "sbert_ce_default_activation_function": _MONOTONIC,
    },
)
"""config.json of every family. A family adds its own keys."""

CROSS_ENCODER = Keys(harmless=words("version"), accepted={"activation_fn": _MONOTONIC})
"""`sentence_transformers` in config.json. Scores here are always the sigmoid, in the same order."""

_MODALITY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
TRANSFORMER = Keys(
    used=words("max_seq_length do_lower_case"),
    harmless=words("unpad_inputs"),
    accepted={
        "transformer_task": ("feature-extraction", None), "modality_config": (_MODALITY, None),
        "module_output_name": ("token_embeddings", None), "processing_kwargs": ({}, None), "query_expansion": OFF,
        "model_args": ({}, None), "tokenizer_args": ({}, None), "config_args": ({}, None),
    },
)  # fmt: skip
"""sentence_bert_config.json."""

SENTENCES = Keys(
    used=words("prompts default_prompt_name similarity_fn_name"),
    harmless=words("__version__"),
    accepted={"model_type": ("SentenceTransformer", None), "truncate_dim": (None,)},
)
"""config_sentence_transformers.json."""

MODULE = Keys(used=words("type path"), harmless=words("idx name"), accepted={"kwargs": ([], None)})
"""One module of modules.json."""

POOLING = Keys(
    used=words(
        "pooling_mode pooling_mode_cls_token pooling_mode_mean_tokens pooling_mode_lasttoken pooling_mode_max_tokens"
        " pooling_mode_mean_sqrt_len_tokens pooling_mode_weightedmean_tokens"
    ),
    harmless=words("word_embedding_dimension embedding_dimension"),
    accepted={"include_prompt": (True, None)},
)
DENSE = Keys(
    used=words("in_features out_features bias activation_function"),
    accepted={"module_input_name": ("sentence_embedding", None), "module_output_name": ("sentence_embedding", None)},
)
NORMALIZE = Keys(
    accepted={"module_input_name": ("sentence_embedding", None), "module_output_name": ("sentence_embedding", None)}
)

_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that take tokenizer.json as it is. BERT's set what its normalizer does by their own settings or defaults."""

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKENIZER = Keys(
    used=words(
        "model_max_length do_lower_case strip_accents tokenize_chinese_chars add_prefix_space added_tokens_decoder"
        " additional_special_tokens extra_special_tokens model_input_names add_bos_token add_eos_token"
    )
    | frozenset(_NAMED),
    harmless=words(
        "tokenizer_class name_or_path _name_or_path special_tokens_map_file tokenizer_file vocab_file merges_file"
        " processor_class use_fast from_slow backend is_local local_files_only chat_template trim_offsets errors"
        " never_split clean_up_tokenization_spaces spaces_between_special_tokens padding padding_side"
        # those of the program that saved the file; every caller sets them anew
        " max_length stride truncation truncation_strategy pad_to_multiple_of pad_token_type_id"
    ),
    accepted={
        "truncation_side": ("right", None),
        "split_special_tokens": OFF,
        "do_basic_tokenize": (True, None),
        "wordpieces_prefix": ("##", None),
        "sp_model_kwargs": ({}, None),
        "auto_map": (None,),
    },
)
"""tokenizer_config.json. What it says of the text is compared with tokenizer.json, which alone is packed."""


def check_tokenizer(folder: Path, tokenizer: Tokenizer, spec: ModelSpec) -> None:
    """Checks that tokenizer_config.json and sentence_bert_config.json say nothing that tokenizer.json does not do."""
    path = folder / "sentence_bert_config.json"
    if path.is_file() and read_json(path).get("do_lower_case") and not _lowers(tokenizer):
        raise ModelError(f"{path}: do_lower_case = True, but tokenizer.json keeps capital letters; save it anew")
    path = folder / "tokenizer_config.json"
    written = config = read_json(path) if path.is_file() else {}
    TOKENIZER.check(path, config)
    found = _text_settings(tokenizer)
    if "tokenize_chinese_chars" in found and config.get("tokenizer_class") not in _PLAIN_CLASSES:
        config = {"do_lower_case": True, "tokenize_chinese_chars": True, **config}  # the defaults of BERT's classes
    for key in ("do_lower_case", "tokenize_chinese_chars", "strip_accents", "add_prefix_space"):
        stated = config.get(key)
        if key == "strip_accents" and stated is None and "do_lower_case" in config:
            stated = config["do_lower_case"]
        if stated is not None and stated != found.get(key, key != "do_lower_case" and stated):
            default = "" if key in written else " by default"
            raise ModelError(
                f"{path}: {key} = {_short(stated)}{default}, but tokenizer.json does otherwise; save them anew"
            )
    added = {number: _attributes(token) for number, token in tokenizer.get_added_tokens_decoder().items()}
    for number, token in _mapping(path, config, "added_tokens_decoder").items():
        if not (isinstance(token, dict) and number.isdigit() and added.get(int(number)) == _attributes(token)):
            raise ModelError(f"{path}: added_tokens_decoder has token {number}, which tokenizer.json has otherwise")
    contents = {attributes["content"] for attributes in added.values()}
    around = set(tokenizer.encode("", "").tokens)
    for key, token in _special(path, config):
        if token not in contents or (key in ("cls_token", "sep_token") and token not in around):
            raise ModelError(f"{path}: {key} = {_short(token)} is not used so in tokenizer.json; save them anew")
    named = dict(_special(path, config))
    for key in ("bos_token", "eos_token"):
        if config.get(f"add_{key}") and named.get(key) not in around:
            raise ModelError(f"{path}: add_{key} = True, but tokenizer.json does not add it; save them anew")
    inputs = config.get("model_input_names")
    if inputs is not None and "token_type_ids" not in inputs and spec.token_types > 1 and spec.head.scores:
        raise ModelError(f"{path}: model_input_names lacks token_type_ids: a pair without types is not supported")


def _lowers(tokenizer: Tokenizer) -> bool:
    return any(
        part["type"] == "Lowercase" or (part["type"] == "BertNormalizer" and part["lowercase"])
        for part in steps(tokenizer.normalizer)
    )


def _text_settings(tokenizer: Tokenizer) -> dict[str, bool]:
    """What tokenizer.json does with a text, in the words of tokenizer_config.json."""
    found = {"do_lower_case": _lowers(tokenizer)}
    for part in steps(tokenizer.normalizer):
        if part["type"] == "BertNormalizer":
            strip = part["strip_accents"]
            found["strip_accents"] = part["lowercase"] if strip is None else strip
            found["tokenize_chinese_chars"] = part["handle_chinese_chars"]
    for part in steps(tokenizer.pre_tokenizer):
        if part["type"] == "ByteLevel":
            found["add_prefix_space"] = part["add_prefix_space"]
        elif part["type"] == "Metaspace":
            found["add_prefix_space"] = part["prepend_scheme"] != "never"
    return found


def _attributes(token: Any) -> dict[str, Any]:
    flags = ("lstrip", "rstrip", "single_word")
    if isinstance(token, dict):
        normalized = token.get("normalized", not token.get("special", False))
        return {
            "content": token.get("content"),
            "normalized": normalized,
            **{flag: token.get(flag, False) for flag in flags},
        }
    return {"content": token.content, "normalized": token.normalized, **{flag: getattr(token, flag) for flag in flags}}


def _mapping(path: Path, config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise ModelError(f"{path}: {key} is {_short(value)}, an object is needed")
    return value


def _special(path: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys and texts of the special tokens that tokenizer_config.json names."""
    listed: list[tuple[str, Any]] = [(key, config.get(key)) for key in _NAMED]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(key) or []
        listed += [(key, token) for token in (tokens.values() if isinstance(tokens, dict) else tokens)]
    for key, token in listed:
        content = token.get("content") if isinstance(token, dict) else token
        if content is not None and not isinstance(content, str):
            raise ModelError(f"{path}: {key} is {_short(token)}, a token is needed")
        if content is not None:
            yield key, content


Config = Mapping[str, Any]
"""A parsed Hugging Face config.json."""

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
"""Hugging Face activation names and ours."""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    Checkpoint names are given in canonical form. `sanitize` makes it from the names in a file.

    Attributes:
        architecture: our name.
        spec_from_config: the model description from config.json.
        sanitize: a checkpoint's tensor name in canonical form, or None for a tensor that is not used.
        prefix: the prefix of the encoder's or decoder's tensor names in the checkpoint of a model with a head.
        layer: for each of our tensors of a layer, the canonical names (with `{i}` for the layer's number) of the
            checkpoint tensors that stand side by side in it. The checkpoint stores matrices as [out, in].
        table: the token embedding table.
        embed: tensors of block `embed`.
        positions: the learned position table.
        dense, out: the two projections of the classification head.
        final_norm: the norm after the last layer.
        output: the output matrix of a language model. A checkpoint without this matrix uses `table` in its place.
        fused: endings of checkpoint tensors that hold several in rows of equal number, and the endings of these.
        distances: the embeddings of distances, and the weight and the bias of their norm (`LayerSpec.spans`).
        scaled: the rows of the token embedding table are multiplied by the root of the hidden width.
        norm_offset: added to the weights of all norms.
        absent: our names of tensors that the checkpoints do not have and that are zero.
        plain_first: layer 0 does not norm its input, and has no such norm.
        dense_norm: the norm after the activation of the classification head.
        code: the repository whose code `auto_map` may name, because this family computes the same.
        keys: the keys of config.json that belong to this family, in addition to `keys.CONFIG`.
    """

    architecture: Architecture
    spec_from_config: Callable[[Config, HeadSpec, Precision], ModelSpec]
    sanitize: Callable[[str], str | None]
    prefix: str
    layer: Mapping[str, tuple[str, ...]]
    table: str
    embed: Mapping[str, str]
    positions: str | None = None
    dense: str | None = None
    out: str | None = None
    final_norm: str | None = None
    output: str | None = None
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    distances: tuple[str, str, str] | None = None
    scaled: bool = False
    norm_offset: float = 0.0
    absent: frozenset[str] = frozenset()
    plain_first: bool = False
    dense_norm: str | None = None
    code: str | None = None
    keys: Keys = field(default_factory=Keys)

    def check(self, config: Config) -> None:
        """Checks that every key is used here, or changes no result. ModelError names the first other one."""
        named = config.get("auto_map")
        known = isinstance(named, dict) and all(str(name).startswith(f"{self.code}--") for name in named.values())
        own = {"sentence_transformers", *(["auto_map"] if known else [])}
        self.all_keys.check("config.json", {key: value for key, value in config.items() if key not in own})
        saved = config.get("sentence_transformers") or {}
        if not isinstance(saved, dict):
            raise ModelError("config.json: sentence_transformers is not an object")
        CROSS_ENCODER.check("config.json: sentence_transformers", saved)

    @property
    def all_keys(self) -> Keys:
        """The keys of config.json."""
        return Keys(
            CONFIG.used | self.keys.used,
            CONFIG.harmless | self.keys.harmless,
            {**CONFIG.accepted, **self.keys.accepted},
        )

    def place(self, layer: int) -> str:
        return self.layer["qkv.weight"][0].partition("{i}")[0] + f"{layer}."

    def parts(self, name: str, layer: int) -> list[str]:
        """The canonical names of the checkpoint tensors in a tensor of a layer; empty if the checkpoint has none."""
        if (
            name == "kind"
            or name.startswith("distance_")
            or name in self.absent
            or (self.plain_first and (name, layer) == ("norm1.weight", 0))
        ):
            return []
        return [part.format(i=layer) for part in self.layer[name]]

    def canonical(self, names: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """Canonical name -> the checkpoint's own name, for all tensors that may be used."""
        found: dict[str, str] = {}
        for name in names:
            clean = self.sanitize(name)
            if clean is not None:
                found[clean] = name
        return found


def part_rows(layer: LayerSpec, tensor: TensorSpec, parts: int) -> list[int]:
    """The number of outputs that each of a layer tensor's `parts` checkpoint tensors contributes."""
    outputs = tensor.shape[-1]
    if parts == 0:
        return []
    if parts == 3:
        return [layer.heads * layer.head_size, *[layer.kv_heads * layer.head_size] * 2]
    return [outputs // parts] * parts


def whole(config: Config, key: str) -> int:
    """A positive whole number of the config; ModelError for anything else."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelError(f"config.json: {key} is {value!r}, a positive number is needed")
    return value


def number(config: Config, key: str, default: float) -> float:
    """A number of the config that is not negative, or `default` where the config has none."""
    value = config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ModelError(f"config.json: {key} is {value!r}, a number is needed")
    return float(value)


def activation(config: Config, default: str, key: str = "hidden_act") -> Activation:
    """Our name of the config's activation, or of `default`. ModelError if no runtime computes it."""
    name = config.get(key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise ModelError(f"config.json: {key}, the activation {name!r}, is not supported; supported: {known}")
    return ACTIVATIONS[name]
