"""The base bi-encoder: mean-pooled unit vectors (Reimers & Gurevych, "Sentence-BERT", EMNLP 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertModel

from .mining import Floats
from .precision import in_bfloat16


class BiEncoder:
    """A Hugging Face BERT directory used as a sentence encoder."""

    def __init__(self, directory: Path, max_tokens: int = 256, device: torch.device | None = None) -> None:
        self._device = device or torch.device("cpu")
        attention = "eager" if self._device.type == "cpu" else "sdpa"
        self._model = BertModel.from_pretrained(directory, add_pooling_layer=False, attn_implementation=attention)
        cast(torch.nn.Module, self._model).to(self._device, torch.float32).train(False)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.enable_truncation(max_tokens)
        self._tokenizer.no_padding()

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], batch: int = 64, precision: str = "auto") -> Floats:
        """One unit row per text. Texts of similar length share a batch, so that little of it is padding.

        On an accelerator every batch holds 512 texts, and ``batch`` is ignored.
        """
        accelerated = self._device.type != "cpu"
        batch = 512 if accelerated else batch
        encoded = self._tokenizer.encode_batch_fast(list(texts))
        order = sorted(range(len(encoded)), key=lambda n: len(encoded[n].ids))
        out = np.zeros((len(texts), self._model.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            longest = len(encoded[rows[-1]].ids)
            ids = torch.zeros(len(rows), longest, dtype=torch.long)
            mask = torch.zeros(len(rows), longest, dtype=torch.long)
            for k, n in enumerate(rows):
                ids[k, : len(encoded[n].ids)] = torch.tensor(encoded[n].ids)
                mask[k, : len(encoded[n].ids)] = 1
            ids, mask = ids.to(self._device), mask.to(self._device)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=in_bfloat16(precision, self._device.type)):
                hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            out[rows] = torch.nn.functional.normalize(mean, dim=1).cpu().numpy()
        return out
