"""`Graph`: collects an ONNX graph whose large intermediates lie in memory that the caller provides.

onnxruntime's elementwise operators never work in place, and without an arena every result is a new allocation. So the
large intermediates are placed explicitly: each is a graph output that the caller binds to a slot of its own buffer.
Values that are not needed any more are overwritten. `onnx` is imported when the first graph is built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

OPSET = 21
IR_VERSION = 10
CONTRIB = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Placed:
    """An intermediate value that is placed in a slot. `shape` is the shape of one token's part."""

    slot: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes per token."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Graph:
    """Collects the nodes, inputs, outputs and constants of one ONNX graph.

    Attributes:
        placed: the intermediate values for which the caller provides memory, by name.
        widened: shapes of the fp32 copies of matrices. Only one copy exists at a time, and all use the same memory.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.placed: dict[str, Placed] = {}
        self.widened: dict[str, tuple[int, int]] = {}
        self._nodes: list[Any] = []
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] = []
        self._constants: dict[str, Any] = {}

    def input(self, name: str, dtype: str, shape: tuple[int | str, ...]) -> str:
        """Declares a graph input. A string in `shape` is a dimension that varies between calls."""
        self._inputs[name] = _value(name, dtype, shape)
        return name

    def output(self, value: str, name: str, dtype: str, shape: tuple[int | str, ...]) -> None:
        """Gives a node's result a name, and declares it a graph output."""
        for node in self._nodes:
            node.output[:] = [name if produced == value else produced for produced in node.output]
            node.input[:] = [name if consumed == value else consumed for consumed in node.input]
        self._outputs.append(_value(name, dtype, shape))

    def place(self, value: str, slot: str, *shape: int, dtype: str = "float32") -> str:
        """Places a node's result [t, *shape] in a slot of the caller's buffer."""
        self.placed[value] = Placed(slot, shape, dtype)
        self._outputs.append(_value(value, dtype, ("t", *shape)))
        return value

    def constant(self, array: npt.ArrayLike, dtype: str) -> str:
        from onnx import numpy_helper

        value = np.asarray(array, dtype)
        name = f"constant_{value.dtype.name}_{value.tolist()}"
        self._constants[name] = numpy_helper.from_array(value, name)
        return name

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Adds a node with one output and returns the output's name."""
        return self.op_many(kind, 1, *inputs, domain=domain, **attributes)[0]

    def op_many(self, kind: str, outputs: int, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        from onnx import helper

        names = [f"{kind}_{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def serialize(self) -> bytes:
        from onnx import helper

        inputs, constants = list(self._inputs.values()), list(self._constants.values())
        graph = helper.make_graph(self._nodes, self.name, inputs, self._outputs, constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()
        return data


def element_type(dtype: str) -> int:
    """ONNX's number of an element type."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _value(name: str, dtype: str, shape: tuple[int | str, ...]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, element_type(dtype), shape)


def tensor(array: npt.NDArray[Any]) -> Any:
    """An array as an attribute of a node."""
    from onnx import numpy_helper

    return numpy_helper.from_array(array)
