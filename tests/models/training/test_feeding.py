"""Steps are the same with any number of processes that prepare them."""

from __future__ import annotations

import multiprocessing
import random
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from edge.models.training.feeding import Feed  # noqa: E402
from edge.models.training.lists import TrainingList  # noqa: E402
from edge.models.training.model import pair_tokenizer  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905


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
