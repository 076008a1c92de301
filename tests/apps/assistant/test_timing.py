"""Times of generations are learned, and kept across processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.apps.assistant.timing import GenerationTimes


def taught(times: GenerationTimes, tokens: int = 20) -> None:
    times.learn("model", "hyde", "passage", computed=100, new=tokens, ttft_s=0.5, seconds=0.5 + 0.1 * (tokens - 1))


def test_a_step_is_expected_to_take_prefill_and_its_usual_length() -> None:
    times = GenerationTimes()
    assert times.expect("model", "hyde", "passage", 100) is None
    taught(times)
    assert times.expect("model", "hyde", "passage", 100) == pytest.approx(0.5 + 20 * 0.1)
    assert times.expect("model", "hyde", "passage", 200) == pytest.approx(1.0 + 20 * 0.1), "a longer prompt"
    assert times.expect("model", "plain", "passage", 100) is None, "each pipeline has its own lengths"
    assert times.expect("other", "hyde", "passage", 100) is None, "and each model its own speed"


def test_recent_generations_count_more() -> None:
    times = GenerationTimes()
    for _ in range(20):
        taught(times, 10)
    for _ in range(20):
        taught(times, 40)
    assert times.expect("model", "hyde", "passage", 0) == pytest.approx(4.0, rel=0.05)


def test_what_was_learned_survives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    times = GenerationTimes(path)
    taught(times)
    times.save()
    assert GenerationTimes(path).expect("model", "hyde", "passage", 100) == pytest.approx(2.5)
    assert [p.name for p in tmp_path.iterdir()] == ["times.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 1}', '{"format": 2}', '{"format": 1, "lengths": {"a": [-1, 1]}}', "\x00"]
)
def test_a_file_that_makes_no_sense_is_no_obstacle(tmp_path: Path, text: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(text, encoding="utf-8")
    times = GenerationTimes(path)
    assert times.expect("model", "hyde", "passage", 100) is None
    taught(times)
    times.save()
    assert GenerationTimes(path).expect("model", "hyde", "passage", 100) is not None


def test_a_place_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    times = GenerationTimes(tmp_path / "missing" / "times.json")
    taught(times)
    times.save()


@pytest.mark.parametrize(("new", "ttft", "seconds"), [(0, 0.1, 0.2), (5, 0.3, 0.2), (5, -1.0, 0.2)])
def test_readings_that_cannot_be_are_not_learned(new: int, ttft: float, seconds: float) -> None:
    times = GenerationTimes()
    times.learn("m", "p", "s", computed=10, new=new, ttft_s=ttft, seconds=seconds)
    assert times.expect("m", "p", "s", 10) is None
