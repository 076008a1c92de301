"""`edge doctor` finds faults that would keep ranking from working."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.commands import doctor
from edge.config import Config
from edge.plugins import AutomaticDevice

Verb = Callable[..., Any]


measured = doctor._devices


@pytest.fixture(scope="module")
def devices() -> dict[str, Any]:
    """The devices of this machine, which are opened and measured once."""
    return measured()


@pytest.fixture(autouse=True)
def quick(devices: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processes compute the smallest limits; `test_smallest.py` looks at their results."""
    monkeypatch.setattr(doctor, "smallest_limits", dict)
    monkeypatch.setattr(AutomaticDevice, "store", lambda found: None)
    monkeypatch.setattr(doctor, "_devices", lambda: devices)


def test_all_is_well(edge_verb: Verb, tmp_path: Path) -> None:
    ended = edge_verb("doctor", "--json")
    report = json.loads(ended.out)
    assert (ended.code, report["problems"]) == (0, [])
    assert report["models"] == {
        "reranker": {"name": "tiny", "state": "ok"},
        "embedder": {"name": "tiny-embedder", "state": "ok"},
    }
    assert report["libraries"]["onnxruntime"]
    assert "onnx" in report["runtimes"]
    assert not (tmp_path / "scratch").exists(), "looking creates nothing"


def test_devices_are_listed_with_what_they_can_do(edge_verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = doctor.open_device

    def refuse(name: str, *arguments: Any) -> Any:
        if name == "remote":
            raise RuntimeError("a package of somebody else is broken")
        return opened(name, *arguments)

    monkeypatch.setattr(doctor, "open_device", refuse)
    monkeypatch.setattr(doctor, "_devices", measured)
    ended = edge_verb("doctor", "--json")
    devices = json.loads(ended.out)["devices"]
    monkeypatch.setattr(doctor, "_devices", lambda: devices)
    assert {"cpu", "fpga", "limited", "remote"} <= set(devices)
    assert devices["cpu"]["can"] == ["place", "search", "profile"]
    assert devices["cpu"]["scan_bytes_per_s"] > 0
    assert 0 < devices["limited"]["write_bytes_per_s"] <= 1.001e9
    assert devices["fpga"]["modelled"] is True
    assert devices["cpu"]["modelled"] is False
    assert "is broken" not in devices["remote"]["error"], "an exception's text is in the report"
    assert devices["remote"]["error"].startswith("an unexpected RuntimeError; a report is in ")
    shown = edge_verb("doctor").out
    assert all(len(line) < 80 or "/" in line for line in shown.splitlines()), "a path is not broken"
    rows = " ".join(shown.split())
    assert "device remote missing an unexpected RuntimeError; a report is in" in rows
    assert "device searchers on place, search; writes" in rows
    assert "(modelled, not measured) device limited on" in rows
    webgpu = devices["webgpu"]
    assert webgpu.get("hardware") or "webgpu" in webgpu["error"]
    state = "on" if "can" in webgpu else "missing"
    assert f"device webgpu {state} {' '.join((webgpu.get('hardware') or webgpu['error']).split())}" in rows


def test_a_card_is_compared_with_the_host(
    edge_verb: Verb, devices: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor._automatic(Config(), {}).reason == "device cuda is not installed"
    assert doctor._automatic(Config(), {"cuda": {"error": "there is none"}}) == AutomaticDevice("", "there is none")
    took = {"": 0.5, "cuda": 0.25}
    monkeypatch.setattr(doctor, "_devices", lambda: {**devices, "cuda": devices["cpu"]})
    monkeypatch.setattr(doctor, "_reranking", lambda config: took[config.device])
    ended = edge_verb("doctor", "--json", EDGE_DEVICE="auto")
    said = "auto takes cuda, because the card reranks 64 texts in 250 ms and the host in 500 ms"
    assert (ended.code, json.loads(ended.out)["automatic_device"]) == (0, said)
    took["cuda"] = 0.75
    assert "device auto takes the host, because the card" in " ".join(edge_verb("doctor").out.split())


def test_a_model_that_cannot_be_compared_is_the_reason(tmp_path: Path) -> None:
    found = doctor._automatic(Config(reranker=str(tmp_path / "none")), {"cuda": {}})
    assert found.name == ""
    assert "none" in found.reason


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("EDGE_RUNTIME", "zzz", "runtime 'zzz' cannot be used here; usable: "),
        ("EDGE_DEVICE", "abacus", "device 'abacus' cannot be used here: it is not installed"),
        ("EDGE_RERANKER", "zzz", "reranker 'zzz' cannot be used"),
        ("EDGE_RERANKER", "tiny-embedder", "reranker 'tiny-embedder' cannot be used"),
        ("EDGE_EMBEDDER", "yyy", "embedder 'yyy' cannot be used"),
        ("EDGE_SCRATCH_DIR", "file/x", "file is no folder that can be written"),
        ("EDGE_SCRATCH_DIR", "file", "file is no folder that can be written"),
    ],
)
def test_a_setting_that_cannot_work(edge_verb: Verb, tmp_path: Path, setting: str, value: str, says: str) -> None:
    (tmp_path / "file").touch(0o755)
    ended = edge_verb("doctor", "--json", **{setting: value})
    (problem,) = json.loads(ended.out)["problems"]
    assert says in problem
    assert ended.code == 2
    shown = edge_verb("doctor", **{setting: value})
    assert f"PROBLEM      {problem}\n" in shown.out
    assert shown.code == 2


def test_both_default_models_come_with_the_installation(edge_verb: Verb, tmp_path: Path) -> None:
    ended = edge_verb("doctor", "--json", EDGE_RERANKER="", EDGE_EMBEDDER="", EDGE_MODELS_DIR=str(tmp_path))
    assert {model["state"] for model in json.loads(ended.out)["models"].values()} == {"ok"}
    assert ended.code == 0
    shown = " ".join(edge_verb("doctor", EDGE_RERANKER="zzz").out.split())
    assert "reranker missing zzz: there is no model 'zzz'" in shown
    assert "embedder on tiny-embedder" in shown


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "the runtime 'onnx' cannot be used here": (
        doctor.importlib.util,
        "find_spec",
        lambda name: None if name == "onnxruntime" else object(),
    ),
    " is no folder that can be written": (doctor.os, "access", lambda path, mode: False),  # root may write anywhere
    "64.0 MB that the control group of this process allows": (doctor, "group_limit", lambda: 64_000_000),
}


@pytest.mark.parametrize("says", FAULTS)
def test_a_machine_on_which_a_setting_cannot_work(edge_verb: Verb, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    monkeypatch.setattr(*FAULTS[says])
    ended = edge_verb("doctor", "--json", EDGE_RUNTIME="onnx")
    assert says in json.loads(ended.out)["problems"][0]
    assert ended.code == 2


def test_the_sandbox_of_documents_is_told(edge_verb: Callable[..., Any]) -> None:
    """As a process that reads documents says it, not as this system should have it."""
    found = json.loads(edge_verb("doctor", "--json").out)["sandbox"]
    assert set(found) == {"files", "system calls"}
    if sys.platform == "linux":
        assert found["system calls"] is True
    off = edge_verb("doctor", EDGE_SANDBOX="off")
    assert " ".join(off.out.split()).count("missing switched off by EDGE_SANDBOX") == 2
