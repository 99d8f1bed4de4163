"""Small networks and a backend of Python functions, for tests of running."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sublet.ir.graph import Node, Value
from sublet.ir.text import parse
from sublet.runtime.kernel import Array, Call, Operand

Compute = Callable[..., Any]

CHAIN = parse(
    """
    graph @chain(%x: f32[16]) {
      weights %w: f32[16]
      %a: f32[16] = onnx.Mul(%x, %w) @first
      %b: f32[16] = onnx.Add(%a, %x) @second
      %c: f32[16] = onnx.Sub(%b, %a) @third
      return %c
    }
    """
)

LOOP = parse(
    """
    graph @loop(%h0: f32[3], %xs: f32[9,3], %limit: i64[]) {
      %h: f32[3], %ys: f32[9,3] = while(%i: i64[]; %p: f32[3] = %h0; %x: f32[3] in %xs axis 0) @loop body @step {
        %c: bool[] = onnx.Less(%i, %limit)
        continue if %c
        %q: f32[3] = onnx.Add(%p, %x)
        next %q; %q axis 0
      }
      return %h, %ys
    }
    """
)

WIDE = parse(
    """
    graph @wide(%x: f32[64]) {
      %a0: f32[64] = onnx.A(%x)
      %b0: f32[64] = onnx.B(%x)
      %a1: f32[64] = onnx.A(%a0)
      %b1: f32[64] = onnx.B(%b0)
      %y: f32[64] = onnx.Join(%a1, %b1)
      return %y
    }
    """
)

ARITHMETIC: dict[str, Compute] = {
    "onnx.Mul": np.multiply,
    "onnx.Add": np.add,
    "onnx.Sub": np.subtract,
    "onnx.Less": np.less,
    "onnx.Join": np.subtract,
    "onnx.A": lambda x: x + 1,
    "onnx.B": lambda x: x * 2,
}


@dataclass
class PythonBackend:
    """Computes each op with a function of arrays; `scratch` bytes are asked for by every kernel."""

    functions: Mapping[str, Compute] = field(default_factory=lambda: ARITHMETIC)
    scratch: int = 0
    name: str = "python"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> PythonKernel | None:
        function = self.functions.get(node.op)
        return None if function is None else PythonKernel(function, self.scratch)


@dataclass(frozen=True)
class PythonKernel:
    function: Compute
    scratch: int

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        (out,) = outputs

        def run() -> None:
            assert (scratch.size if scratch is not None else 0) == self.scratch
            if scratch is not None:
                scratch[:] = 0xEE
            out[...] = self.function(*inputs)  # type: ignore[index]

        return run


def with_functions(**functions: Compute) -> PythonBackend:
    """Arithmetic, with some operators computed otherwise: `with_functions(A=...)` is for "onnx.A"."""
    return PythonBackend({**ARITHMETIC, **{f"onnx.{name}": function for name, function in functions.items()}})


def inception(modules: int = 2, channels: int = 4, size: int = 10) -> onnx.ModelProto:
    """Modules of four branches that are concatenated, as GoogLeNet has them."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    source, width = "x", channels

    def conv(name: str, source: str, inputs: int, kernel: int) -> str:
        weight = rng.standard_normal((channels, inputs, kernel, kernel)).astype(np.float32) / (inputs * kernel)
        weights.append(numpy_helper.from_array(weight, f"{name}.w"))
        pads = [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", [source, f"{name}.w"], [name], pads=pads))
        nodes.append(helper.make_node("Relu", [name], [f"{name}.r"]))
        return f"{name}.r"

    for m in range(modules):
        one = conv(f"m{m}.one", source, width, 1)
        three = conv(f"m{m}.three", conv(f"m{m}.three.in", source, width, 1), channels, 3)
        five = conv(f"m{m}.five", conv(f"m{m}.five.in", source, width, 1), channels, 5)
        nodes.append(helper.make_node("AveragePool", [source], [f"m{m}.p"], kernel_shape=[3, 3], pads=[1] * 4))
        pool = conv(f"m{m}.pool", f"m{m}.p", width, 1)
        source, width = f"m{m}.y", 4 * channels
        nodes.append(helper.make_node("Concat", [one, three, five, pool], [source], axis=1))
    graph = helper.make_graph(
        nodes,
        "inception",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, size, size])],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, [1, width, size, size])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
