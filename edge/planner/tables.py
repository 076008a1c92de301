"""A pipeline (`RagSchema`), and the cost of its stages: points by devices and batch. Accelerators are modelled by
rooflines, and retrieval by the bytes scanned (Jiang's thesis, sections 3.3.3 and 3.4)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from edge.errors import InputError

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Point:
    """A stage on some devices with some calls done together: seconds until the batch is done, and until the next one
    can begin; bytes of the model on all devices, and beside it while a batch runs."""

    devices: int
    batch: int
    latency: float
    interval: float
    weights: float = 0.0
    working: float = 0.0
    how: str = ""


@dataclass(frozen=True, slots=True)
class StageTable:
    stage: str
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise InputError(f"nothing is known about the stage {self.stage}: it fits no number of devices")

    def devices(self) -> list[int]:
        """The numbers of devices for which there are points, ascending."""
        return sorted({point.devices for point in self.points})

    def at(self, devices: int) -> list[Point]:
        return [point for point in self.points if point.devices == devices]

    def batched(self, devices: int, batch: int) -> list[Point]:
        return [point for point in self.points if point.devices == devices and point.batch == batch]


Costs = npt.NDArray[np.float64]
"""One row for each choice, one column for each cost; lower is better."""

_BLOCK = 256

_STRONGEST = 64
"""Rows that all others are compared with first."""


def frontier(costs: Costs) -> npt.NDArray[np.intp]:
    """The rows of `costs` [n, d] that no other dominates, ascending by the first column, equals once."""
    hopeful = _hopeful(costs)
    order = hopeful[np.lexsort(costs[hopeful].T[::-1])]
    # In this order no row is dominated by a later one.
    kept_rows = np.empty((0, costs.shape[1]))
    kept: list[npt.NDArray[np.intp]] = []
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        rows = costs[block]
        left = ~_beaten(rows, kept_rows)
        block, rows = block[left], rows[left]
        within = (rows[None, :, :] <= rows[:, None, :]).all(axis=2)  # within[i, j]: row j is nowhere larger than row i
        earlier = np.tril(np.ones((len(block), len(block)), bool), -1)
        stays = ~(within & earlier).any(axis=1)
        kept.append(block[stays])
        kept_rows = np.concatenate((kept_rows, rows[stays]))
    return np.concatenate(kept) if kept else np.empty(0, np.intp)


def unbeaten(points: Iterable[Point]) -> list[Point]:
    """The points that no other one with the same devices and batch dominates in latency, interval and bytes."""
    groups: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.devices, point.batch), []).append(point)
    return [
        groups[key][row]
        for key in sorted(groups)
        for row in frontier(np.array([(p.latency, p.interval, p.weights + p.working) for p in groups[key]]))
    ]


def _hopeful(costs: Costs) -> npt.NDArray[np.intp]:
    """The rows that the few with the smallest sum of ranks in all columns do not dominate."""
    if len(costs) <= 2 * _STRONGEST:
        return np.arange(len(costs))
    ranks = costs.argsort(axis=0).argsort(axis=0).sum(axis=1)
    strongest = ranks.argpartition(_STRONGEST)[:_STRONGEST]
    left = ~_beaten(costs, costs[strongest])
    left[strongest] = True
    return np.flatnonzero(left)


def _beaten(rows: Costs, by: Costs) -> npt.NDArray[np.bool_]:
    beaten = np.zeros(len(rows), bool)
    for start in range(0, len(by), 2048):
        part = by[start : start + 2048]
        left = np.flatnonzero(~beaten)
        smaller = np.ones((len(left), len(part)), bool)
        for column in range(rows.shape[1]):
            smaller &= part[None, :, column] <= rows[left, None, column]
        beaten[left] = smaller.any(axis=1)
    return beaten


EFFICIENCY = 0.9
"""Share of an accelerator's peak that models reach. Calibrated: of 1.0, 0.9 and 0.7, it fits figure 3.5c best."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator, of whose operations and memory bandwidth models reach the share `efficiency`."""

    name: str
    flops: float
    memory: float
    bandwidth: float
    network: float
    efficiency: float = EFFICIENCY


