"""The reader of a reranker against a plain one: the same layers in numpy over one passage at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from making.synth import RandomWeights, synth
from naive.numpy_runtime import NumpyRuntime, layer_norm
from tokenizers import Tokenizer

from edge.config import Config
from edge.errors import CapabilityError, CorruptBlock, ModelError
from edge.models import evidence, reader
from edge.models.bert import FAMILY
from edge.models.evidence import Evidence, Logistic
from edge.models.packed import EMBED, PackedModel
from edge.models.reader import LONGEST, best_span
from edge.models.training.packing import write_reader
from edge.runtimes.reader import Span
from edge.runtimes.reranker import Reranker

SHARED, OWN = 2, 2
QUERY = "which river floods"
PASSAGES = ["the river floods in spring", "a short one", "word " * 40 + "river", "", "the river"]


def weights_of(model: PackedModel) -> dict[str, np.ndarray]:
    """Random weights of a reader. Those of the projection are large, so that the spans of passages differ."""
    random = RandomWeights(FAMILY, model.spec, seed=7)
    rng = np.random.default_rng(5)
    named = {name: random.read(name) for i in range(OWN) for name in random.shapes if f"encoder.layer.{i}." in name}
    hidden = model.spec.layer.hidden
    return named | {"out.weight": rng.standard_normal((2, hidden), np.float32), "out.bias": np.ones(2, np.float32)}


@pytest.fixture(params=["fp32", "int8"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / request.param / "model"
    with synth("tiny-bert", folder, request.param) as model:
        write_reader(model, SHARED, weights_of(model))
        fitted = Evidence(reader.SIGNALS, Logistic((0.5, 0.1), (0.0,), (1.0,)), 0.5, "", 10)
        evidence.save(model, {reader.EVIDENCE: fitted})
    return folder


@pytest.fixture
def opened(folder: Path, open_reranker: Callable[..., Reranker]) -> Callable[..., Reranker]:
    return lambda **options: open_reranker(folder, "onnx", **options)


def plain_spans(folder: Path, max_tokens: int = 512) -> list[tuple[int, int, float]]:
    """Start, end and margin for each passage, with the layers in numpy."""
    found = []
    with PackedModel.open(folder) as model, reader.Reader.open(model) as read:  # type: ignore[union-attr]
        spec = model.spec
        kernel = NumpyRuntime().layer_kernel(spec.layer, threads=1)
        embed, scales = model.load(EMBED), model.embedding_scales()
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.enable_truncation(max_tokens, strategy="only_second")
        for passage in PASSAGES:
            encoding = tokenizer.encode(QUERY, passage)
            ids, types = np.array(encoding.ids), np.array(encoding.type_ids)
            raw = np.empty((len(ids), model.embedding.row_nbytes), np.uint8)
            for row, number in enumerate(ids):
                model.file.read_rows(model.embedding, np.array([number]), raw[row : row + 1])
            rows = raw.view(model.embedding_dtype).astype(np.float32)
            rows = rows if scales is None else rows * scales[ids][:, None]
            states = rows + model.position_rows(len(ids)) + embed["types"][types]
            states = layer_norm(states, embed["norm.weight"], embed["norm.bias"], spec.layer.norm_eps)
            layers = [model.load(block) for block in model.layer_blocks[:SHARED]]
            for tensors in [*layers, *map(read.load, read.layers)]:
                states = kernel.run(states, np.array([len(ids)], np.int32), tensors)
            out = read.load(reader.OUT)
            scores = states @ out["weight"] + out["bias"]
            inside = [n for n, owner in enumerate(encoding.sequence_ids) if owner == 1]
            pairs = [(scores[a, 0] + scores[b, 1], a, b) for a in inside for b in inside if a <= b < a + LONGEST] or [
                (-np.inf, 0, 0)
            ]
            best, a, b = max(pairs, key=lambda pair: pair[0])
            span = (encoding.offsets[a][0], encoding.offsets[b][1]) if inside else (0, 0)
            total = best + np.log(sum(np.exp(pair[0] - best) for pair in pairs))
            found.append((*span, float(total - scores[0].sum())))
    return found


def test_spans_equal_those_of_a_plain_reader(opened: Callable[..., Reranker], folder: Path) -> None:
    """Also for texts that are cut, in a pass that has several chunks, and for a passage without a token."""
    near = 0.1 if folder.parent.name == "int8" else 1e-4
    for max_tokens in (512, 30):
        spans = [span for [span] in opened(max_tokens=max_tokens).read(QUERY, PASSAGES)]
        assert spans[3] == Span(0, 0, 0.0)
        for passage, span, (start, end, margin) in zip(PASSAGES, spans, plain_spans(folder, max_tokens), strict=True):
            assert (span.start, span.end) == (start, end)
            assert passage[span.start : span.end].strip() == passage[span.start : span.end]
            if passage:
                assert span.probability == pytest.approx(1 / (1 + np.exp(-0.5 * margin - 0.1)), abs=near)


def test_spans_lie_within_the_units_that_may_answer(opened: Callable[..., Reranker]) -> None:
    """Unit by unit the span is that of the unit alone."""
    reranker, text = opened(), "the river floods\nin spring\na short one"
    before, used = reranker.rank(QUERY, PASSAGES), reranker.budget.used
    units = [(0, 16), (17, 26), (27, len(text))]
    alone = [reranker.read(QUERY, [text], [[unit]])[0][0] for unit in units]
    assert all(low <= span.start < span.end <= high for span, (low, high) in zip(alone, units, strict=True))
    assert reranker.read(QUERY, [text], [units]) == [alone]
    assert reranker.read(QUERY, [text, text], [[], [(16, 17)]]) == [[], [Span(16, 16, 0.0)]]
    whole = [[(0, len(passage))] for passage in PASSAGES]
    assert reranker.read(QUERY, PASSAGES, whole) == reranker.read(QUERY, PASSAGES)
    assert reranker.read(QUERY, PASSAGES[::-1]) == reranker.read(QUERY, PASSAGES)[::-1]
    assert (reranker.rank(QUERY, PASSAGES), reranker.budget.used) == (before, used), "reading leaves all as it was"


def test_the_best_span_ends_behind_its_start_and_is_no_longer_than_the_limit() -> None:
    scores = np.zeros((300, 2), np.float32)
    scores[5, 0], scores[3, 1], scores[5 + LONGEST, 1], scores[200, 1] = 3, 9, 9, 2
    assert best_span(np.array([1, 0.5], np.float32), scores)[:2] in [(3, 3), (0, 3), (1, 3), (2, 3)]
    scores[3, 1] = 0
    start, end, margin = best_span(np.array([1, 0.5], np.float32), scores)
    assert (start, end) == (6, 5 + LONGEST)
    pairs = [scores[a, 0] + scores[b, 1] for a in range(300) for b in range(a, min(300, a + LONGEST))]
    assert margin == pytest.approx(np.log(np.exp(np.array(pairs, np.float64)).sum()) - 1.5, abs=1e-4)


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        ("no files", CapabilityError), ("other weights", CapabilityError), ("no evidence", CapabilityError),
        ("short data", CorruptBlock), ("changed data", CorruptBlock), ("changed description", CorruptBlock),
        ("no data", Exception),
    ],
)  # fmt: skip
def test_a_missing_or_damaged_reader_is_reported(
    opened: Callable[..., Reranker], folder: Path, harm: str, error: type[Exception]
) -> None:
    description, data = folder / reader.FILE, folder / reader.DATA
    content = data.read_bytes()
    if harm == "no files":
        description.unlink()
    elif harm == "no evidence":
        (folder / evidence.FILE).unlink()
    elif harm == "other weights":
        with synth("tiny-bert", folder, "fp32", seed=9):
            pass
    elif harm == "short data":
        data.write_bytes(content[:-5])
    elif harm == "changed data":
        data.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    elif harm == "changed description":
        description.write_text(re.sub(r'"shared": \d', '"shared": 1', description.read_text()))
    else:
        data.unlink()
    with pytest.raises(error):
        opened().read(QUERY, PASSAGES)
    if error is CorruptBlock:
        with PackedModel.open(folder) as model, pytest.raises(CorruptBlock):
            reader.verify(model)


def test_a_reader_with_a_missing_or_misshapen_tensor_is_not_written(folder: Path) -> None:
    with PackedModel.open(folder) as model:
        named = weights_of(model)
        for bad in (
            {"out.bias": np.zeros(3, np.float32)},
            {"encoder.layer.1.output.dense.bias": np.zeros(3, np.float32)},
        ):
            with pytest.raises(ModelError):
                write_reader(model, SHARED, named | bad)
        del named["encoder.layer.0.output.dense.bias"]
        with pytest.raises(ModelError):
            write_reader(model, SHARED, named)


def test_the_shipped_reader_finds_answers_and_knows_where_there_is_none() -> None:
    text = "The bridge was built in 1894. It spans the Aare. A toll of two francs was paid until 1931."
    wanted = {"When was the bridge built?": "1894", "How much was the toll?": "two francs"}
    with Reranker(config=Config(memory=8 * 10**9)) as shipped:
        for question, answer in wanted.items():
            [[span]] = shipped.read(question, [text])
            assert answer in text[span.start : span.end]
            assert span.probability > 0.5
        assert shipped.read("Who painted the ceiling?", [text])[0][0].probability < 0.2
