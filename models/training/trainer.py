"""The training loop: schedule, steps, and checkpoints from which a killed run continues."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .feeding import Feed, Source, Step
from .loss import LossConfig, list_loss
from .model import LayeredReranker


@dataclass(frozen=True)
class TrainConfig:
    """The settings of one run. It ends after ``steps`` or after ``minutes`` of wall time, pauses included.

    With ``steps`` the run is a function of seed, data and the machine's arithmetic. With ``minutes`` the number of
    steps, and therefore the schedule, also depends on the machine's speed. The log holds the steps.
    """

    steps: int = 0
    minutes: float = 0.0
    lists_per_step: int = 8
    peak_rate: float = 5e-5
    head_factor: float = 3.0
    probe_rate: float = 5e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.998
    batch_tokens: int = 1500
    threads: int = 2
    workers: int = 0
    bfloat16: bool = True
    save_seconds: float = 600.0
    log_steps: int = 10

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.minutes > 0):
            raise ValueError(f"give steps or minutes, one of them: steps {self.steps}, minutes {self.minutes}")


class Trainer:
    """Model, optimizer, running average and position. `run` continues from the current position."""

    def __init__(
        self, model: LayeredReranker, tokenizer: Tokenizer, lists: Source, config: TrainConfig, loss: LossConfig
    ) -> None:
        self.model, self.config = model, config
        self._loss = loss
        self._feed = Feed(lists, tokenizer, config.lists_per_step, config.batch_tokens, config.workers)
        self.step = 0
        self.elapsed = 0.0
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        probes = [p for n, p in named if n.startswith("probes.")]
        head = [p for n, p in named if "pooler" in n or "classifier" in n]
        body = [p for n, p in named if not n.startswith("probes.") and "pooler" not in n and "classifier" not in n]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": body, "factor": 1.0},
                {"params": head, "factor": config.head_factor},
                {"params": probes, "factor": config.probe_rate / config.peak_rate},
            ],
            lr=config.peak_rate,
            weight_decay=config.weight_decay,
            fused=model.device.type == "cuda",
        )
        self._trained = dict(named)
        self._pool = ThreadPoolExecutor(config.threads, initializer=torch.set_num_threads, initargs=(1,))
        self.mean = {n: p.detach().clone() for n, p in named}

    @property
    def progress(self) -> float:
        """The finished share of the run, 0 to 1."""
        if self.config.steps:
            return min(1.0, self.step / self.config.steps)
        return min(1.0, self.elapsed / (60 * self.config.minutes))

    @property
    def rate(self) -> float:
        """Linear warm-up over steps, then linear decay to zero over the run."""
        warm = min(1.0, (self.step + 1) / max(1, self.config.warmup_steps))
        return self.config.peak_rate * warm * (1.0 - self.progress)

    def run(self, save: Callable[[Trainer], None], log: Callable[[dict[str, Any]], None]) -> None:
        """Train to the end. ``save`` is called every ``save_seconds`` and once at the end."""
        try:
            self._run(save, log)
        finally:
            self._feed.close()
        save(self)

    def _run(self, save: Callable[[Trainer], None], log: Callable[[dict[str, Any]], None]) -> None:
        started, before, saved = time.monotonic(), self.elapsed, time.monotonic()
        pending: dict[str, Any] = {}
        ranking = torch.zeros(self.model.depth, device=self.model.device)
        while self.progress < 1.0:
            found = self.advance()
            self.elapsed = before + time.monotonic() - started
            for key in ("loss", "pairs", "tokens"):
                pending[key] = pending.get(key, 0.0) + found[key]
            pending["steps"] = pending.get("steps", 0.0) + 1
            ranking += found["ranking"]
            if self.step % self.config.log_steps == 0:
                n = pending["steps"]  # fewer than usual just after a resume
                line = {"step": self.step, "rate": self.rate, "loss": float(pending["loss"]) / n}
                line |= {"pairs": pending["pairs"], "tokens": pending["tokens"], "seconds": self.elapsed}
                log(line | {"layers": [round(float(v) / n, 4) for v in ranking]})
                pending, ranking = {}, torch.zeros_like(ranking)
            if time.monotonic() - saved > self.config.save_seconds:
                save(self)
                saved = time.monotonic()

    def advance(self) -> dict[str, Any]:
        """One optimizer step over the next ``lists_per_step`` lists."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate * group["factor"]
        step = self._feed.step(self.step)
        device = self.model.device
        self.model.train()
        graphs = self._forward(step)
        places = torch.tensor(step.places, device=device)
        scores = torch.cat([graph.detach() for graph in graphs], dim=1)
        logits = scores[:, torch.argsort(places)].reshape(-1, step.lists, step.width).requires_grad_()
        positive = torch.zeros(step.lists, step.width, device=device)
        positive[:, 0] = 1.0
        teacher, trust = step.teacher.to(device), step.trust.to(device)
        loss, ranking = list_loss(logits, positive, teacher, trust, self._loss)
        (slope,) = torch.autograd.grad(loss, logits)
        self._backward(graphs, slope.reshape(self.model.depth, -1)[:, places])
        torch.nn.utils.clip_grad_norm_(self._trained.values(), self.config.clip)
        self._optimizer.step()
        self.step += 1
        with torch.no_grad():
            # the running mean starts with a short memory; otherwise it would hold the untrained head for many steps
            keep = min(self.config.ema, (1 + self.step) / (10 + self.step))
            torch._foreach_lerp_(list(self.mean.values()), list(self._trained.values()), 1 - keep)
        return {"loss": loss.detach(), "pairs": step.lists * step.width, "tokens": step.tokens, "ranking": ranking}

    def _forward(self, step: Step) -> list[Tensor]:
        """Scores of each chunk with its graph. On a CPU each chunk runs on one thread of the pool, so that a core which
        is busy with other programs slows only its own chunks and not every operation."""
        device = self.model.device

        def scored(chunk: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            ids, mask, types = (part.to(device, non_blocking=True) for part in chunk)
            with torch.autocast(device.type, torch.bfloat16, enabled=self.config.bfloat16, cache_enabled=False):
                scores: Tensor = self.model(ids, mask, types)
            return scores

        return list(map(scored, step.chunks) if device.type == "cuda" else self._pool.map(scored, step.chunks))

    def _backward(self, graphs: Sequence[Tensor], slope: Tensor) -> None:
        """Gradients of the loss, given its derivative in each score. The chunks' gradients are summed in chunk order,
        so that the sum does not depend on the threads."""
        weights = list(self._trained.values())
        for weight in weights:
            weight.grad = None
        parts = list(zip(graphs, torch.split(slope, [graph.shape[1] for graph in graphs], dim=1), strict=True))
        if self.model.device.type == "cuda":
            for graph, part in parts:
                torch.autograd.backward(graph, part)
            return

        def gradient(part: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
            return torch.autograd.grad(part[0], weights, part[1])

        for found in self._pool.map(gradient, parts):
            for weight, value in zip(weights, found, strict=True):
                weight.grad = value if weight.grad is None else weight.grad.add_(value)

    def state(self) -> dict[str, Any]:
        """The state that `restore` needs to continue exactly from this position."""
        return {
            "step": self.step,
            "elapsed": self.elapsed,
            "trained": {n: p.detach() for n, p in self._trained.items()},
            "mean": self.mean,
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        if state["trained"].keys() != self._trained.keys():
            raise ValueError("checkpoint of another model: the trained parameters differ")
        self.step, self.elapsed = int(state["step"]), float(state["elapsed"])
        with torch.no_grad():
            for name, value in state["trained"].items():
                self._trained[name].copy_(value)
                self.mean[name].copy_(state["mean"][name])
        self._optimizer.load_state_dict(state["optimizer"])

    def use_mean(self) -> None:
        """Replace the last step's weights by the running average."""
        with torch.no_grad():
            for name, value in self.mean.items():
                self._trained[name].copy_(value)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a temporary file, flush it to the disk, and rename it, so that the file appears whole or not at all."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)


def append_line(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
