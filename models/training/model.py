"""The reranker as trained: a BERT encoder with a score after every layer. Its one head reads the first token; in the
first layers that token has hardly looked around yet, and a linear probe reads the mean of all tokens instead."""

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
    """Hugging Face's classifier for weights and names; the forward pass gives one score per layer.

    The probes serve training and are not saved: calibration fits such a lens (`edge.models.calibration`) to whatever
    the layers have learned.
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
        """Start from an encoder (its head is made anew, seeded) or from an earlier reranker.

        ``probes``: so many first layers are scored by probes of their own and not by the head.

        No dropout: one pass over the data leaves little to memorise, and the masks cost time on a CPU.
        """
        config = BertConfig.from_pretrained(directory, num_labels=1)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        torch.manual_seed(seed)
        # heads of 32 numbers: on a CPU the plain products took a fifth of the fused kernel's time, in bfloat16
        attention = "eager" if device is None or device.type == "cpu" else "sdpa"
        bert = BertForSequenceClassification.from_pretrained(directory, config=config, attn_implementation=attention)
        model = cls(bert, probes)
        model.to(device, torch.float32)  # a half-precision file would otherwise stay one
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
        # the pooler reads position 0 of its input: layers x sequences go in as if they were one batch
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
        """Leave the word vectors as they came: rare words are not pulled towards the training domains."""
        self.bert.bert.embeddings.word_embeddings.weight.requires_grad_(False)

    def save(self, directory: Path, tokenizer: Path, half: bool = False) -> None:
        """Write a Hugging Face directory; the weights file appears under its name only when whole."""
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

    A tensor that only some of them hold (an encoder has no classifier) is the mean over those.
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
    """Query and document as one sequence of at most ``max_tokens``. Only the document is cut, unless the query (a long
    sentence that mining took for one) would fill more than half by itself."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(max_tokens, strategy="longest_first")
    tokenizer.no_padding()
    return tokenizer


def padded(encoded: Sequence[Encoding]) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, mask, types) of one batch, padded to its longest sequence, on the CPU."""
    longest = max(len(e.ids) for e in encoded)
    ids, mask, types = (torch.zeros(len(encoded), longest, dtype=torch.long) for _ in range(3))
    for row, e in enumerate(encoded):
        length = len(e.ids)
        ids[row, :length] = torch.tensor(e.ids)
        mask[row, :length] = 1
        types[row, :length] = torch.tensor(e.type_ids)
    return ids, mask, types


def batches(encoded: Sequence[Encoding], tokens: int) -> list[list[int]]:
    """Indices grouped by like length, each group within ``tokens`` after padding (at least one sequence)."""
    order = sorted(range(len(encoded)), key=lambda n: len(encoded[n].ids))
    groups: list[list[int]] = []
    for n in order:
        if groups and (len(groups[-1]) + 1) * len(encoded[n].ids) <= tokens:
            groups[-1].append(n)
        else:
            groups.append([n])
    return groups
