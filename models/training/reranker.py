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
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from .lists import ListConfig, Mixture, pools_in
from .loss import LossConfig
from .model import LayeredReranker, pair_tokenizer
from .precision import CHOICES, in_bfloat16
from .trainer import TrainConfig, Trainer, append_line, write_state

# Each pool's share of the lists. Half of the lists are questions and claims that people wrote. Titles, cloze sentences
# and documentation keep the model general. squad alone could fill the run, so it is limited to a quarter.
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

WIDE = "wide."
"""Name prefix of pools over gathered texts (`wide`). Their shares are proportional to the root of their size."""

_DOCS = "docs"
"""The set name of pools over the documentation of installed packages, which is not a judged set."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Mine the missing pools, train, and write the final directories."""
    parser = _parser()
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    pools = options.pools or out / "pools"
    device = torch.device(options.device)
    try:
        shares = shares_of(pools, options.wide, options.leave_out)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    if any(not (pools / f"{name}.npz").exists() for name in shares):
        _mine(options, pools, shares)
    shown = replace(ListConfig(), candidates=options.candidates)
    lists = Mixture(pools_in(pools, shares), options.seed, shown)
    model = LayeredReranker.from_directory(options.base, options.seed, options.probes, device)
    model.freeze_words()
    vocabulary = options.base / "tokenizer.json"
    config = TrainConfig(
        options.steps,
        options.minutes,
        lists_per_step=options.lists,
        peak_rate=options.rate,
        batch_tokens=options.batch_tokens,
        threads=options.threads,
        workers=options.workers,
        bfloat16=in_bfloat16(options.precision, device.type),
        log_steps=options.log_steps,
    )
    tokenizer = pair_tokenizer(vocabulary, options.max_tokens)
    trainer = Trainer(model, tokenizer, lists, config, LossConfig())
    state = out / "state.pt"
    if options.resume and state.exists():
        trainer.restore(torch.load(state, weights_only=True, map_location=device))
    recipe = {
        "seed": options.seed,
        "shares": shares,
        "lists": asdict(shown),
        "train": asdict(config),
        "loss": asdict(LossConfig()),
        "max_tokens": options.max_tokens,
        "probes": options.probes,
        "from_step": trainer.step,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
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


def shares_of(pools: Path, wide: float, left_out: Sequence[str]) -> dict[str, float]:
    """Each pool's share of the lists. Pools over gathered texts have ``wide`` together; `SHARES` divides the rest.

    Args:
        pools: the folder of pools. The pools over gathered texts must exist already.
        wide: share from 0 to 1. Above 0 the pools over the documentation of installed packages are not used.
        left_out: sets and domains that are left out, with their judged queries and their texts.

    Raises:
        ValueError: ``wide`` is outside 0 to 1, no pool has a name of ``left_out``, or no pool is left.
        FileNotFoundError: there are no pools over gathered texts.
    """
    if not 0.0 <= wide <= 1.0:
        raise ValueError(f"the share of gathered texts is a number from 0 to 1, not {wide}")
    sizes = {path.name.removesuffix(".npz"): path.stat().st_size for path in sorted(pools.glob(f"{WIDE}*.npz"))}
    unknown = set(left_out) - {_set_of(name) for name in (*SHARES, *sizes)}
    if unknown:
        raise ValueError(f"no pool is of {', '.join(sorted(unknown))}: nothing would be left out")
    found = {n: s for n, s in SHARES.items() if _set_of(n) not in left_out and not (wide and _set_of(n) == _DOCS)}
    total = sum(found.values())
    found = {name: share * (1 - wide) / total for name, share in found.items()} if wide < 1.0 else {}
    if wide > 0:
        roots = {name: size**0.5 for name, size in sizes.items() if _set_of(name) not in left_out}
        if not roots:
            raise FileNotFoundError(
                f"no pools over gathered texts in {pools}: make them with edge.models.training.wide"
            )
        found |= {name: wide * root / sum(roots.values()) for name, root in roots.items()}
    if not found:
        raise ValueError("every pool is left out: nothing to train on")
    return found


def _set_of(name: str) -> str:
    """The set or domain in a pool's name, such as "scifact" in "scifact.judged" and in "wide.scifact"."""
    return name.removeprefix(WIDE) if name.startswith(WIDE) else name.split(".")[0]


def _mine(options: argparse.Namespace, pools: Path, shares: Collection[str]) -> None:
    from .encoder import BiEncoder
    from .prepare import prepare

    sets = {name.split(".")[0] for name in shares if not name.startswith(WIDE)}
    search = [Path(p) for p in options.packages] or [Path(sysconfig.get_paths()["purelib"])]
    trees = [Path(p) for p in options.sources] or [Path(sysconfig.get_paths()["stdlib"])]
    if _DOCS not in sets:
        search, trees = [], []
    device = torch.device(options.device)
    encoder = BiEncoder(options.encoder or options.base, options.max_tokens, device)
    encode = partial(encoder.encode, precision=options.precision)
    judged = [options.data / name for name in sorted(sets - {_DOCS})]
    prepare(judged, encode, pools, search, trees, options.seed, device=device)


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
    parser.add_argument("--wide", type=float, default=0.0, help="share of the lists over gathered texts (see wide)")
    parser.add_argument("--lists", type=int, default=TrainConfig(steps=1).lists_per_step, help="lists per step")
    parser.add_argument("--candidates", type=int, default=ListConfig().candidates, help="passages per list")
    parser.add_argument("--batch-tokens", type=int, default=TrainConfig(steps=1).batch_tokens, help="of one chunk")
    parser.add_argument("--log-steps", type=int, default=TrainConfig(steps=1).log_steps)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare the steps, beside this one")
    parser.add_argument("--encoder", type=Path, help="bi-encoder for mining, if it is not the base")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=CHOICES, default="auto", help="auto: what is faster here")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/state.pt if it is there")
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="SET", help="no lists of this set or domain"
    )
    parser.add_argument("--pools", type=Path, help="pools mined earlier (default OUT/pools)")
    parser.add_argument("--packages", action="append", default=[], metavar="DIR", help="installed packages")
    parser.add_argument("--sources", action="append", default=[], metavar="DIR", help="sources, documentation")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