@dataclass(frozen=True, slots=True)
class Host:
    """A retrieval server. A query runs on one core; scans reach `utilisation` of the memory bandwidth."""

    name: str = "EPYC Milan"
    cores: int = 96
    memory: float = 384e9
    bandwidth: float = 460e9
    scan_rate: float = 18e9
    utilisation: float = 0.8
    accelerators: int = 4


ACCELERATORS: Mapping[str, Accelerator] = {
    "xpu-a": Accelerator("xpu-a", 197e12, 16e9, 819e9, 200e9),
    "xpu-b": Accelerator("xpu-b", 275e12, 32e9, 1200e9, 300e9),
    "xpu-c": Accelerator("xpu-c", 459e12, 96e9, 2765e9, 600e9),
}
"""Published constants (Jiang's thesis, table 3.2). They resemble TPU v5e, v4 and v5p."""

HOST = Host()
"""Published constants (Jiang's thesis, section 3.4). The scan rate was measured there for ScaNN on an EPYC 7R13."""

BATCHES: Sequence[int] = tuple(2**i for i in range(11))
"""Batch sizes from 1 to 1,024, in powers of two as in the source."""


def roofline(flops: float, nbytes: float, comm: float, chips: int, device: Accelerator) -> float:
    """Seconds of an operator over `chips`: the longest of computing, reading memory, and sending `comm` bytes each."""
    peak = device.efficiency * chips
    return max(flops / (device.flops * peak), nbytes / (device.bandwidth * peak), comm / device.network)


def _sent(model: Model, tokens: float, chips: int) -> float:
    """Bytes that a chip sends for `tokens`: each layer has two all-reduces of twice the states, in 16 bits."""
    return 8.0 * model.layers * model.hidden * tokens * (chips - 1) / chips


def forward_seconds(model: Model, tokens: float, chips: int, device: Accelerator) -> float:
    """Seconds to read `tokens` tokens together, with every matrix divided over `chips`. Attention is left out."""
    return roofline(2 * model.params * tokens, model.nbytes, _sent(model, tokens, chips), chips, device)


def step_seconds(model: Model, batch: int, context: float, chips: int, device: Accelerator) -> float:
    """Seconds to write one token for each of `batch` requests whose KV states hold `context` tokens."""
    nbytes = model.nbytes + batch * model.kv_nbytes * context
    return roofline(2 * model.params * batch, nbytes, _sent(model, batch, chips), chips, device)


def retrieval_seconds(queries: int, nbytes: float, servers: int, host: Host = HOST) -> float:
    """Seconds to search a batch, which scans `nbytes` on all servers, in waves of as many as there are cores."""
    active = min(queries, host.cores)
    rate = min(active * host.scan_rate, host.utilisation * host.bandwidth)
    return math.ceil(queries / host.cores) * active * nbytes / servers / rate


def retrieval_points(stage: Stage, servers: Iterable[int], batches: Iterable[int], host: Host = HOST) -> list[Point]:
    """The table of a retrieval stage. Numbers of servers that cannot hold the database are left out."""
    batches = tuple(batches)
    points = []
    for count in servers:
        if stage.database <= count * host.memory:
            for batch in batches:
                seconds = retrieval_seconds(batch * stage.queries, stage.nbytes, count, host)
                points.append(Point(count, batch, seconds, seconds, weights=stage.database))
    return points


def accelerator_points(stage: Stage, chips: Iterable[int], batches: Iterable[int], device: Accelerator) -> list[Point]:
    """The table of a stage that runs a model, without points that do not fit. Each chip holds a whole encoder or
    reranker; a generator is divided by its matrices, its layers, or both."""
    assert stage.model is not None
    batches = tuple(batches)
    alone = stage.kind in ("encode", "rerank")
    points = [
        point
        for count in chips
        for batch in batches
        for point in (_replicated(stage, count, batch, device) if alone else _divided(stage, count, batch, device))
        if point.weights + point.working <= count * device.memory
    ]
    return unbeaten(points)


def _replicated(stage: Stage, chips: int, batch: int, device: Accelerator) -> Iterator[Point]:
    assert stage.model is not None
    share = batch * stage.tokens / chips
    seconds = roofline(2 * stage.model.params * share, stage.model.nbytes, 0.0, 1, device)
    yield Point(chips, batch, seconds, seconds, weights=chips * stage.model.nbytes, how=f"{chips} copies")


