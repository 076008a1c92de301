"""The profile of this machine for a collection: its file, the conditions it is valid under, and its measurement."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import psutil

from edge.apps.assistant.base import AskOptions
from edge.apps.plan.visits import Schedule, reading, visited
from edge.config import Config
from edge.control_characters import escaped
from edge.files.sealed import digest
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER
from edge.planner.measured import LimitProfile

DEPTHS: Sequence[int] = (0, 8, 30, 60)
"""The reranking depths that are measured; 0 means without reranking."""

PASSAGES: Sequence[int] = (2, 4, 8)

_FILE = "profile-{}.json"


def profile_path(collection: Path, conditions: Mapping[str, str]) -> Path:
    """The path of a collection's profile under some conditions."""
    return collection / _FILE.format(digest(conditions)[:12])


def conditions(config: Config, pipeline: str) -> dict[str, str]:
    """The conditions that the times depend on: the machine, the pipeline, the models and the threads."""
    return {
        "pipeline": pipeline,
        "machine": f"{platform.machine()} {_processor()}, {psutil.cpu_count()} processors, "
        f"{psutil.virtual_memory().total >> 20} MiB, {platform.system()}",
        "embedder": config.embedder or DEFAULT_EMBEDDER,
        "reranker": config.reranker or DEFAULT_RERANKER,
        "llm": config.llm or "extractive",
        "runtime": config.runtime,
        "threads": str(config.threads),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "processor"


def options_of(depth: int, passages: int, max_tokens: int) -> AskOptions:
    """The options of an answer with a reranking depth (0: without reranking) and a number of passages."""
    return AskOptions(
        passages=passages, pool=max(depth or AskOptions().pool, passages), rerank=depth > 0, max_tokens=max_tokens
    )


def measure(
    place: Path,
    config: Config,
    questions: Sequence[str],
    *,
    pipeline: str,
    max_tokens: int,
    rounds: int,
    say: Callable[[str], None],
) -> LimitProfile:
    """Measures answers under the configuration's memory limit, with each reranking depth. Without reranking and at the
    middle depth, each number of passages is measured. See `visited`."""
    middle = DEPTHS[len(DEPTHS) // 2]
    schedules = [
        Schedule(config.memory, depth, passages)
        for depth in DEPTHS
        for passages in (PASSAGES if depth in (0, middle) else PASSAGES[1:2])
    ]
    found = visited(
        place, config, questions, schedules, pipeline=pipeline, max_tokens=max_tokens, rounds=rounds, say=say
    )
    for trouble in found[schedules[0]][0].troubles:
        click.echo(escaped(f"edge: {trouble}"), err=True)
    return LimitProfile(config.memory, [reading(schedule, found[schedule]) for schedule in schedules])
