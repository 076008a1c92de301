"""The model's layers, its loss, the steps that processes prepare, and the loop that goes on after a stop."""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from edge.models.training import precision, reranker  # noqa: E402
from edge.models.training.feeding import Feed  # noqa: E402
from edge.models.training.lists import TrainingList  # noqa: E402
from edge.models.training.loss import LossConfig, list_loss  # noqa: E402
from edge.models.training.mining import Floats, Pool, Request  # noqa: E402
from edge.models.training.model import LayeredReranker, average, padded, pair_tokenizer  # noqa: E402
from edge.models.training.search import Depths, Searcher  # noqa: E402
from edge.models.training.trainer import TrainConfig, Trainer, write_state  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905
LOSS = LossConfig(layers=(0.2, 0.5, 1.0))


class Overlap:
    """Lists whose positive repeats the query's word; ``distinct`` of them, so that a tiny model can learn them."""

    def __init__(self, distinct: int = 1000) -> None:
        self._distinct = distinct

    def draw(self, number: int) -> TrainingList:
        rng = random.Random(number % self._distinct)
        word, *others = rng.sample(WORDS, 5)
        passages = [" ".join([w, *rng.choices(WORDS, k=rng.randint(1, 4))]) for w in (word, *others[:3])]
        return TrainingList(word, passages, [1.0, 0.5, 0.0, -0.5], 0.1, "overlap")


def trainer(
    base: Path, steps: int = 6, seed: int = 0, distinct: int = 1000, probes: int = 0, **changes: float
) -> Trainer:
    model = LayeredReranker.from_directory(base, seed, probes)
    model.freeze_words()
    options = {"lists_per_step": 4, "peak_rate": 1e-3, "warmup_steps": 2, "batch_tokens": 64, **changes}
    config = TrainConfig(steps=steps, bfloat16=False, log_steps=1, **options)
    return Trainer(model, pair_tokenizer(base / "tokenizer.json", 32), Overlap(distinct), config, LOSS)


def weights(run: Trainer) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in run.model.named_parameters()}


def run_to(run: Trainer, step: int) -> Trainer:
    while run.step < step:
        run.advance()
    return run


def test_the_last_layer_scores_as_transformers_own_classifier(tiny: Path) -> None:
    model = LayeredReranker.from_directory(tiny).eval()
    tokenizer = pair_tokenizer(tiny / "tokenizer.json", 32)
    ids, mask, types = padded(tokenizer.encode_batch([("lake", "river stone"), ("tiger cloud", "lamp bread engine")]))
    with torch.inference_mode():
        layered = model(ids, mask, types)
        own = model.bert(input_ids=ids, attention_mask=mask, token_type_ids=types).logits[:, 0]
        alone = model(*padded(tokenizer.encode_batch([("lake", "river stone")])))[:, 0]
    assert layered.shape == (3, 2)
    assert torch.allclose(layered[-1], own, atol=1e-6)
    assert torch.allclose(layered[:, 0], alone, atol=1e-6), "padding changes no score"
    assert not torch.allclose(layered[0], own, atol=1e-3)


def test_the_passage_is_cut_and_a_query_that_fills_the_sequence_too(tiny: Path) -> None:
    tokenizer = pair_tokenizer(tiny / "tokenizer.json", 8)
    encoded = tokenizer.encode("lake river", " ".join(["tiger"] * 50))
    assert encoded.tokens[1:3] == ["lake", "river"]
    assert (len(encoded.ids), encoded.sequence_ids.count(0)) == (8, 2)
    for passage in ("tiger", " ".join(["tiger"] * 50)):
        encoded = tokenizer.encode(" ".join(["lake"] * 20), passage)
        assert len(encoded.ids) == 8
        assert "tiger" in encoded.tokens