def _divided(stage: Stage, chips: int, batch: int, device: Accelerator) -> Iterator[Point]:
    model = stage.model
    assert model is not None
    wide = chips
    while wide >= 1:
        deep = chips // wide
        if deep <= model.layers:
            if stage.kind == "decode":
                token = step_seconds(model, batch, stage.context, wide, device)
                latency, kept = stage.tokens * token, stage.context
            else:
                latency, kept = forward_seconds(model, batch * stage.tokens, wide, device), stage.tokens
            states = deep * batch * kept * model.kv_nbytes
            yield Point(chips, batch, latency, latency / deep, model.nbytes, states, f"{wide} wide, {deep} deep")
        wide //= 2


def modelled_tables(
    schema: RagSchema,
    device: Accelerator,
    *,
    chips: Sequence[int],
    servers: Sequence[int],
    batches: Sequence[int] = BATCHES,
) -> dict[str, StageTable]:
    tables = {}
    for stage in schema.stages():
        retrieves = stage.kind == "retrieve"
        points = (
            retrieval_points(stage, servers, batches)
            if retrieves
            else accelerator_points(stage, chips, batches, device)
        )
        tables[stage.name] = StageTable(stage.name, tuple(points))
    return tables


@dataclass(frozen=True, slots=True)
class Model:
    """The size of a transformer, with the bytes of one token's KV states (0 for encoders). Stages with the same model
    name share its weights."""

    name: str
    params: float
    layers: int
    hidden: int
    kv_nbytes: int = 0
    weight_nbytes: float = 2.0

    @property
    def nbytes(self) -> float:
        return self.params * self.weight_nbytes


MODELS: Mapping[str, Model] = {
    "encoder-120m": Model("encoder-120m", 120e6, 12, 768),
    "llama-1b": Model("llama-1b", 1.24e9, 16, 2048, 32768),
    "llama-8b": Model("llama-8b", 8.0e9, 32, 4096, 131072),
    "llama-70b": Model("llama-70b", 70e9, 80, 8192, 327680),
    "llama-405b": Model("llama-405b", 405e9, 126, 16384, 516096),
}
"""Llama 3 with 16 bits per weight: layers, hidden size, and KV states of 8 heads."""

