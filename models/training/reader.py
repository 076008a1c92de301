"""Trains the reader of a reranker: ``python -m edge.models.training.reader --data FILE ... --base DIR --out DIR``.

The reader takes the tokens' states after the reranker's first layers, which stay as they are, and runs a few layers of
its own. Each token then gets one score for the start and one for the end of the answer; those of the first token mean
that the passage does not answer (Devlin et al., "BERT", NAACL 2019).
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from .. import evidence, reader
from ..evidence import Evidence, fit
from ..packed import PackedModel
from ..reader import best_span
from .model import batches, padded, pair_tokenizer
from .packing import write_reader
from .precision import CHOICES, in_bfloat16
from .spans import Example, read

RESULT = "reader.safetensors"
_AVERAGE = 0.998
_GROUP = 1024
"""Examples whose lengths are compared for batches of similar length."""

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Ids, mask, types [sequences, tokens], and the right tokens [2, sequences, tokens]: starts, ends."""


class SpanReader(nn.Module):
    """Layers of its own above the first layers of a frozen reranker. They start as copies of the reranker's next
    layers."""

    def __init__(self, base: Path, shared: int, own: int) -> None:
        super().__init__()
        whole = BertForSequenceClassification.from_pretrained(base, attn_implementation="eager", dtype=torch.float32)
        bert = whole.bert
        bert.train(False)
        below = bert.encoder.layer
        self.shared = shared
        self.layers = nn.ModuleList(copy.deepcopy(below[min(shared + n, len(below) - 1)]) for n in range(own))
        self.out = nn.Linear(bert.config.hidden_size, 2)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)
        self._trunk = [bert.embeddings, *below[:shared]]  # a list hides it from parameters() and state_dict()

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """The scores of each token, [sequences, tokens, 2]: start, end."""
        hidden = (1.0 - mask[:, None, None, :].float()) * -1e4
        states = self.states(ids, hidden, types)
        for layer in self.layers:
            states = layer(states, hidden)
        scores: Tensor = self.out(states)
        return scores.float()

    @torch.no_grad()
    def states(self, ids: Tensor, hidden: Tensor, types: Tensor) -> Tensor:
        """The tokens' states after the shared layers, [sequences, tokens, hidden]."""
        states: Tensor = self._trunk[0](input_ids=ids, token_type_ids=types)
        for layer in self._trunk[1:]:
            states = layer(states, hidden)
        return states


def right_tokens(example: Example, encoding: Encoding) -> tuple[list[int], list[int]]:
    """The tokens at which an answer starts and ends; the first token if there is none in the sequence."""
    inside = [n for n, owner in enumerate(encoding.sequence_ids) if owner == 1]
    starts, ends = [], []
    for start, end in example.spans:
        held = [n for n in inside if encoding.offsets[n][0] < end and start < encoding.offsets[n][1]]
        if held:
            starts.append(held[0])
            ends.append(held[-1])
    return (starts, ends) if starts else ([0], [0])


def prepared(examples: Sequence[Example], tokenizer: Tokenizer, tokens: int) -> Iterator[Batch]:
    """The examples in batches of similar length."""
    encoded = tokenizer.encode_batch([(example.question, example.passage) for example in examples])
    for group in batches(encoded, tokens):
        ids, mask, types = padded([encoded[n] for n in group])
        right = torch.zeros(2, *ids.shape, dtype=torch.bool)
        for row, n in enumerate(group):
            for side, places in enumerate(right_tokens(examples[n], encoded[n])):
                right[side, row, places] = True
        yield ids, mask, types, right


def span_loss(scores: Tensor, mask: Tensor, types: Tensor, right: Tensor) -> Tensor:
    """Cross-entropy of start and end. Where an answer stands in several places, the sum of their probabilities counts
    (Clark and Gardner, ACL 2018)."""
    allowed = types.bool() & mask.bool()
    allowed[:, 0] = True
    total = scores.new_zeros(())
    for side in (0, 1):
        likely = scores[..., side].masked_fill(~allowed, -1e4).log_softmax(-1)
        total = total - torch.logsumexp(likely.masked_fill(~right[side], -1e4), -1).mean()
    return total / 2