def test_the_first_layers_learn_by_probes_that_are_not_saved(tiny: Path, tmp_path: Path) -> None:
    run = trainer(tiny, steps=40, distinct=4, peak_rate=1e-2, probes=2, probe_rate=1e-2)
    words = run.model.bert.bert.embeddings.word_embeddings.weight.detach().clone()
    first = run.advance()["ranking"]
    run_to(run, 39)
    assert all(run.advance()["ranking"] < 0.8 * first)
    assert torch.equal(words, run.model.bert.bert.embeddings.word_embeddings.weight), "the vectors of words stay"
    tokenizer = pair_tokenizer(tiny / "tokenizer.json", 32)
    ids, mask, types = padded(tokenizer.encode_batch([("lake", "river stone"), ("tiger cloud", "lamp")]))
    model = run.model.eval()
    with torch.inference_mode():
        scores = model(ids, mask, types)
        hidden = model.bert.bert(ids, mask, types, output_hidden_states=True).hidden_states
        mean = (hidden[2] * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
        assert torch.allclose(scores[1], model.probes[1](mean)[:, 0], atol=1e-5)
        model.save(tmp_path, tiny / "tokenizer.json")
        plain = LayeredReranker.from_directory(tmp_path).eval()(ids, mask, types)
    assert torch.allclose(plain[2:], scores[2:], atol=1e-5)


def test_threads_and_chunks_do_not_change_the_gradients(tiny: Path) -> None:
    one = trainer(tiny, batch_tokens=10_000, threads=1)
    many = trainer(tiny, batch_tokens=20, threads=3)
    one.advance()
    many.advance()
    for (name, value), (_, other) in zip(one.model.named_parameters(), many.model.named_parameters(), strict=True):
        if value.requires_grad:
            assert torch.allclose(value.grad, other.grad, atol=1e-6), name


def test_resume_gives_the_state_of_an_uninterrupted_run(tiny: Path, tmp_path: Path) -> None:
    whole = run_to(trainer(tiny), 6)
    part = run_to(trainer(tiny), 3)
    write_state(tmp_path / "state.pt", part.state())
    again = trainer(tiny, seed=9)
    again.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    run_to(again, 6)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name
    assert all(torch.equal(value, again.mean[name]) for name, value in whole.mean.items())
    assert again.progress == 1.0
    state = part.state()
    state["trained"].popitem()
    with pytest.raises(ValueError, match="another model"):
        again.restore(state)
    for options in ({}, {"steps": 5, "minutes": 1.0}):
        with pytest.raises(ValueError, match="steps or minutes"):
            TrainConfig(**options)  # type: ignore[arg-type]


def test_the_rate_rises_falls_and_ends_at_zero(tiny: Path) -> None:
    run = trainer(tiny, steps=6)
    rates = []
    for step in range(7):
        run.step = step
        rates.append(run.rate)
    assert rates[0] < rates[1]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[-1] == 0.0


def test_average_of_checkpoints_takes_the_encoder_of_the_start(tiny: Path, tmp_path: Path) -> None:
    run = run_to(trainer(tiny), 4)
    run.model.save(tmp_path / "trained", tiny / "tokenizer.json")
    mixed = average([tiny, tmp_path / "trained"], [0.25, 0.75])
    start = transformers.BertModel.from_pretrained(tiny).state_dict()
    ended = run.model.bert.state_dict()
    name = "encoder.layer.1.output.dense.weight"
    assert torch.allclose(mixed[f"bert.{name}"], 0.25 * start[name] + 0.75 * ended[f"bert.{name}"], atol=1e-6)
    assert torch.allclose(mixed["classifier.weight"], ended["classifier.weight"], atol=1e-6)


def bag(texts: list[str]) -> Floats:
    import numpy as np

    return np.array([[t.split().count(w) + 0.01 for w in WORDS] for t in texts], dtype=np.float32)


def test_the_program_trains_saves_and_resumes(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(random.Random(n).choices(WORDS, k=8)) for n in range(20)]
    requests = [Request(text, (n,)) for n, text in enumerate(texts)]
    lists = Searcher(texts, bag(texts), torch.device("cpu")).mine(requests, bag(texts), Depths())
    (tmp_path / "pools").mkdir()
    Pool("set", [""] * 20, texts, lists).save(tmp_path / "pools" / "set.judged.npz")
    monkeypatch.setattr(reranker, "SHARES", {"set.judged": 1.0})
    monkeypatch.setattr(reranker, "LossConfig", lambda: LOSS)
    fixed = ["--data", str(tmp_path), "--base", str(tiny), "--pools", str(tmp_path / "pools"), "--max-tokens", "32"]
    assert reranker.main([*fixed, "--out", str(tmp_path / "out"), "--steps", "12"]) == 0
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [10]
    saved = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "out" / "mean")
    assert saved.config.num_labels == 1
    assert (tmp_path / "out" / "mean" / "tokenizer.json").exists()
    assert reranker.main([*fixed, "--out", str(tmp_path / "out"), "--steps", "14", "--resume"]) == 0
    recipes = [json.loads(line) for line in (tmp_path / "out" / "recipe.jsonl").read_text().splitlines()]
    assert [r["from_step"] for r in recipes] == [0, 12]


def test_only_pools_that_the_run_reads_are_mined(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], int]] = []

    def prepare(
        data: list[Path], encode: object, out: Path, search: object, trees: object, seed: int, device: object
    ) -> None:
        asked.append(([path.name for path in data], bool(search) + bool(trees)))
        raise KeyboardInterrupt

    monkeypatch.setattr("edge.models.training.prepare.prepare", prepare)
    monkeypatch.setattr(reranker, "SHARES", {"one.judged": 0.4, "one.title": 0.1, "two.judged": 0.3, "docs.mined": 0.2})
    fixed = ["--data", str(tmp_path), "--base", str(tiny), "--steps", "1", "--out", str(tmp_path / "out")]
    for left_out in ([], ["two"], ["docs"]):
        with pytest.raises(KeyboardInterrupt):
            reranker.main([*fixed, *(word for name in left_out for word in ("--leave-out", name))])
    assert asked == [(["one", "two"], 2), (["one"], 2), (["one", "two"], 0)]


CONFIG = LossConfig(layers=(0.3, 1.0), binary=0.2, imitation=0.4, teacher_sharpness=1.5)


