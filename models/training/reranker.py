"""Train the default reranker: ``python -m edge.models.training.reranker --data DIR --base DIR --out DIR``.

Writes under ``--out``: ``pools/`` (mined once), ``log.jsonl`` (one line per ten steps), ``state.pt`` (to resume
from), ``snapshots/STEP/`` (for the learning curve), ``last/`` and ``mean/`` (the final weights and their running
average, Hugging Face directories).
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from .lists import ListConfig, Mixture, pools_in
from .loss import LossConfig
from .model import LayeredReranker, pair_tokenizer
from .precision import CHOICES, in_bfloat16
from .trainer import TrainConfig, Trainer, append_line, write_state

# Share of the lists that each pool gives. Half are questions and claims that people wrote; titles, cloze
# sentences and documentation keep the model wide. squad alone could fill the run: it is held to a quarter.
SHARES = {
    "squad11-dev.judged": 0.22,
    "nq-oracle.judged": 0.12,
    "scifact.judged": 0.10,
    "pubmedqa-l.judged": 0.03,
    "nq-oracle.title": 0.05,
    "scifact.title": 0.11,
    "scifact.cloze": 0.09,
    "squad11-dev.cloze": 0.06,
    "nq-oracle.cloze": 0.05,
    "pubmedqa-l.cloze": 0.02,
    "docs.mined": 0.15,
}

_DOCS = "docs"
"""The pool that is no judged set: documentation of what is installed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Mine what is missing, train, write the final directories."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    pools = options.pools or out / "pools"
    shares = {name: share for name, share in SHARES.items() if not name.startswith(tuple(options.leave_out))}
    if any(not (pools / f"{name}.json.gz").exists() for name in shares):
        _mine(options, pools, shares)
    lists = Mixture(pools_in(pools, shares), options.seed, ListConfig())
    model = LayeredReranker.from_directory(options.base, options.seed, options.probes)
    model.freeze_words()
    vocabulary = options.base / "tokenizer.json"
    config = TrainConfig(
        options.steps,
        options.minutes,
        peak_rate=options.rate,
        threads=options.threads,
        bfloat16=in_bfloat16(options.precision),
    )
    tokenizer = pair_tokenizer(vocabulary, options.max_tokens)
    trainer = Trainer(model, tokenizer, lists, config, LossConfig())
    state = out / "state.pt"
    if options.resume and state.exists():
        trainer.restore(torch.load(state, weights_only=True))
    recipe = {
        "seed": options.seed,
        "shares": shares,
        "lists": asdict(ListConfig()),
        "train": asdict(config),
        "loss": asdict(LossConfig()),
        "max_tokens": options.max_tokens,
        "probes": options.probes,
        "from_step": trainer.step,
    }
    append_line(out / "recipe.jsonl", recipe)

    def save(run: Trainer) -> None:
        write_state(state, run.state())
        model.save(out / "snapshots" / str(run.step), vocabulary, half=True)

    trainer.run(save, lambda line: append_line(out / "log.jsonl", line))
    model.save(out / "last", vocabulary)
    trainer.use_mean()
    model.save(out / "mean", vocabulary)
    print(json.dumps({"steps": trainer.step, "seconds": round(trainer.elapsed), "out": out.name}))
    return 0


def _mine(options: argparse.Namespace, pools: Path, shares: Collection[str]) -> None:
    from .encoder import BiEncoder
    from .prepare import prepare

    sets = {name.split(".")[0] for name in shares}
    search = [Path(p) for p in options.packages] or [Path(sysconfig.get_paths()["purelib"])]
    trees = [Path(p) for p in options.sources] or [Path(sysconfig.get_paths()["stdlib"])]
    if _DOCS not in sets:
        search, trees = [], []
    encoder = BiEncoder(options.base, options.max_tokens)
    encode = partial(encoder.encode, precision=options.precision)
    judged = [options.data / name for name in sorted(sets - {_DOCS})]
    prepare(judged, encode, pools, search, trees, options.seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="edge.models.training.reranker", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of judged sets in BEIR layout")
    parser.add_argument("--base", type=Path, required=True, help="Hugging Face directory to start from")
    parser.add_argument("--out", type=Path, required=True, help="folder for pools, log, checkpoints, result")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--minutes", type=float, default=0.0, help="wall time of the run, pauses included")
    length.add_argument("--steps", type=int, default=0, help="length in steps: the reproducible choice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=TrainConfig(steps=1).peak_rate, help="peak learning rate")
    parser.add_argument("--max-tokens", type=int, default=160, help="query and passage together")
    parser.add_argument("--probes", type=int, default=3, help="first layers that are scored by probes of their own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=CHOICES, default="auto", help="auto: what is faster here")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/state.pt if it is there")
    parser.add_argument("--leave-out", action="append", default=[], metavar="SET", help="no lists from this set")
    parser.add_argument("--pools", type=Path, help="pools mined earlier (default OUT/pools)")
    parser.add_argument("--packages", action="append", default=[], metavar="DIR", help="installed packages")
    parser.add_argument("--sources", action="append", default=[], metavar="DIR", help="sources, documentation")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
