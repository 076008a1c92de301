"""`edge plan`: its output, its refusals, and a schema for every pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from naive.program import output_of

from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.cli import edge
from edge.apps.plan.rag import GOALS, PIPELINE_SCHEMAS
from edge.errors import EdgeError

SCHEMA = {
    "name": "mine", "llm": {"params": 135e6, "layers": 30, "hidden": 576, "kv_nbytes": 46080}, "vectors": 1e5,
    "vector_nbytes": 384, "scanned": 0.05, "prefix_tokens": 900, "decode_tokens": 128,
}  # fmt: skip


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


def run(*arguments: str, stdin: str | None = None) -> str:
    return output_of(edge, "plan", *arguments, stdin=stdin)


def planned(*arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run("rag", *arguments, "--json"))
    return result


def test_every_pipeline_is_written_down() -> None:
    assert set(PIPELINE_SCHEMAS) == set(PIPELINES)
    for name, schema in PIPELINE_SCHEMAS.items():
        assert schema.name == name
        stages = {stage.name for stage in schema.stages()}
        assert {"encode", "retrieve", "rerank"} < stages
        assert stages & {"decode", "draft-decode"}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_pipeline_can_be_planned(pipeline: str) -> None:
    result = planned(pipeline, "--accelerators", "8")
    assert result["chosen"] in result["plans"]
    assert all(plan["devices"] <= 8 for plan in result["plans"])
    assert {origin for origin in result["origins"].values()} == {"calibrated", "predicted"}


def test_each_goal_chooses_the_plan_that_is_best_in_it(schema: str) -> None:
    keys = {"throughput": "throughput_per_device", "ttft": "ttft_s", "tpot": "tpot_s", "memory": "nbytes"}
    assert set(keys) == set(GOALS)
    for goal, key in keys.items():
        result = planned(schema, "--accelerators", "16", "--goal", goal)
        values = [plan[key] for plan in result["plans"]]
        assert result["chosen"][key] == (max(values) if goal == "throughput" else min(values))


def test_limits_are_kept(schema: str) -> None:
    free = planned(schema, "--accelerators", "16")
    first = sorted(plan["ttft_s"] for plan in free["plans"])[1]
    assert planned(schema, "--accelerators", "16", "--ttft", str(first))["chosen"]["ttft_s"] <= first
    limit = int(free["chosen"]["nbytes"]) - 1
    limited = planned(schema, "--accelerators", "16", "--memory", str(limit))
    assert all(plan["nbytes"] <= limit for plan in limited["plans"])
    assert limited["chosen"] != free["chosen"]


def test_the_table_marks_the_choice_and_the_sentence_names_the_bottleneck(schema: str) -> None:
    text = run("rag", schema, "--accelerators", "16")
    result = planned(schema, "--accelerators", "16")
    assert sum(line.startswith("*") for line in text.splitlines()) == 1
    assert result["sentence"] in text
    assert max(len(line) for line in text.splitlines() if result["sentence"] not in line) <= 80
    assert f"the stage {result['bottleneck']['stage']} is the bottleneck" in text


def test_a_schema_may_come_from_stdin() -> None:
    text = run("rag", "-", "--accelerators", "4", "--json", stdin=json.dumps(SCHEMA))
    assert json.loads(text)["schema"]["name"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("no-such",), "no schema and no file 'no-such'; schemas are plain"),
        (("plain", "--on", "xpu-a", "--accelerators", "1"), "the stage prefill: it fits no number of devices"),
        (("plain", "--accelerators", "8", "--memory", "1GB"), "no schedule of plain fits 8 devices"),
        (("plain", "--accelerators", "8", "--ttft", "1e-9"), "no schedule has its first token within"),
        (("plain", "--memory", "much"), "not a size"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_sentence(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(EdgeError, match=reason) as refused:
        run("rag", *arguments)
    assert "\n" not in str(refused.value)
