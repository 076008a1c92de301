"""The base bi-encoder: mean-pooled unit vectors (Reimers & Gurevych, "Sentence-BERT", EMNLP 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertModel

from .mining import Floats
from .precision import in_bfloat16


class BiEncoder:
    """A Hugging Face BERT directory used as a sentence encoder."""

    def __init__(self, directory: Path, max_tokens: int = 256) -> None:
        self._model = BertModel.from_pretrained(directory, add_pooling_layer=False, attn_implementation="eager")
        self._model.train(False)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.enable_truncation(max_tokens)
        self._tokenizer.no_padding()

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], batch: int = 64, precision: str = "auto") -> Floats:
        """One unit row per text. Batches are made of texts of like length, so that little is padding."""
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
            with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16(precision)):
                hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            out[rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return out