Kind = Literal["encode", "rerank", "prefill", "decode", "retrieve"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline. `tokens` of one call; a decoder's `context` of held KV states at the end; for retrieval
    the query vectors, bytes scanned for each, and bytes held. It is finished `before` the first token, or called
    `looping` times while the answer is written."""

    name: str
    kind: Kind
    model: Model | None = None
    tokens: int = 0
    context: int = 0
    queries: int = 1
    nbytes: float = 0.0
    database: float = 0.0
    calls: float = 1.0
    before: bool = True
    looping: float = 0.0


@dataclass(frozen=True, slots=True)
class RagSchema:
    """A retrieval pipeline (RAGSchema: Jiang's thesis, table 3.1), with additions for our own.

    A query scans the share `scanned` of the `vectors`. `rounds` of the `retrieval_frequency` come before the answer;
    the decoder does not wait for the others if they are `overlapped`. Each retrieval has a rewriting and a reranking,
    each draft its own prompt. `decode_tokens` of 0: a draft is the answer."""

    name: str
    llm: Model
    prefix_tokens: int = 512
    decode_tokens: int = 256
    vectors: float = 64e9
    vector_nbytes: float = 96.0
    scanned: float = 0.001
    queries_per_retrieval: int = 1
    retrieval_frequency: float = 1.0
    rounds: int = 1
    overlapped: bool = False
    encoder: Model | None = None
    encoder_tokens: int = 0
    rewriter: Model | None = None
    rewrite_prefix: int = 32
    rewrite_decode: int = 32
    rewrites: int = 1
    reranker: Model | None = None
    candidates: int = 16
    passage_tokens: int = 100
    drafts: int = 0
    draft_prefix: int = 512
    draft_decode: int = 96

    def __post_init__(self) -> None:
        for name in ("prefix_tokens", "vectors", "vector_nbytes", "queries_per_retrieval", "rounds"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} of a pipeline is above 0, not {getattr(self, name)!r}")
        for name in ("decode_tokens", "encoder_tokens", "rewrites", "drafts", "rewrite_decode", "draft_decode"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} of a pipeline is at least 0, not {getattr(self, name)!r}")
        if not 0 < self.scanned <= 1:
            raise InputError(f"the scanned share lies above 0 and is at most 1, not {self.scanned!r}")
        if self.retrieval_frequency < self.rounds:
            raise InputError(f"{self.rounds} rounds before the answer need a retrieval frequency of at least that many")

    @property
    def database_nbytes(self) -> float:
        return self.vectors * self.vector_nbytes

    @property
    def looping(self) -> float:
        return self.retrieval_frequency - self.rounds

    def stages(self) -> list[Stage]:
        return list(self._stages())

    def _stages(self) -> Iterator[Stage]:
        if self.encoder is not None and self.encoder_tokens:
            yield Stage("encode", "encode", self.encoder, self.encoder_tokens)
        if self.rewriter is not None and self.rewrites:
            yield Stage("rewrite-prefill", "prefill", self.rewriter, self.rewrite_prefix, calls=self.rewrites)
            context = self.rewrite_prefix + self.rewrite_decode
            yield Stage("rewrite-decode", "decode", self.rewriter, self.rewrite_decode, context, calls=self.rewrites)
        yield Stage(
            "retrieve", "retrieve", queries=self.queries_per_retrieval, database=self.database_nbytes,
            nbytes=self.database_nbytes * self.scanned, calls=self.rounds, looping=self.looping,
        )  # fmt: skip
        if self.reranker is not None:
            tokens = self.candidates * self.passage_tokens
            yield Stage("rerank", "rerank", self.reranker, tokens, calls=self.rounds, looping=self.looping)
        if self.drafts:
            yield Stage("draft-prefill", "prefill", self.llm, self.draft_prefix, calls=self.drafts)
            context = self.draft_prefix + self.draft_decode
            yield Stage("draft-decode", "decode", self.llm, self.draft_decode, context, calls=self.drafts)
        if self.decode_tokens:
            yield Stage("prefill", "prefill", self.llm, self.prefix_tokens, looping=self.looping)
            context = self.prefix_tokens + self.decode_tokens
            yield Stage("decode", "decode", self.llm, self.decode_tokens, context, before=False)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> RagSchema:
        """Reads a schema from one JSON object. A model is a name of `MODELS`, or an object with its fields."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the schema is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise InputError("the schema is not a JSON object")
        if missing := [name for name in ("name", "llm") if name not in values]:
            raise InputError(f"the schema lacks the field {missing[0]!r}")
        return _made(cls, "a schema", "", values)


def _made(cls: Callable[..., Made], what: str, place: str, values: Mapping[str, Any]) -> Made:
    """An object of a dataclass with the fields of a JSON object."""
    known = {f.name: str(f.type) for f in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(known)):
        raise InputError(f"{what} has no field {unknown[0]!r}; its fields are {', '.join(known)}")
    return cls(**{name: _value(f"{place}{name}", known[name], value) for name, value in values.items()})


def _value(name: str, kind: str, value: Any) -> Any:
    if "Model" in kind:
        return _model(name, value) if value is not None or "None" not in kind else None
    fine = {
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53,
        "float": isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30,
    }
    if not fine[kind]:
        raise InputError(f"{name} of the schema is {_WORDS[kind]}, not {value!r}")
    return value


_WORDS = {"str": "text", "bool": "true or false", "int": "a whole number", "float": "a number"}


def _model(name: str, value: Any) -> Model:
    if isinstance(value, str):
        if value not in MODELS:
            raise InputError(f"{name} of the schema: there is no model {value!r}; known are {', '.join(MODELS)}")
        return MODELS[value]
    if not isinstance(value, dict):
        raise InputError(f"{name} of the schema is the name of a model or an object with its sizes, not {value!r}")
    if not value.get("params"):
        raise InputError(f"{name} of the schema lacks the number of its weights (params)")
    what = f"{name} of the schema: a model"
    model = _made(Model, what, f"{name}.", {"name": name, "layers": 1, "hidden": 1} | value)
    if min(model.params, model.layers, model.hidden, model.weight_nbytes) <= 0 or model.kv_nbytes < 0:
        raise InputError(f"{what} has sizes above 0")
    return model
