"""The reranker during training: a BERT encoder with a score after every layer. One head, which reads the first token,
serves all layers. In the first layers this token has hardly attended to the others. There a linear probe, which reads
the mean of all tokens, can take the place of the head."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification


class LayeredReranker(nn.Module):
    """Hugging Face's classifier with a forward pass that gives one score per layer.

    The probes are used in training only and are not saved. Calibration later fits new probes to the trained layers
    (`edge.models.calibration.Lens`).
    """

    def __init__(self, bert: BertForSequenceClassification, probes: int = 0) -> None:
        super().__init__()
        self.bert = bert
        self.probes = nn.ModuleList(nn.Linear(bert.config.hidden_size, 1) for _ in range(probes))
        for probe in self.probes:
            nn.init.zeros_(cast(nn.Linear, probe).weight)

    @classmethod
    def from_directory(
        cls, directory: Path, seed: int = 0, probes: int = 0, device: torch.device | None = None
    ) -> LayeredReranker:
        """Start from an encoder, which gets a new head with seeded weights, or from an earlier reranker.

        ``probes``: number of first layers that are scored by probes and not by the head.

        There is no dropout: in one pass over the data little can be memorized, and the masks cost time on a CPU.
        """
        config = BertConfig.from_pretrained(directory, num_labels=1)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        torch.manual_seed(seed)
        # for heads of 32 numbers in bfloat16, plain products on a CPU took a fifth of the fused kernel's time
        attention = "eager" if device is None or device.type == "cpu" else "sdpa"
        bert = BertForSequenceClassification.from_pretrained(directory, config=config, attn_implementation=attention)
        model = cls(bert, probes)
        model.to(device, torch.float32)  # weights from a half-precision file would otherwise stay in half precision
        return model

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        found: torch.device = self.bert.device
        return found

    @property
    def depth(self) -> int:
        return int(self.bert.config.num_hidden_layers)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Scores, layers x sequences, before the sigmoid."""
        hidden = self.bert.bert(
            input_ids=ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True
        ).hidden_states[1:]
        first = torch.stack([h[:, 0] for h in hidden])
        # the pooler reads position 0 of each sequence, so layers x sequences are passed as one batch
        pooled = cast(nn.Module, self.bert.bert.pooler)(first.flatten(0, 1)[:, None]).unflatten(0, first.shape[:2])
        scores: Tensor = self.bert.classifier(pooled).squeeze(-1).float()
        if not len(self.probes):
            return scores
        shown = mask.unsqueeze(-1).float()
        means = [(h.float() * shown).sum(1) / shown.sum(1) for h in hidden[: len(self.probes)]]
        with torch.autocast(ids.device.type, enabled=False):
            early = [probe(mean).squeeze(-1) for probe, mean in zip(self.probes, means, strict=True)]
        return torch.cat([torch.stack(early), scores[len(early) :]])

    def freeze_words(self) -> None:
        """Do not train the word vectors, so that rare words are not adapted to the training domains."""
        self.bert.bert.embeddings.word_embeddings.weight.requires_grad_(False)

    def save(self, directory: Path, tokenizer: Path, half: bool = False) -> None:
        """Write a Hugging Face directory. The weights file gets its name only when it is complete."""
        directory.mkdir(parents=True, exist_ok=True)
        kind = torch.float16 if half else torch.float32
        tensors = {
            name: value.detach().to("cpu", kind).contiguous()
            for name, value in self.bert.state_dict().items()
            if value.is_floating_point()
        }
        save_file(tensors, directory / "model.safetensors.tmp", metadata={"format": "pt"})
        (directory / "model.safetensors.tmp").replace(directory / "model.safetensors")
        config = json.loads(self.bert.config.to_json_string())
        config.update(architectures=["BertForSequenceClassification"], num_labels=1, torch_dtype=str(kind)[6:])
        config.update(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        config.pop("_name_or_path", None)
        config.pop("dtype", None)
        (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        shutil.copyfile(tokenizer, directory / "tokenizer.json")


def average(directories: Sequence[Path], weights: Sequence[float]) -> dict[str, Tensor]:
    """Weighted mean of checkpoints (Wortsman et al., "Robust fine-tuning", CVPR 2022; "Model soups", ICML 2022).

    A tensor that only some checkpoints hold (an encoder has no classifier) is averaged over these checkpoints.
    """
    total: dict[str, Tensor] = {}
    share: dict[str, float] = {}
    for directory, weight in zip(directories, weights, strict=True):
        for raw, value in load_file(directory / "model.safetensors").items():
            if not value.is_floating_point():
                continue
            name = raw if raw.startswith(("bert.", "classifier.")) else f"bert.{raw}"
            total[name] = total.get(name, torch.zeros_like(value, dtype=torch.float32)) + weight * value.float()
            share[name] = share.get(name, 0.0) + weight
    return {name: value / share[name] for name, value in total.items() if share[name] > 0}


def pair_tokenizer(path: Path, max_tokens: int) -> Tokenizer:
    """A tokenizer that joins query and document to one sequence of at most ``max_tokens``. It truncates the document
    alone, unless the query fills more than half of the sequence (a long sentence that mining used as a query)."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(max_tokens, strategy="longest_first")
    tokenizer.no_padding()
    return tokenizer


def padded(encoded: Sequence[Encoding]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and types of one batch on the CPU, padded to the longest sequence."""
    longest = max(len(e.ids) for e in encoded)
    ids, mask, types = (torch.zeros(len(encoded), longest, dtype=torch.long) for _ in range(3))
    for row, e in enumerate(encoded):
        length = len(e.ids)
        ids[row, :length] = torch.tensor(e.ids)
        mask[row, :length] = 1
        types[row, :length] = torch.tensor(e.type_ids)
    return ids, mask, types


def batches(encoded: Sequence[Encoding], tokens: int) -> list[list[int]]:
    """Indices grouped by similar length. A group has at most ``tokens`` after padding, or a single sequence."""
    order = sorted(range(len(encoded)), key=lambda n: len(encoded[n].ids))
    groups: list[list[int]] = []
    for n in order:
        if groups and (len(groups[-1]) + 1) * len(encoded[n].ids) <= tokens:
            groups[-1].append(n)
        else:
            groups.append([n])
    return groups
