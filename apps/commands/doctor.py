"""`edge doctor`: reports the abilities of this machine and installation, and their problems."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import textwrap
import time
from contextlib import closing
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from edge.apps import console
from edge.apps.commands.smallest import smallest_limits
from edge.apps.documents.base import WORKER_NBYTES
from edge.apps.documents.process import WorkerProcess
from edge.apps.options import json_option
from edge.budget import MemoryBudget
from edge.config import Config, format_duration, format_size
from edge.errors import EdgeError
from edge.ivf.device import GROUP, Place, Profile, capabilities, open_device
from edge.models.packed import Kind
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, models_dir, resolve
from edge.plugins import CARD, AutomaticDevice, names, parse_device
from edge.resident import group_limit
from edge.runtimes.native.library import native_state, processor_level

_LIBRARIES = {
    "numpy": "", "onnxruntime": "", "onnx": "", "tokenizers": "", "safetensors": "", "faiss-cpu": "",
    "llama-cpp-python": "llm", "mlx": "mlx", "torch": "torch", "wgpu": "webgpu", "mcp": "mcp",
    "tree-sitter": "code",
}  # fmt: skip
"""Libraries, and the extra that installs each. Libraries without an extra belong to the base installation."""

_DEVICE_NBYTES = 512 << 20

_TEXTS, _TEXT = 64, "In spring the river rises, and floods the meadows beside the old mill. " * 6

_SAMPLE_NBYTES = 4 << 20  # Bytes that are written to measure the speed of a link.


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check libraries, models, settings, memory and disk.

    The exit code is 2 if ranking cannot work here, or a setting names something that cannot be used.
    """
    config = Config.load()
    memory = psutil.virtual_memory()
    libraries = {name: _version(name) for name in _LIBRARIES}
    runtimes = sorted(entry.name for entry in entry_points(group="edge.runtimes") if _usable(entry.name))
    models: dict[str, dict[str, str]] = {
        "reranker": _model(config.reranker or DEFAULT_RERANKER, "reranker", config),
        "embedder": _model(config.embedder or DEFAULT_EMBEDDER, "embedder", config),
    }
    place = _existing(config.scratch_path)
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "memory_total": memory.total,
        "memory_available": memory.available,
        "memory_limit": config.memory,
        "scratch_dir": str(config.scratch_path),
        "scratch_free": shutil.disk_usage(place).free,
        "models_dir": str(models_dir(config.models_dir or None)),
        "libraries": libraries,
        "runtimes": runtimes,
        "native_runtime": native_state(),
        "devices": (devices := _devices()),
        "automatic_device": str(_automatic(config, devices)),
        "models": models,
        "sandbox": _sandbox(),
        "smallest_limits": smallest_limits(),
    }
    problems = [f"{name} is not installed" for name, extra in _LIBRARIES.items() if not extra and not libraries[name]]
    if config.runtime not in (*runtimes, "auto"):
        problems.append(f"the runtime {config.runtime!r} cannot be used here; usable: {', '.join(runtimes)}")
    device = "" if config.automatic else parse_device(config.device)[0]
    if device and "error" in (state := report["devices"].get(device, {"error": "it is not installed"})):
        problems.append(f"the device {device!r} cannot be used here: {state['error']}")
    faulty = [(kind, model["name"]) for kind, model in models.items() if model["state"] != "ok"]
    problems += [f"the {kind} {name!r} cannot be used" for kind, name in faulty]
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        problems.append(f"{config.scratch_path} cannot hold hidden states: {place} is no folder that can be written")
    group = group_limit()
    if group is not None and group < config.memory:
        problems.append(
            f"the memory limit {format_size(config.memory)} is more than the {format_size(group)} that the control"
            " group of this process allows; the system would kill it"
        )
    report["problems"] = problems
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print(report)
    return 2 if problems else 0


def _print(report: dict[str, Any]) -> None:
    free, total = format_size(report["memory_available"]), format_size(report["memory_total"])
    scratch = f"{format_size(report['scratch_free'])} free for offloaded hidden states"
    _row("python", None, f"{report['python']} on {report['system']}, {report['cores']} cores")
    _row("memory", None, f"{free} of {total} available; limit in force {format_size(report['memory_limit'])}")
    _row("scratch", None, scratch)
    for kind, model in report["models"].items():
        there = model["state"] == "ok"
        _row(kind, there, model["name"] if there else f"{model['name']}: {model['state']}")
    _row("runtimes", True, ", ".join(report["runtimes"]))
    _row("native layers", "native" in report["runtimes"], report["native_runtime"])
    for part, state in report["sandbox"].items():
        _row(f"sandbox, {part}", state is True, "of documents" if state is True else state)
    for name, found in report["libraries"].items():
        package = f"'edge-rag[{_LIBRARIES[name]}]'" if _LIBRARIES[name] else "edge-rag"
        _row(name, bool(found), found or f"pip install {package}")
    for name, found in report["devices"].items():
        _row(f"device {name}", "error" not in found, found.get("error") or _described(found))
    _row("device", None, report["automatic_device"])
    for verb, limit in report["smallest_limits"].items():
        said = limit if isinstance(limit, str) else format_size(limit, up=True)
        click.echo(f"smallest --memory of {verb:7} {said}")
    for problem in report["problems"]:
        click.echo(f"PROBLEM      {problem}")


