"""The design of a shape, and the files that a synthesis of it takes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from edge.devices.fpga.shape import Shape
from edge.devices.fpga.simulation import EXTRA, rtlil, yosys
from edge.errors import CapabilityError


def component_of(shape: Shape) -> Any:
    """The design of a shape."""
    try:
        from edge.devices.fpga.accelerator import Accelerator
    except ImportError as error:
        raise CapabilityError(f"a design needs {error.name}: {EXTRA}") from error
    return Accelerator(shape)


def verilog(component: Any) -> str:
    """The design as Verilog."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "design.il").write_text(rtlil(component))
        yosys("read_rtlil design.il; proc -noopt; write_verilog -noattr design.v", Path(folder))
        return (Path(folder) / "design.v").read_text()


def constraints(frequency: float) -> str:
    """The constraints of a design whose clock has this many cycles per second, in the form of Lattice (LPF)."""
    return f'FREQUENCY PORT "clk" {frequency / 1e6:g} MHZ;\n'
