"""`edge plan rag`: finds the Pareto-optimal schedules of a pipeline, such as one of the assistant's, on accelerators or
on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from edge.apps.assistant.pipelines import INTERVAL
from edge.apps.options import FiniteRange, json_option
from edge.apps.plan.here import Here, here_options, plan_here
from edge.apps.verbs.requests import AskOptions
from edge.config import format_duration, format_size, parse_size
from edge.errors import InputError
from edge.files.named_file import read_text
from edge.planner.schedule import Plan, Problem, bottleneck, cluster_placements, plans
from edge.planner.tables import (
    ACCELERATORS,
    BATCHES,
    HOST,
    MODELS,
    Model,
    RagSchema,
    StageTable,
    modelled_tables,
)

_OPTIONS = AskOptions()
_PASSAGE = 200  # Tokens of a collection's passage, about.
_QUESTION = 120  # Tokens of the instructions and the question, about.
_READ = _QUESTION + _OPTIONS.given(writes=True) * _PASSAGE
_ANSWER = 128  # Tokens of an answer, about; at most 256 are written.

EMBEDDER = Model("embedder", 22.7e6, 6, 384, weight_nbytes=4)
RERANKER = Model("reranker", 22.7e6, 6, 384, weight_nbytes=4)


def _schemas() -> dict[str, RagSchema]:
    llm = MODELS["llama-8b"]
    plain = RagSchema(
        "plain", llm, prefix_tokens=_READ, decode_tokens=_ANSWER, vectors=1e6, vector_nbytes=388, scanned=0.05,
        encoder=EMBEDDER, encoder_tokens=32, reranker=RERANKER, candidates=_OPTIONS.pool, passage_tokens=_PASSAGE,
    )  # fmt: skip
    rounds = _OPTIONS.rounds
    return {
        "plain": plain,
        # A hypothetical passage of up to 128 tokens is embedded beside the question.
        "hyde": replace(
            plain, name="hyde", rewriter=llm, rewrite_prefix=_QUESTION, rewrite_decode=128, encoder_tokens=160
        ),
        # Up to four questions are searched as one batch, and share the pool.
        "subquestion": replace(
            plain, name="subquestion", rewriter=llm, rewrite_prefix=_QUESTION, rewrite_decode=80,
            queries_per_retrieval=4, encoder_tokens=4 * 32,
        ),
        # A round asks a narrower question, answers it in up to 96 tokens, and judges whether that is enough in 4.
        "iterative": replace(
            plain, name="iterative", rewriter=llm, rewrite_prefix=2 * _QUESTION, rewrite_decode=32, rewrites=rounds,
            rounds=rounds, retrieval_frequency=rounds, encoder_tokens=rounds * 32,
            drafts=2 * rounds, draft_prefix=(_READ + 2 * _QUESTION) // 2, draft_decode=50,
        ),
        "iter-retgen": replace(
            plain, name="iter-retgen", rounds=rounds, retrieval_frequency=rounds,
            encoder_tokens=32 + (rounds - 1) * (32 + _ANSWER), drafts=rounds - 1, draft_prefix=_READ,
            draft_decode=_ANSWER,
        ),
        # A sentence that is uncertain is looked up while the answer is written, up to `rounds` times.
        "flare": replace(plain, name="flare", retrieval_frequency=1 + rounds, encoder_tokens=(1 + rounds) * 32),
        # Decides whether to retrieve; then drafts from each of three passages, with two judgements each. The best draft
        # is the answer.
        "self-rag": replace(
            plain, name="self-rag", rewriter=llm, rewrite_prefix=_QUESTION, rewrite_decode=4, decode_tokens=0,
            drafts=9, draft_prefix=_QUESTION + 2 * _PASSAGE // 3, draft_decode=(_ANSWER + 4 + 4) // 3,
        ),
        "piperag": replace(
            plain, name="piperag", retrieval_frequency=_ANSWER / INTERVAL, overlapped=True,
            encoder_tokens=_ANSWER // INTERVAL * 64,
        ),
    }  # fmt: skip


PIPELINE_SCHEMAS: Mapping[str, RagSchema] = _schemas()
"""By the names of `--pipeline`, for a million passages, the default embedder and reranker, and a generator of 8 billion
weights. Lengths of replies are the prompts' limits, or about half where models stop early."""


