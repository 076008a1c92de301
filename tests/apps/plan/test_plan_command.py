"""`edge plan`: its output, its refusals, and a schema for every pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from naive.program import output_of

from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.cli import edge
from edge.apps.plan.rag import GOALS, PIPELINE_SCHEMAS
from edge.errors import BudgetExceeded, EdgeError

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


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_burst_may_be_larger_than_any_batch_that_fits(pipeline: str) -> None:
    result = planned(pipeline, "--accelerators", "8", "--goal", "memory", "--burst", "1024")
    assert 1 <= result["burst"]["micro_batch"] <= 1024
    assert 0 < result["burst"]["mean_ttft_s"] <= result["burst"]["whole_ttft_s"]


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
    text = run("rag", schema, "--accelerators", "16", "--burst", "8")
    result = planned(schema, "--accelerators", "16")
    assert sum(line.startswith("*") for line in text.splitlines()) == 1
    assert result["sentence"] in text
    assert f"the stage {result['bottleneck']['stage']} is the bottleneck" in text
    assert "A burst of 8" in text


def test_a_schema_may_come_from_stdin() -> None:
    text = run("rag", "-", "--accelerators", "4", "--json", stdin=json.dumps(SCHEMA))
    assert json.loads(text)["schema"]["name"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("no-such",), "no schema and no file 'no-such'; schemas are plain"),
        (("case-2", "--accelerators", "1"), "the stage prefill: it fits no number of devices"),
        (("plain", "--accelerators", "8", "--memory", "1GB"), "no schedule of plain fits 8 devices"),
        (("plain", "--accelerators", "8", "--ttft", "1e-9"), "no schedule has its first token within"),
        (("plain", "--memory", "much"), "not a size"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_sentence(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(EdgeError, match=reason) as refused:
        run("rag", *arguments)
    assert "\n" not in str(refused.value)


def test_devices_are_divided_and_queues_are_sized() -> None:
    arguments = ("share", "--devices", "32", "--interval", "8", "--token", "0.02", "--retrieval", "0.16")
    result = json.loads(run(*arguments, "--json"))
    assert (result["generating"], result["retrieving"]) == (21, 11)
    assert result["queue_length"] < 30
    assert str(result["queue_length"]) in run(*arguments)
    assert json.loads(run(*arguments, "--whole-lists", "--json"))["queue_length"] == 100


@pytest.mark.parametrize("times", [("1e308", "1"), ("1", "1e308"), ("1e-320", "1e-320"), ("1", "1e-300")])
def test_times_that_no_device_takes_are_refused(times: tuple[str, str]) -> None:
    with pytest.raises(click.BadParameter, match="is not in the range"):
        run("share", "--interval", "1000000", "--token", times[0], "--retrieval", times[1])
    for least in ("1e-12", "1e9"):
        result = json.loads(run("share", "--interval", "1000000", "--token", least, "--retrieval", least, "--json"))
        assert 0.5 < result["share"] < 1


def test_tables_are_placed_over_banks() -> None:
    tables = json.dumps([{"rows": 100 * (i + 1), "dim": 8, "name": f"t{i}"} for i in range(39)])
    result = json.loads(run("banks", "-", "--near", "1", "--json", stdin=tables))
    assert (result["plain"]["rounds"], result["combined"]["rounds"]) == (2, 1)
    text = run("banks", "-", "--near", "1", stdin=tables)
    assert "1 rounds" in text
    assert "joined: t" in text


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "no list of tables"),
        ('{"rows": 1}', "no list of tables"),
        ('[{"rows": 1, "dim": 4}, {"rows": 0, "dim": 4}]', "table 2 needs whole numbers"),
        ("[7]", "table 1 needs"),
        (json.dumps([{"rows": 1, "dim": 4}] * 2001), "2,001 tables, and 2,000 are the most"),
        ('[{"rows": 100000000, "dim": 64}]', "1 tables do not fit"),
    ],
)
def test_what_are_no_tables_is_refused(tables: str, reason: str) -> None:
    with pytest.raises(EdgeError, match=reason):
        run("banks", "-", stdin=tables)


def test_a_graph_that_does_not_fit_the_memory_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.budget.anonymous_resident", lambda: 50_000_000)
    monkeypatch.setenv("EDGE_MEMORY", "70MB")
    with pytest.raises(BudgetExceeded, match="graph"):
        run("traversal", "--vertices", "4000")


def test_traversals_are_counted_and_modelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_MEMORY", "10GB")
    arguments = ("traversal", "--vertices", "300", "--dim", "8", "--queries", "5")
    result = json.loads(run(*arguments, "--json"))
    assert (result["recall"], result["speedup"]) == ("counted", "predicted")
    first = result["settings"][0]
    assert (first["groups"], first["candidates"], first["hops"], first["speedup"]) == (1, 1, 1.0, 1.0)
    assert all(row["hops"] >= 0.95 and row["recall"] > 0.5 for row in result["settings"])
    assert json.loads(run(*arguments, "--bloom", "18", "--json")) == result
    assert "would be fastest" in run(*arguments)
    with pytest.raises(EdgeError, match="a queue of at least that length"):
        run(*arguments, "--length", "5")