def case(lists: int = 5, width: int = 4, seed: int = 0):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, lists, width, generator=generator)
    teacher = torch.randn(lists, width, generator=generator)
    positive = torch.zeros(lists, width)
    positive[:, 0] = 1.0
    return logits, positive, teacher, torch.linspace(0.0, 0.5, lists)


def soft(values: list[float]) -> list[float]:
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def entropy(wanted: float, given: float) -> float:
    return -(wanted * math.log(given) + (1 - wanted) * math.log(1 - given))


def naive(logits, teacher, trust) -> float:  # type: ignore[no-untyped-def]
    depth, lists, width = logits.shape
    total = 0.0
    for layer in range(depth):
        rank = binary = kept = 0.0
        for n in range(lists):
            scores, final = logits[layer, n].tolist(), logits[-1, n].tolist()
            own, last = soft(scores), soft(final)
            share = CONFIG.imitation if layer < depth - 1 else 0.0
            rank += -(1 - share) * math.log(own[0]) - share * sum(
                t * math.log(s) for t, s in zip(last, own, strict=True)
            )
            for k in range(width):
                label, given = float(k == 0), sigmoid(scores[k])
                binary += (1 - share) * entropy(label, given) + share * entropy(sigmoid(final[k]), given)
            wanted = soft([CONFIG.teacher_sharpness * v for v in teacher[n].tolist()[1:]])
            others = soft(scores[1:])
            kept += -float(trust[n]) * sum(w * math.log(o) for w, o in zip(wanted, others, strict=True))
        weight = CONFIG.layers[layer]
        total += weight * (rank / lists + kept / lists + CONFIG.binary * binary / (lists * width))
    return total


def test_loss_equals_the_sum_written_out() -> None:
    logits, positive, teacher, trust = case()
    loss, ranking = list_loss(logits, positive, teacher, trust, CONFIG)
    assert float(loss) == pytest.approx(naive(logits, teacher, trust), rel=1e-5)
    assert ranking.shape == (2,)
    with pytest.raises(ValueError, match="3 layer weights for scores of 2 layers"):
        list_loss(logits, positive, teacher, trust, LossConfig(layers=(1.0, 1.0, 1.0)))
    logits.requires_grad_()
    list_loss(logits, positive, teacher, trust, LossConfig(layers=(1.0, 0.0), binary=0.2, imitation=1.0))[0].backward()
    assert float(logits.grad[1].abs().sum()) == 0.0, "the last layer does not learn from those below"
    assert float(logits.grad[0].abs().sum()) > 0.0


@pytest.mark.parametrize("faster", [torch.bfloat16, torch.float32])
def test_auto_takes_the_faster_one(faster: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    precision.bfloat16_is_faster.cache_clear()
    monkeypatch.setattr(precision, "_seconds", lambda kind: 1.0 if kind == faster else 100.0)
    assert precision.in_bfloat16() == (faster == torch.bfloat16)
    precision.bfloat16_is_faster.cache_clear()


class Lists:
    """Lists of four to six passages."""

    def draw(self, number: int) -> TrainingList:
        rng = random.Random(number)
        passages = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(4 + number % 3)]
        return TrainingList(rng.choice(WORDS), passages, [rng.random() for _ in passages], 0.1, "set")


def feed(base: Path, workers: int = 0) -> Feed:
    return Feed(Lists(), pair_tokenizer(base / "tokenizer.json", 32), 3, 60, workers)


def test_a_step_holds_every_pair_once_and_lists_are_cut_to_the_shortest(tiny: Path) -> None:
    step = feed(tiny).step(2)
    drawn = [Lists().draw(n) for n in (6, 7, 8)]
    assert (step.lists, step.width) == (3, 4)
    assert sorted(step.places) == list(range(12))
    assert torch.allclose(step.teacher, torch.tensor([row.teacher[:4] for row in drawn]))
    tokenizer = pair_tokenizer(tiny / "tokenizer.json", 32)
    pairs = [(row.query, passage) for row in drawn for passage in row.passages[:4]]
    shown = [ids[mask > 0].tolist() for chunk in step.chunks for ids, mask in zip(chunk[0], chunk[1], strict=True)]
    assert shown == [tokenizer.encode(*pairs[place]).ids for place in step.places]
    assert step.tokens == sum(map(len, shown))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
def test_workers_prepare_the_same_steps_from_wherever_a_run_goes_on(tiny: Path) -> None:
    shared = feed(tiny, workers=2)
    try:
        for n in range(5, 14):
            one, other = shared.step(n), feed(tiny).step(n)
            assert (one.places, one.tokens) == (other.places, other.tokens)
            assert all(torch.equal(a, b) for a, b in zip(sum(one.chunks, ()), sum(other.chunks, ()), strict=True))
        with pytest.raises(ValueError, match="step 3 was asked for, but step"):
            shared.step(3)
    finally:
        shared.close()
    assert not multiprocessing.active_children()


def test_workers_are_refused_where_nothing_forks(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ValueError, match="--workers 0"):
        feed(tiny, workers=1)
    assert feed(tiny).step(0).lists == 3