GOALS: Mapping[str, Callable[[Plan], float]] = {
    "throughput": lambda plan: -plan.outcome.throughput_per_device,
    "ttft": lambda plan: plan.outcome.ttft,
    "tpot": lambda plan: plan.outcome.tpot,
    "memory": lambda plan: plan.outcome.nbytes,
}
"""Ties are broken by the other goals in this order."""

_ROWS = 12

_STAGES = 6

_CHIPS = 128

HERE = "here"


@click.command("rag")
@click.argument("schema", metavar="SCHEMA")
@click.option(
    "--on",
    "device",
    type=click.Choice([*ACCELERATORS, HERE]),
    default="xpu-c",
    show_default=True,
    help="Accelerator, by its published constants, or this machine, by the measurements of `edge profile`.",
)
@click.option("--accelerators", type=click.IntRange(1, 4096), help=f"The most that may be used, {_CHIPS} if not given.")
@click.option("--memory", help="The most bytes that all devices together may hold, such as 2TB.")
@click.option(
    "--goal",
    type=click.Choice(list(GOALS)),
    default="throughput",
    show_default=True,
    help="Goal that the chosen schedule is best in.",
)
@click.option(
    "--ttft",
    type=FiniteRange(0, min_open=True),
    help="The longest time to the first token of the chosen schedule, in seconds.",
)
@here_options
@json_option
def rag(
    schema: str,
    device: str,
    accelerators: int | None,
    memory: str | None,
    goal: str,
    ttft: float | None,
    here: Here,
    as_json: bool,
) -> None:
    """Plan the pipeline SCHEMA: which stages share devices, how many devices there are, and the sizes of batches.

    SCHEMA is a pipeline of `edge ask` (plain, hyde, ...), or a JSON file with the fields of a schema (- reads stdin).
    With `--on here` the answers at a time, the reuse of documents' states and the split of cores are chosen for a
    server, beside one without a plan.
    """
    most = None if memory is None else parse_size(memory)
    if device == HERE:
        if accelerators is not None:
            raise InputError("--accelerators is not for plans with --on here: this machine is one device")
        if schema not in PIPELINE_SCHEMAS:
            raise InputError(f"{schema!r} was not profiled: with --on here the schema is a pipeline of `edge ask`")
        plan_here(schema, here, [GOALS[name] for name in (goal, *GOALS)], ttft, most, as_json=as_json)
        return
    if here != Here(None, None, None, None):
        raise InputError("--rate, --llm, --output and --collection are for plans with --on here")
    accelerators = accelerators or _CHIPS
    described = read_schema(schema)
    tables = grid(described, device, accelerators)
    hardware = ACCELERATORS[device]
    problem = Problem(
        described, tables, cluster_placements(described), accelerators, hardware.memory,
        memory=most,
    )  # fmt: skip
    found = plans(problem)
    best = choose(found, goal, ttft)
    if as_json:
        group, stage = bottleneck(problem, best)
        result = {
            "schema": described.to_json(), "device": device, "accelerators": accelerators, "goal": goal,
            "origins": {
                stage.name: "predicted" if stage.kind == "retrieve" else "calibrated" for stage in described.stages()
            },
            "plans": [plan_json(plan) for plan in found], "chosen": plan_json(best),
            "bottleneck": {"stage": stage, "devices": group.devices}, "sentence": sentence(problem, best),
        }  # fmt: skip
        click.echo(json.dumps(result))
        return
    click.echo("\n".join(table(found, best, _ROWS)))
    click.echo(sentence(problem, best))
    click.echo("Nothing was measured: times are predicted and calibrated from published constants.", err=True)


def grid(schema: RagSchema, device: str, accelerators: int) -> dict[str, StageTable]:
    """Devices and batches are powers of two, as in the source; of four and eight for longer pipelines than published
    ones."""
    long = len(schema.stages()) > _STAGES
    chips = [2**i for i in range(0, accelerators.bit_length(), 2 if long else 1)]
    servers = [count for count in (1, 2, 4, 8, 16, 32) if count * HOST.accelerators <= accelerators] or [1]
    if long:  # only the smallest number of servers that holds the database, and the largest number
        holding = [count for count in servers if schema.database_nbytes <= count * HOST.memory] or servers
        servers = sorted({holding[0], servers[-1]})
    batches = BATCHES[:: 3 if long else 1]
    return modelled_tables(schema, ACCELERATORS[device], chips=chips, servers=servers, batches=batches)


