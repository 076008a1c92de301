"""Figures of a modelled device are labelled, and absent where there is none."""

from __future__ import annotations

from edge.apps.assistant.answer import AnswerStats, figures, measured
from edge.apps.console import modelled


def test_an_answers_figures_name_what_a_model_says() -> None:
    stats = measured({"modelled.queries": 3, "modelled.seconds": 0.003, "modelled.joules": 0.25})
    (line,) = [line for line in figures(stats) if line.startswith("modelled")]
    assert "3 requests" in line
    assert "3 ms" in line
    assert "250 mJ" in line
    assert "nothing of that was measured" in line
    assert not [line for line in figures(AnswerStats()) if "modelled" in line]


def test_a_trace_without_a_modelled_device_has_no_such_figures() -> None:
    assert modelled({"lists.hits": 3}) == {}
    counters = {"modelled.queries": 2, "modelled.seconds": 0.5, "modelled.joules": 1.0}
    assert modelled(counters) == {"modelled": {"queries": 2, "seconds": 0.5, "joules": 1.0}}