def _row(what: str, there: bool | None, detail: str) -> None:
    begin = f"{what:24}{'' if there is None else 'on' if there else 'missing':9}"
    width = max(30, shutil.get_terminal_size().columns - 1 - len(begin))
    lines = textwrap.wrap(detail, width, break_long_words=False, break_on_hyphens=False)
    click.echo(begin + f"\n{'':{len(begin)}}".join(lines))


def _devices() -> dict[str, dict[str, Any]]:
    """With abilities and rates, or with the error on opening or measuring it."""
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(names(GROUP)):
        budget = MemoryBudget(_DEVICE_NBYTES, part=True)
        try:
            with closing(open_device(name, budget)) as device:
                abilities = {"can": capabilities(device), "hardware": getattr(device, "hardware", "")}
                found[name] = abilities | _rates(device)
        except EdgeError as error:
            found[name] = {"error": str(error)}
        except Exception as error:  # a third-party package may raise any exception
            console.report(error, f"edge doctor, {name}")
            found[name] = {"error": f"an unexpected {type(error).__name__}; a report is in {console.reports_dir()}"}
    return found


def _automatic(config: Config, devices: dict[str, dict[str, Any]]) -> AutomaticDevice:
    """Compares the card with the host, and keeps the result for processes with the setting `device = "auto"`."""
    try:
        if reason := devices.get(CARD, {"error": f"device {CARD} is not installed"}).get("error"):
            found = AutomaticDevice("", reason)
        else:
            host, card = (
                _reranking(replace(config, device="", device_memory="")),
                _reranking(replace(config, device=CARD)),
            )
            said = f"the card reranks {_TEXTS} texts in {format_duration(card)} and the host in {format_duration(host)}"
            found = AutomaticDevice(CARD if card < host else "", said)
    except EdgeError as error:
        found = AutomaticDevice("", str(error))
    found.store()
    return found


def _reranking(config: Config) -> float:
    """Seconds of a second pass: the first one reads the model, and compiles kernels."""
    from edge.runtimes.reranker import Reranker

    with Reranker(config=replace(config, runtime="auto")) as reranker:
        for _ in range(2):
            started = time.perf_counter()
            reranker.rank("When does the river flood?", [_TEXT] * _TEXTS)
    return time.perf_counter() - started


def _rates(device: Place) -> dict[str, float | bool]:
    """Bytes per second written and scanned; and whether the scan rate is modelled."""
    rates: dict[str, float | bool] = {}
    data = np.zeros((_SAMPLE_NBYTES >> 10, 1 << 10), np.uint8)
    with device.memory.reserve("doctor", data.nbytes):
        buffer = device.allocate(data.nbytes)

        def write() -> int:
            device.write(buffer, data)
            return data.nbytes

        for _ in range(2):  # the first write also faults the pages in
            ticket = device.link.submit("doctor", write, data.nbytes)
            ticket.wait()
        rates["write_bytes_per_s"] = data.nbytes / max(ticket.seconds, 1e-9)
        device.free(buffer)
    if isinstance(device, Profile):
        estimate = device.profile("scan", 4)
        rates["scan_bytes_per_s"] = estimate.throughput * estimate.nbytes
        rates["modelled"] = estimate.modelled
    return rates


def _described(found: dict[str, Any]) -> str:
    rates = [
        f"{what} {format_size(int(found[key]))}/s"
        for key, what in (("write_bytes_per_s", "writes"), ("scan_bytes_per_s", "scans"))
        if key in found
    ]
    if found.get("modelled"):
        rates[-1] += " (modelled, not measured)"
    return "; ".join([*filter(None, [found["hardware"]]), ", ".join(found["can"]), *rates])


def _sandbox() -> dict[str, bool | str]:
    """As reported by a process that reads documents."""
    try:
        worker = WorkerProcess(memory=WORKER_NBYTES)
    except EdgeError as error:
        return {"process": str(error)}
    worker.kill()
    return worker.sandbox


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _usable(runtime: str) -> bool:
    if runtime == "native":
        return processor_level() > 0
    needs = {"onnx": "onnxruntime", "mlx": "mlx", "metal": "mlx", "cuda": "torch", "webgpu": "wgpu"}.get(runtime)
    return needs is None or importlib.util.find_spec(needs) is not None


def _model(name: str, kind: Kind, config: Config) -> dict[str, str]:
    try:
        resolve(name, kind=kind, directory=config.models_dir or None).close()
    except EdgeError as error:
        return {"name": name, "state": str(error)}
    return {"name": name, "state": "ok"}


def _existing(folder: Path) -> Path:
    place = folder.absolute()
    while not os.path.exists(place):  # unlike pathlib's exists, this is False where access is denied
        place = place.parent
    return place