class ReaderTrainer:
    """AdamW with warm-up and linear decay over the run's time; the result is a running average of the weights. A step
    has one batch for each thread, so that a core that other programs use slows its own batch only."""

    def __init__(self, model: SpanReader, rate: float, bfloat16: bool, threads: int) -> None:
        self._model, self._bfloat16, self._rate = model, bfloat16, rate
        self._weights = list(model.parameters())
        groups = [{"params": list(model.layers.parameters())}, {"params": list(model.out.parameters())}]
        self._optimizer = torch.optim.AdamW(groups, lr=rate, weight_decay=0.01)
        self._mean = [weight.detach().clone() for weight in self._weights]
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def run(self, source: Iterator[Batch], minutes: float, out: Path) -> None:
        """Trains until the time is over, and writes the averaged weights every ten minutes and at the end."""
        started, saved, seen, step, held = time.monotonic(), time.monotonic(), 0, 0, 0.0
        while (spent := (time.monotonic() - started) / (60 * minutes)) < 1:
            for group, factor in zip(self._optimizer.param_groups, (1.0, 10.0), strict=True):
                group["lr"] = self._rate * factor * min(1.0, (step + 1) / 100) * (1 - spent)
            step_batches = [next(source) for _ in range(self._threads)]
            held += self._step(step_batches)
            seen += sum(len(batch[0]) for batch in step_batches)
            step += 1
            keep = min(_AVERAGE, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(self._mean, list[Tensor](self._weights), 1 - keep)
            if step % 100 == 0:
                print(
                    json.dumps(
                        {"step": step, "examples": seen, "loss": round(held / 100, 4), "share": round(spent, 3)}
                    ),
                    flush=True,
                )
                held = 0.0
            if time.monotonic() - saved > 600:
                self._save(out)
                saved = time.monotonic()
        self._save(out)

    def _step(self, step_batches: Sequence[Batch]) -> float:
        def gradient(batch: Batch) -> tuple[float, tuple[Tensor, ...]]:
            ids, mask, types, right = batch
            with torch.autocast("cpu", torch.bfloat16, enabled=self._bfloat16, cache_enabled=False):
                scores = self._model(ids, mask, types)
            loss = span_loss(scores, mask, types, right)
            return float(loss.detach()), torch.autograd.grad(loss, self._weights)

        found = list(self._pool.map(gradient, step_batches))
        for weight, *parts in zip(self._weights, *(slopes for _, slopes in found), strict=True):
            weight.grad = torch.stack(parts).mean(0)
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimizer.step()
        return sum(loss for loss, _ in found) / len(found)

    def _save(self, out: Path) -> None:
        names = [name for name, _ in self._model.named_parameters()]
        save_file(dict(zip(names, self._mean, strict=True)), out / "reader.tmp")
        (out / "reader.tmp").replace(out / RESULT)


def endless(examples: Sequence[Example], tokenizer: Tokenizer, tokens: int, seed: int) -> Iterator[Batch]:
    """Batches of the examples in a random order, again and again."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        for start in range(0, len(order), _GROUP):
            found = list(prepared([examples[n] for n in order[start : start + _GROUP]], tokenizer, tokens))
            rng.shuffle(found)
            yield from found


@torch.inference_mode()
def margins(model: SpanReader, examples: Sequence[Example], tokenizer: Tokenizer) -> tuple[list[float], list[bool]]:
    """By how much the best span of each example exceeds "no answer", and whether it touches a right one."""
    found: list[float] = []
    right: list[bool] = []
    for example in examples:
        encoding = tokenizer.encode(example.question, example.passage)
        scores = model(*padded([encoding]))[0].numpy()
        inside = [n for n, owner in enumerate(encoding.sequence_ids) if owner == 1]
        start, end, margin = best_span(scores[0], scores[inside])
        low, high = encoding.offsets[inside[start]][0], encoding.offsets[inside[end]][1]
        found.append(margin)
        right.append(any(low < b and a < high for a, b in example.spans))
    return found, right


def begin(model: SpanReader, weights: Mapping[str, Tensor]) -> None:
    """Begins with the weights of a reader that has as many layers of its own or fewer, which become the last ones."""
    missing = len(model.layers) - len({name.split(".")[1] for name in weights if name.startswith("layers.")})
    found = {}
    for name, value in weights.items():
        part, number, *rest = name.split(".")
        found[".".join((part, str(int(number) + missing), *rest)) if part == "layers" else name] = value
    model.load_state_dict({**model.state_dict(), **found})


def store(pack: Path, model: SpanReader, held: Sequence[Example], tokenizer: Tokenizer) -> None:
    """Writes the reader beside a packed reranker, with its probability as fitted on examples that were held back."""
    found, right = margins(model, held, tokenizer)
    fitted = fit(np.array(found)[:, None], np.array(right))
    weights = {name.replace("layers.", "encoder.layer."): value.numpy() for name, value in model.state_dict().items()}
    with PackedModel.open(pack) as packed:
        write_reader(packed, model.shared, weights)
        evidence.save(packed, {reader.EVIDENCE: Evidence(reader.SIGNALS, fitted, 0.5, "", len(held))})


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, writes ``OUT/reader.safetensors``, and stores the reader beside a packed reranker if one is named."""
    parser = argparse.ArgumentParser(prog="edge.models.training.reader", description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="files of examples (see spans)")
    parser.add_argument(
        "--base", type=Path, required=True, help="the reranker as a Hugging Face directory (see unpack)"
    )
    parser.add_argument(
        "--start",
        type=Path,
        help="reader.safetensors of an earlier run to start from; fewer layers become the last ones",
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pack", type=Path, help="the packed reranker, beside which the reader is stored")
    parser.add_argument("--held", type=Path, nargs="*", default=[], help="files of examples to fit its probability on")
    parser.add_argument("--minutes", type=float, required=True, help="0 stores the reader of --start")
    parser.add_argument("--shared", type=int, default=4, help="first layers that are the reranker's own")
    parser.add_argument("--own", type=int, default=2, help="layers of the reader")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=CHOICES, default="auto")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    examples = [example for path in options.data for example in read(path)]
    tokenizer = pair_tokenizer(options.base / "tokenizer.json", options.max_tokens)
    model = SpanReader(options.base, options.shared, options.own)
    if options.start is not None:
        begin(model, load_file(options.start))
    source = endless(examples, tokenizer, options.batch_tokens, options.seed)
    if options.minutes:
        ReaderTrainer(model, options.rate, in_bfloat16(options.precision), options.threads).run(
            source, options.minutes, options.out
        )
        model.load_state_dict(load_file(options.out / RESULT))
    if options.pack is not None:
        store(options.pack, model, [example for path in options.held for example in read(path)], tokenizer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
