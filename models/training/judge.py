"""Fits the model of pairs of statements: ``python -m edge.models.training.judge --out models/statements.npz``.

It learns from pairs that `updates` makes, and sees none twice. ``--vectors`` names a file of `words` and their
`vectors` [words, dim] by an embedder of many languages, most frequent words first.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from edge.models.statements import FLAGS, LONGEST, STEM, Encoded, encode, key, stem, words
from edge.models.training.packing import save_statements

from .updates import Pair, pairs, spoken

GIVEN, FITTED, WIDTH, LAYERS, HEADS = 24, 8, 64, 2, 4
"""The size of the model: the width of a word's vector that the embedder gave, and of the one that is fitted; of its
layers."""

_MEANT = 3
"""The most frequent words of a stem whose mean is the stem's vector."""

_PRINCIPAL = 15_000
"""The most frequent words, whose principal axes all get."""

_BATCH = 128
_NEAR = 16 * _BATCH
_BLOCK = 24 * _NEAR
_RATE = 2e-3
_FALLING = 0.3
"""The share of the steps at the end in which the rate falls to nothing."""

_DROPOUT = 0.1
_FREQUENT, _UNKNOWN, _GIVEN_ALONE = 400, 0.08, 0.3
"""Of other words than the most frequent ones, these shares are unknown in a step, as names and rare words are later, or
known by the embedder's vector alone, as words that no pattern holds."""

_BIAS = (4.0, 2.0, 0.0, -1.0)
"""How much a head looks at the same word of the other statement, at first."""


@dataclass(frozen=True)
class Words:
    """What the model knows: the numbers of words and stems by key, their vectors [1 + words, `GIVEN`], those that have
    fitted vectors, too, because a pattern or list of `updates` holds them, and those that are `frequent` there."""

    numbers: Mapping[int, int]
    vectors: Tensor
    fitted: Tensor
    frequent: Tensor


def known(spelled: Sequence[str], vectors: npt.NDArray[np.float32], made: Sequence[Pair]) -> Words:
    """The words with their principal components, and the stems of the longer ones."""
    centred = vectors - vectors.mean(0)
    axes = np.linalg.svd(centred[:_PRINCIPAL], full_matrices=False)[2][:GIVEN]
    short = centred @ axes.T
    short /= short.std(0).mean()
    stems = defaultdict[str, list[Any]](list)
    for word, vector in zip(spelled, short, strict=True):
        if len(word) > STEM:
            stems[stem(word)].append(vector)
    found = dict(zip(map(key, spelled), short, strict=True))
    found = {key(one): np.mean(several[:_MEANT], 0) for one, several in stems.items()} | found
    numbers = {one: number for number, one in enumerate(found, 1)}
    told, counts = spoken(), Counter[str]()
    for pair in made:
        counts.update(word for text in (pair.old, pair.new) for word in map(str.casefold, words(text)) if word in told)
    fitted, frequent = (torch.zeros(len(found) + 1, dtype=torch.bool) for _ in range(2))
    fitted[[numbers[one] for word in told for one in (key(word), key(stem(word))) if one in numbers]] = True
    often = (key(word) for word, _ in counts.most_common(_FREQUENT))
    frequent[[numbers[one] for one in often if one in numbers]] = True
    given = np.vstack([np.zeros(GIVEN), *found.values()])
    return Words(numbers, torch.tensor(given, dtype=torch.float32), fitted, frequent)


