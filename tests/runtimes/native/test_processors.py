"""The compiled layer with every compiler, and on ARM processors, which qemu emulates, against numpy.

`program.c` is the code without Python. Its products are compared to the last bit, as are layer 0's input and the means.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from naive.numpy_runtime import NumpyLayerKernel

from edge.models.spec import LayerSpec
from edge.runtimes.native.library import EmbeddingTables

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "runtimes/native"

ARM = {"max": 3, "cortex-a76": 2, "cortex-a53": 1}
"""The processors that are emulated, and the level of each: i8mm, dotprod and plain v8.0."""

PROCESSORS = [("aarch64-linux-gnu-gcc", cpu) for cpu in ARM] + [("gcc", ""), ("clang", "")]

Array = npt.NDArray[Any]
Case = tuple[Sequence[int], float, Sequence[Array]]
"""What `main` of the program reads: its header, eps, and the arrays of the case."""

PRODUCT, LAYER, ENDS = 1, 2, 3
TABLES = ("scales", "positions", "types", "norm_weight", "norm_bias")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the program with a compiler, once, with the options of the package."""
    folder, built = tmp_path_factory.mktemp("programs"), {}
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]

    def build(compiler: str) -> Path:
        if compiler not in built:
            cross = compiler.startswith("aarch64")
            others = [] if cross else [FOLDER / "avx512.c", FOLDER / "avx_vnni.c"]
            sources = [Path(__file__).with_name("program.c"), *others]
            command = [compiler, *options["extra-compile-args"], "-Wall", "-Werror", f"-I{FOLDER}", "-static", *sources]
            command += ["-o", folder / compiler, "-lm", "-lpthread"]
            subprocess.run(command, check=True)
            built[compiler] = folder / compiler
        return built[compiler]

    return build


class Machine:
    """A processor and its levels 1 ... `best`. The program has the products of the first `inside` of them."""

    def __init__(self, command: Sequence[str | Path], emulated: bool) -> None:
        self.command = command
        self.best = int(np.frombuffer(self.run([([0], 0, [])]), np.int32)[0])
        self.inside = self.best if emulated else 1

    def run(self, cases: Sequence[Case]) -> bytes:
        sent = b""
        for header, eps, arrays in cases:
            numbers = np.array([*header, *[0] * (10 - len(header))], np.int64)
            sent += b"".join([numbers.tobytes(), np.float64(eps).tobytes(), *(array.tobytes() for array in arrays)])
        return subprocess.run(self.command, input=sent, stdout=subprocess.PIPE, check=True).stdout


@pytest.fixture(params=PROCESSORS, ids=lambda pair: pair[1] or pair[0])
def machine(request: pytest.FixtureRequest, program: Callable[[str], Path]) -> Machine:
    compiler, cpu = request.param
    emulator = ["qemu-aarch64", "-cpu", cpu] if cpu else []
    for tool in (compiler, *emulator[:1]):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    if not cpu and not (platform.machine() == "x86_64" and platform.system() == "Linux"):
        pytest.skip("this processor is tested by the package's own library")
    machine = Machine([*emulator, program(compiler)], bool(cpu))
    assert not cpu or machine.best == ARM[cpu]
    if not machine.best:
        pytest.skip("this processor has no AVX2")
    return machine


def test_products_are_those_of_integers(machine: Machine) -> None:
    random = np.random.default_rng(0)
    cases: list[Case] = []
    expected = []
    for count, inputs, columns in (
        (1, 1, 1),
        (33, 384, 96),
        (40, 70, 17),
        (5, 200, 65),
        (64, 1536, 33),
        (31, 128, 130),
        (2, 384, 64),
        (3, 96, 32),
    ):
        x = random.integers(-127, 128, (count, inputs))
        x[:, 0] = 127  # so that a row's scale is 1
        weight = random.integers(-127, 128, (inputs, columns))
        if inputs == 128:
            x[:], weight[:] = 127, -127  # the largest sums
        if inputs == 384 and columns == 64:
            weight = weight // 4  # nearly all sums of four products fit into 16 bits
        if inputs == 96:  # four products fit, or are too large by one weight
            x[:, 1:], weight[:] = -127, 64
            weight[3::4], weight[5::8] = 62, 63
        tensors = weight.astype(np.int8), np.ones(columns, np.float32), np.zeros(columns, np.float32)
        for level in range(1, machine.inside + 1):
            header = (PRODUCT, level, 1, 0, inputs, 0, 0, columns, count)
            cases.append((header, 0.0, (*tensors, x.astype(np.float32))))
            expected.append((x @ weight).astype(np.float32).ravel())
    np.testing.assert_array_equal(np.frombuffer(machine.run(cases), np.float32), np.concatenate(expected))


def test_layers_are_those_of_the_reference(machine: Machine, layers: Any) -> None:
    """In a layer of MiniLM's shape, and in odd widths."""
    random, shapes = np.random.default_rng(0), {"float32": (384, 12, 32, 1536), "float16": (75, 3, 17, 130)}
    for dtype, (hidden, heads, size, ffn) in shapes.items():
        spec: LayerSpec = replace(
            layers.BERT, precision="int8", hidden=hidden, heads=heads, kv_heads=heads, head_size=size, ffn=ffn
        )
        weights, lengths = layers.random_weights(spec), np.array([70, 1, 33, 16], np.int32)
        states = random.standard_normal((int(lengths.sum()), hidden)).astype(dtype)
        names = product(("qkv", "out", "up", "down"), ("weight", "scale", "bias"))
        tensors = [weights[f"{name}.{of}"] for name, of in names]
        tensors += [weights[f"norm{i}.{of}"] for i in (1, 2) for of in ("weight", "bias")]
        expected = NumpyLayerKernel(spec, "float32").run(states, lengths, weights)
        levels = range(1, machine.best + 1)
        headers = [(LAYER, level, 2, dtype == "float16", hidden, heads, size, ffn, 4, 64) for level in levels]
        found = machine.run([(header, spec.norm_eps, (lengths, *tensors, states)) for header in headers])
        apart = np.abs(np.frombuffer(found, dtype).reshape(-1, *states.shape) - expected.astype(np.float64))
        assert (apart.mean(axis=(1, 2)) < (1e-6 if dtype == "float32" else 5e-4)).all()


def test_ends_of_a_pass_are_numpy_s(machine: Machine, layer_0: Any) -> None:
    random, lengths = np.random.default_rng(0), np.array([1, 20, 3], np.int32)
    ends = np.cumsum(lengths)
    for dtype, width in (("float32", 33), ("float16", 384), ("float16", 7), ("float32", 1025)):
        shapes = ((50,), (20, width), (2, width), (width,), (width,))
        tables = EmbeddingTables(*(random.standard_normal(shape).astype(np.float32) for shape in shapes), eps=1e-12)
        rows = random.integers(-127, 128, (ends[-1], width), np.int8)
        ids, types = random.integers(0, 50, ends[-1], np.int32), random.integers(0, 2, ends[-1], np.uint8)
        states = layer_0(tables, rows, ids, types, lengths, dtype)
        means = [part.mean(axis=0, dtype=np.float32) for part in np.split(states, ends[:-1])]
        arrays = (lengths, *(getattr(tables, name) for name in TABLES), rows, ids, types)
        headers = [(ENDS, n, 1, dtype == "float16", width, 50, 0, 0, 3, 20) for n in range(1, machine.best + 1)]
        found = machine.run([(header, tables.eps, arrays) for header in headers])
        assert found == (states.tobytes() + np.stack(means).tobytes()) * machine.best
