"""The model's layers, the loop, and going on after a stop."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from edge.models.training import reranker  # noqa: E402
from edge.models.training.lists import TrainingList  # noqa: E402
from edge.models.training.loss import LossConfig  # noqa: E402
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
