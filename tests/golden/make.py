"""Makes the golden models: tiny random checkpoints and what Hugging Face transformers computes with them in fp32.

    python tests/golden/make.py

needs torch and transformers; the tests that read the files need neither. Every folder holds a Hugging Face model
(config.json, model.safetensors, tokenizer.json) and expected.json:

- rerankers: `query`, `docs`, `max_tokens`, `ids` (of each whole sequence), `logits` (a classifier's output; for Qwen3
  the logit of `yes` less that of `no`), `scores` (their sigmoid);
- embedders: `texts`, `queries`, `max_tokens`, `text_ids`, `query_ids`, and the unit vectors `text_embeddings`,
  `query_embeddings`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

HERE = Path(__file__).parent
MAX_TOKENS = 60
TEMPLATED_MAX_TOKENS = 330

QUERY = "how do cells make energy?"
DOCS = [
    "Cells make energy in their mitochondria, from sugar and oxygen.",
    "The river floods the valley every spring, when the snow melts.",
    "Énergie: naïve façade, Größe, 東京 and ωmega are words with marks.",
    "A very long document goes past the limit, so its end is cut. " * 12,
    "",
    "  Two  spaces,\nand a line break. ",
    "[SEP] </s> <|im_end|> yes no",
]
CORPUS = [QUERY, *DOCS] * 4 + [
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided.",
    'Note that the answer can only be "yes" or "no".',
    "Given a web search query, retrieve relevant passages that answer the query",
    "system user assistant think Instruct Query Document",
    "Plants turn light into sugar; animals eat plants and breathe oxygen.",
    "Water flows from the mountains to the sea, and rain brings it back.",
    "yes yes yes no no no yes no",
]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
DECODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=240, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    # As published files have it: settings of the program that saved them, which must not count.
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=220, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def byte_bpe(append_end: bool) -> Tokenizer:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in ("<think>", "</think>")])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if append_end:
        end = ("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))
        template = processors.TemplateProcessing(single="$A <|endoftext|>", special_tokens=[end])
        tokenizer.post_processor = processors.Sequence([tokenizer.post_processor, template])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def randomize(model: PreTrainedModel, seed: int) -> None:
    """Weights of trained magnitude; those of transformers' own initialisation make all scores alike."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            elif "embed" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(1.5 * noise / math.sqrt(parameter.shape[1]))


def save(folder: Path, model: PreTrainedModel, tokenizer: Tokenizer, expected: dict[str, Any]) -> None:
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write(folder / "expected.json", expected)


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def pair_ids(tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS, strategy="only_second")
    encodings = [tokenizer.encode(QUERY, doc) for doc in DOCS]
    return [(encoding.ids, encoding.type_ids) for encoding in encodings]


def classifier(name: str, model: PreTrainedModel, tokenizer: Tokenizer, seed: int, types: bool) -> None:
    randomize(model, seed)
    pairs = pair_ids(tokenizer)
    logits = []
    for ids, kinds in pairs:
        extra = {"token_type_ids": torch.tensor([kinds])} if types else {}
        logits.append(model(input_ids=torch.tensor([ids]), **extra).logits.item())
    expected = {"query": QUERY, "docs": DOCS, "max_tokens": MAX_TOKENS, "ids": [ids for ids, _ in pairs]}
    save(HERE / name, model, tokenizer, {**expected, **scored(logits)})


def yes_no(name: str, model: PreTrainedModel, tokenizer: Tokenizer, seed: int) -> None:
    """As the model card of Qwen3-Reranker does it: template, body and suffix are tokenized apart, the body is cut."""
    randomize(model, seed)
    prefix, suffix = tokenizer.encode(PREFIX).ids, tokenizer.encode(SUFFIX).ids
    room = TEMPLATED_MAX_TOKENS - len(prefix) - len(suffix)
    bodies = [f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {doc}" for doc in DOCS]
    sequences = [prefix + tokenizer.encode(body).ids[:room] + suffix for body in bodies]
    yes, no = tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")
    rows = [model(input_ids=torch.tensor([ids])).logits[0, -1] for ids in sequences]
    expected = {"query": QUERY, "docs": DOCS, "max_tokens": TEMPLATED_MAX_TOKENS, "ids": sequences}
    save(HERE / name, model, tokenizer, {**expected, **scored([(row[yes] - row[no]).item() for row in rows])})


def scored(logits: list[float]) -> dict[str, list[float]]:
    return {"logits": logits, "scores": [1 / (1 + math.exp(-logit)) for logit in logits]}


def embedder(
    name: str,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    seed: int,
    *,
    pooling: str,
    query_prefix: str,
    pool: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    randomize(model, seed)
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    plain.enable_truncation(MAX_TOKENS)
    texts, queries = [doc for doc in DOCS if doc], [QUERY]
    base = getattr(model, "model", model)

    def run(inputs: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        sequences = [plain.encode(text).ids for text in inputs]
        states = [base(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in sequences]
        vectors = [torch.nn.functional.normalize(pool(state), dim=0).tolist() for state in states]
        return sequences, vectors

    text_ids, text_embeddings = run(texts)
    query_ids, query_embeddings = run([query_prefix + query for query in queries])
    save(
        HERE / name,
        base,
        tokenizer,
        {
            "texts": texts,
            "queries": queries,
            "max_tokens": MAX_TOKENS,
            "text_ids": text_ids,
            "query_ids": query_ids,
            "text_embeddings": text_embeddings,
            "query_embeddings": query_embeddings,
        },
    )
    kind = "sentence_transformers.models."
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    listed = [{"idx": n, "name": str(n), "path": path, "type": kind + what} for n, (what, path) in enumerate(modules)]
    write(HERE / name / "modules.json", listed)
    write(HERE / name / "1_Pooling" / "config.json", {f"pooling_mode_{pooling}": True})


@torch.inference_mode()
def main() -> None:
    pieces, parts = wordpiece(), unigram()
    bert = {**ENCODER, "vocab_size": pieces.get_vocab_size(), "max_position_embeddings": 64}
    roberta = {**ENCODER, "vocab_size": parts.get_vocab_size(), "max_position_embeddings": 66, "type_vocab_size": 1}
    classifier(
        "bert-reranker", BertForSequenceClassification(BertConfig(**bert, num_labels=1)).eval(), pieces, 1, types=True
    )
    classifier(
        "xlm-roberta-reranker",
        XLMRobertaForSequenceClassification(XLMRobertaConfig(**roberta, num_labels=1)).eval(),
        parts,
        2,
        types=False,
    )
    words, ended = byte_bpe(append_end=False), byte_bpe(append_end=True)
    qwen3 = {**DECODER, "vocab_size": words.get_vocab_size()}
    yes_no("qwen3-reranker", Qwen3ForCausalLM(Qwen3Config(**qwen3)).eval(), words, 3)
    embedder(
        "bert-embedder",
        BertModel(BertConfig(**bert), add_pooling_layer=False).eval(),
        pieces,
        4,
        pooling="mean_tokens",
        query_prefix="",
        pool=lambda states: states.mean(0),
    )
    embedder(
        "qwen3-embedder",
        Qwen3ForCausalLM(Qwen3Config(**qwen3)).eval(),
        ended,
        5,
        pooling="lasttoken",
        query_prefix=f"Instruct: {INSTRUCTION}\nQuery:",
        pool=lambda states: states[-1],
    )


if __name__ == "__main__":
    main()