def read_schema(text: str) -> RagSchema:
    if text in PIPELINE_SCHEMAS:
        return PIPELINE_SCHEMAS[text]
    if text != "-" and not Path(text).exists():
        raise InputError(f"there is no schema and no file {text!r}; schemas are {', '.join(PIPELINE_SCHEMAS)}")
    return RagSchema.from_json(read_text(text))


def choose(found: Sequence[Plan], goal: str, ttft: float | None) -> Plan:
    fast = [plan for plan in found if ttft is None or plan.outcome.ttft <= ttft]
    if not fast:
        raise InputError(
            f"no schedule has its first token within {format_duration(ttft or 0)}; the fastest needs "
            f"{format_duration(min(plan.outcome.ttft for plan in found))}"
        )
    order = [goal, *(name for name in GOALS if name != goal)]
    return min(fast, key=lambda plan: tuple(GOALS[name](plan) for name in order))


def arranged(plan: Plan) -> str:
    """Such as `[encode 2 + prefill 128] x 64`."""
    groups = []
    for group in plan.schedule.groups:
        stages = " + ".join(f"{choice.stage} {choice.point.batch}" for choice in group.choices)
        device = " servers" if group.retrieves else ""
        groups.append(f"[{stages}] x {group.devices}{device}")
    loop = f"; looping in batches of {plan.schedule.loop_batch}" if plan.schedule.loop_batch else ""
    return " ".join(groups) + loop


_COLUMNS, _BELOW = 80, " " * 6


def table(plans: Sequence[Plan], chosen: Plan, rows: int) -> Iterator[str]:
    """A header and about `rows` plans, picked evenly by time to first token, each with its stages on lines below."""
    yield f"  {'first token':>11}{'per token':>12}{'requests/s':>13}{'per device':>13}{'memory':>11}"
    yield f"{_BELOW}[stages with their batches] x devices"
    step = max(1, -(-len(plans) // rows))
    for number, plan in enumerate(plans):
        if plan is chosen or number % step == 0 or number == len(plans) - 1:
            o = plan.outcome
            mark = "*" if plan is chosen else " "
            yield (
                f"{mark} {format_duration(o.ttft):>11}{format_duration(o.tpot):>12}{_figure(o.throughput):>13}"
                f"{_figure(o.throughput_per_device):>13}{format_size(int(o.nbytes)):>11}"
            )
            yield from wrap(arranged(plan), _COLUMNS, initial_indent=_BELOW, subsequent_indent=_BELOW)
    if step > 1:
        yield f"  ({len(plans)} schedules that no other one beats; --json prints all)"


def _figure(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.12g}"


def sentence(problem: Problem, plan: Plan) -> str:
    o = plan.outcome
    group, stage = bottleneck(problem, plan)
    where = "servers" if group.retrieves else "devices"
    share = f"its {group.devices} {where} set the rate" if group.devices > 1 else "it sets the rate"
    written = f", {format_duration(o.tpot)} per token after it" if o.tpot else ""
    return (
        f"{problem.schema.name} with {o.devices} device{'s' if o.devices != 1 else ''} and "
        f"{format_size(int(o.nbytes))} serves {_figure(o.throughput)} requests per second, the first token after "
        f"{format_duration(o.ttft)}{written}; the stage {stage} is the bottleneck: {share}."
    )


def plan_json(plan: Plan) -> dict[str, Any]:
    """In seconds, bytes and requests per second."""
    o = plan.outcome
    return {
        "ttft_s": o.ttft, "tpot_s": o.tpot, "throughput": o.throughput, "devices": o.devices,
        "throughput_per_device": o.throughput_per_device, "nbytes": o.nbytes, "loop_batch": plan.schedule.loop_batch,
        "groups": [
            {
                "devices": group.devices, "kind": "servers" if group.retrieves else "accelerators",
                "stages": [
                    {"name": c.stage, "batch": c.point.batch, "latency_s": c.point.latency, "how": c.point.how}
                    for c in group.choices
                ],
            }
            for group in plan.schedule.groups
        ],
    }  # fmt: skip
