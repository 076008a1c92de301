"""Queries that a small instruction model writes.

``python -m edge.models.training.questions --model DIR --texts FILE... --out FILE``

The prompt holds two worked examples. For each passage the model writes a question, search words, and a longer
description of an information need (Bonifacio et al., "InPars", 2022). Mining later keeps the queries for which
retrieval finds the passage again (Dai et al., "Promptagator", ICLR 2023). Any causal model that transformers reads
can be used.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from .corpora import joined
from .documents import read
from .wording import Passage, by_domain, passages

_SHOWN = (
    {
        "Passage": "The kidney filters about 180 litres of blood plasma each day. Most of the water is taken up again "
        "in the tubules under the control of antidiuretic hormone, so that only one to two litres leave the "
        "body as urine.",
        "Question": "how much water does the body lose through the kidneys in a day?",
        "Search": "kidney water reabsorption hormone",
        "Need": "I am interested in how the kidney regulates the amount of water in the body, and in particular in "
        "how hormones act on it so that most of the fluid is kept.",
    },
    {
        "Passage": "To mount the share at boot, add a line to /etc/fstab with the option _netdev. Without this option "
        "the system tries to mount it before the network is up, waits for the timeout and drops into "
        "emergency mode.",
        "Question": "why does my computer hang at startup when a network drive is in fstab?",
        "Search": "fstab network share boot",
        "Need": "Looking for ways to mount a network file system when the machine starts, without the boot being "
        "delayed or failing when the network is not ready yet.",
    },
)
_EXAMPLES = "".join("\n".join(f"{label}: {text}" for label, text in shown.items()) + "\n\n" for shown in _SHOWN)
_MOST_PASSAGE = 150
_FIELDS = {"Search:": "search", "Need:": "need"}


@dataclass(frozen=True)
class Written:
    """The queries that the model wrote for the passage of one key, by kind: question, search, need."""

    key: str
    queries: dict[str, str]


def prompt(passage: Passage) -> str:
    """The prompt: the examples and the passage, which is cut at 150 words."""
    text = " ".join(joined(passage.heading or passage.title, passage.text).split()[:_MOST_PASSAGE])
    return f"{_EXAMPLES}Passage: {text}\nQuestion:"


def parsed(text: str) -> dict[str, str]:
    """The fields of one answer. Lines that do not have the requested form are skipped."""
    lines = text.split("\n\n")[0].split("\n")
    found = {"question": lines[0]}
    for line in lines[1:]:
        for label, kind in _FIELDS.items():
            if line.startswith(label):
                found[kind] = line.removeprefix(label)
    found = {kind: " ".join(value.split()) for kind, value in found.items()}
    return {k: v for k, v in found.items() if 2 <= len(v.split()) <= 80 and v.count(v.split()[-1]) < 6}


def model_of(directory: Path, gguf: str | None, device: torch.device) -> tuple[Any, Any]:
    """Tokenizer and model of a Hugging Face directory. With ``gguf`` the weights come from this GGUF file in it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=kind, **({"gguf_file": gguf} if gguf else {}))
    return tokenizer, cast(torch.nn.Module, model).to(device).eval()


@torch.inference_mode()
def write(
    tokenizer: Any, model: Any, texts: Sequence[str], longest: int = 84, temperature: float = 0.5
) -> list[dict[str, str]]:
    """Sampled queries for prompts of similar length, generated in one batch."""
    from transformers import StoppingCriteriaList

    encoded = tokenizer(list(texts), return_tensors="pt", padding=True).to(model.device)
    start = encoded["input_ids"].shape[1]
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)[-1:]
    (double,) = tokenizer.encode("\n\n", add_special_tokens=False)[-1:]

    def ended(ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        last = ids[:, start:]
        done = (
            last[:, -1] == double if double != newline else torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        )
        if last.shape[1] > 1:
            done |= (last[:, -1] == newline) & (last[:, -2] == newline)
        return done

    out = model.generate(
        **encoded, max_new_tokens=longest, do_sample=True, temperature=temperature, top_k=40,
        stopping_criteria=StoppingCriteriaList([ended]), pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return [parsed(text) for text in tokenizer.batch_decode(out[:, start:], skip_special_tokens=True)]


def chosen(texts: Sequence[Path], seed: int, count: int, part: int, parts: int) -> Iterator[tuple[str, Passage]]:
    """About ``count`` passages with their domains. Each domain's number is proportional to the square root of its size.

    ``part`` (from 0) of ``parts`` takes its share of the passages, so that several processes can divide the work.
    """
    domains = by_domain(chain.from_iterable(read(path) for path in texts))
    cut = {name: passages(documents) for name, documents in domains.items()}
    total = sum(len(found) ** 0.5 for found in cut.values())
    for name, found in cut.items():
        usable = [passage for passage in found if len(passage.text.split()) >= 12]
        random.Random(f"{seed}:{name}").shuffle(usable)
        for passage in usable[: round(count * len(found) ** 0.5 / total)][part::parts]:
            yield name, passage


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one JSON line per passage, until all passages are done or the time limit is reached."""
    parser = argparse.ArgumentParser(prog="edge.models.training.questions", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory of a causal model")
    parser.add_argument("--gguf", help="name of the GGUF file in it, where the weights are one")
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="files that `gather` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000, help="passages")
    parser.add_argument("--part", default="0/1", help="0/2 and 1/2 share the work between two processes")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    part, parts = (int(n) for n in options.part.split("/"))
    tokenizer, model = model_of(options.model, options.gguf, device)
    asked = list(chosen(options.texts, options.seed, options.count, part, parts))
    groups = sorted(asked, key=lambda found: len(found[1].text))
    batches = [groups[n : n + options.batch] for n in range(0, len(groups), options.batch)]
    random.Random(options.seed).shuffle(batches)  # so that a run that ends at the time limit has seen all lengths
    print(f"{len(asked)} passages after {time.monotonic() - started:.0f} s", flush=True)
    done = 0
    with options.out.open("w", encoding="utf-8") as out:
        for number, batch in enumerate(batches):
            if time.monotonic() - started > 60 * options.minutes:
                break
            answers = write(tokenizer, model, [prompt(passage) for _, passage in batch])
            for (domain, passage), queries in zip(batch, answers, strict=True):
                if queries:
                    out.write(json.dumps({"d": domain, "p": passage.key, "q": queries}, ensure_ascii=False) + "\n")
            done += len(batch)
            if number % 10 == 0:
                print(f"{done} of {len(asked)}, {time.monotonic() - started:.0f} s: {answers[0]}", flush=True)
    return 0


def load(paths: Sequence[Path]) -> dict[str, list[Written]]:
    """The queries from the files of `main`, by domain."""
    found: dict[str, list[Written]] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found.setdefault(row["d"], []).append(Written(row["p"], row["q"]))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