class Network(nn.Module):
    """The model as `edge.models.statements` computes it."""

    def __init__(self, known: Words) -> None:
        super().__init__()
        self.known = known
        self.own = nn.Embedding(len(known.vectors), FITTED, padding_idx=0)
        nn.init.normal_(self.own.weight, std=0.3)
        self.own.weight.data[~known.fitted] = 0
        self.up = nn.Linear(GIVEN + FITTED, WIDTH, bias=False)
        self.pos = nn.Parameter(torch.randn(LONGEST, WIDTH) * 0.1)
        self.flag = nn.Linear(len(FLAGS), WIDTH)
        self.cls = nn.Parameter(torch.randn(WIDTH) * 0.3)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "qkv": nn.Linear(WIDTH, 3 * WIDTH), "o": nn.Linear(WIDTH, WIDTH), "a": nn.Linear(WIDTH, 2 * WIDTH),
                "b": nn.Linear(2 * WIDTH, WIDTH), "n1": nn.LayerNorm(WIDTH), "n2": nn.LayerNorm(WIDTH),
            })
            for _ in range(LAYERS)
        )  # fmt: skip
        self.bias = nn.Parameter(torch.tensor([_BIAS] * LAYERS))
        self.side = nn.Parameter(torch.zeros(LAYERS, HEADS))
        self.n = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 1)
        self.drop = nn.Dropout(_DROPOUT)

    def forward(
        self, ids: Tensor, stems: Tensor, places: Tensor, flags: Tensor, common: Tensor, there: Tensor
    ) -> Tensor:
        """The log-odds [pairs] that the newer statement ends the older one."""
        count, longest = ids.shape
        own = self.known.fitted.clone()
        if self.training:
            own &= self.known.frequent | (torch.rand(len(own)) >= _GIVEN_ALONE)
        row = torch.where(ids > 0, ids, stems)
        x = self.up(torch.cat((self.known.vectors[row], self.own(row * own[row])), -1))
        x = x + self.pos[places] + self.flag(flags)
        x = self.drop(torch.cat((self.cls.expand(count, 1, WIDTH), x), 1))
        shared = nn.functional.pad(common, (1, 0, 1, 0))
        newer = nn.functional.pad(flags[:, :, 0], (1, 0))
        across = (newer[:, :, None] != newer[:, None, :]).float()
        absent = nn.functional.pad((there - 1) * 1e4, (1, 0))
        layer: Any
        for number, layer in enumerate(self.layers):
            states = layer["qkv"](layer["n1"](x)).view(count, longest + 1, 3, HEADS, WIDTH // HEADS)
            query, key_, value = states.permute(2, 0, 3, 1, 4)
            odds = query @ key_.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + absent[:, None, None]
            odds = odds + shared[:, None] * self.bias[number].view(1, -1, 1, 1)
            odds = odds + across[:, None] * self.side[number].view(1, -1, 1, 1)
            mixed = (odds.softmax(-1) @ value).transpose(1, 2).reshape(count, longest + 1, WIDTH)
            x = x + self.drop(layer["o"](mixed))
            x = x + self.drop(layer["b"](torch.relu(layer["a"](layer["n2"](x)))))
        found: Tensor = self.out(self.n(x[:, 0])).squeeze(-1)
        return found


def batch(encoded: Sequence[Encoded]) -> list[Tensor]:
    """The arguments of `Network.forward`, padded."""
    count, longest = len(encoded), max(len(pair.ids) for pair in encoded)
    numbers = [np.zeros((count, longest), np.int64) for _ in range(3)]
    flags = np.zeros((count, longest, len(FLAGS)), np.float32)
    common = np.zeros((count, longest, longest), np.float32)
    there = np.zeros((count, longest), np.float32)
    for row, pair in enumerate(encoded):
        end = len(pair.ids)
        for array, values in zip(numbers, (pair.ids, pair.stems, pair.places), strict=True):
            array[row, :end] = values
        flags[row, :end], common[row, :end, :end], there[row, :end] = pair.flags, pair.common, 1
    return [torch.from_numpy(array) for array in (*numbers, flags, common, there)]


def forgetful(given: list[Tensor], known: Words) -> list[Tensor]:
    """The arguments with some words unknown, the same ones in both statements of a pair."""
    ids, stems, places, flags, common, there = given
    share = torch.where(known.frequent, 0.01, _UNKNOWN)
    gone = (torch.rand(len(share)) < share)[ids]
    both = gone & (torch.rand(ids.shape) < 0.5)
    ids, stems = ids.masked_fill(gone, 0), stems.masked_fill(both, 0)
    flags = flags.clone()
    flags[:, :, FLAGS.index("unknown")] = ((ids == 0) & (stems == 0)).float() * there
    return [ids, stems, places, flags, common, there]


def batches(made: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    """Full batches of pairs that are about as long, which need little padding."""
    rng = random.Random(len(made))
    for start in range(0, len(made), _NEAR):
        near = sorted(made[start : start + _NEAR], key=lambda pair: len(pair.old) + len(pair.new))
        places = list(range(0, len(near) - _BATCH + 1, _BATCH))
        rng.shuffle(places)
        yield from (near[place : place + _BATCH] for place in places)


def fit(blocks: int, known: Words) -> Network:
    """Fits on so many blocks of 49,152 pairs."""
    network = Network(known)
    first = _BLOCK // _BATCH
    steps = blocks * first
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / first, (steps - step) / (_FALLING * steps))
    )
    for block in range(blocks):
        made = list(pairs(_BLOCK, 1_000 + block))
        total = 0.0
        for some in batches(made):
            encoded = [encode(words(pair.old), words(pair.new), known.numbers) for pair in some]
            odds = network(*forgetful(batch(encoded), known))
            loss = nn.functional.binary_cross_entropy_with_logits(odds, torch.tensor([pair.ends for pair in some]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) / (len(made) // _BATCH)
        print(f"block {block + 1} of {blocks}: loss {total:.4f}", flush=True)
    return network.eval()


def table(network: Network) -> npt.NDArray[np.float32]:
    """The vectors of the words and stems, [words, `GIVEN` + `FITTED`]."""
    own = network.own.weight * network.known.fitted[:, None]
    whole: npt.NDArray[np.float32] = torch.cat((network.known.vectors, own), 1)[1:].detach().numpy()
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits and stores the model."""
    parser = argparse.ArgumentParser(prog="edge.models.training.judge", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True, help="an .npz of words and their vectors")
    parser.add_argument("--blocks", type=int, default=80, help="of 49,152 pairs")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(5)
    with np.load(options.vectors) as file:
        some = known(file["words"].tolist(), file["vectors"].astype(np.float32), list(pairs(_BLOCK, 11)))
    network = fit(options.blocks, some)
    weights = {name: array.numpy() for name, array in network.state_dict().items() if name != "own.weight"}
    save_statements(options.out, list(some.numbers), weights | {"vectors": table(network)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
