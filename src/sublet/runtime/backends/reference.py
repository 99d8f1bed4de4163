"""The reference backend. Slow, total, independent.

An ONNX operator is computed by ONNX's own reference implementation, a command of the nn dialect by its definition in
NumPy; results are copied to where they lie.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from sublet.base.errors import RunError
from sublet.base.extras import require
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops import nn
from sublet.ops.nn.command import PREFIX as NN
from sublet.ops.nn.command import Command
from sublet.ops.onnx import PREFIX
from sublet.runtime.backends.onnx_nodes import domain_and_type, input_names, single_node
from sublet.runtime.calls import nothing, store
from sublet.runtime.dtypes import plain
from sublet.runtime.kernel import Array, Call, Cell, Kernel, Operand

LATER: dict[str, tuple[int, str, int]] = {
    "onnx.BatchNormalization": (7, "onnx.BatchNormalization", 14),
    "onnx.Clip": (1, "onnx.Clip", 6),
    "onnx.DequantizeLinear": (10, "onnx.DequantizeLinear", 19),
    "onnx.Gemm": (1, "onnx.Gemm", 6),
    "onnx.Scatter": (9, "onnx.ScatterElements", 11),
}
"""What the reference implementation lacks, or takes for training: an operator with one output from a version on, and
the operator and version that computes the same."""

FLATTENING = frozenset({"onnx.Softmax", "onnx.LogSoftmax", "onnx.Hardmax"})
"""Before version 13 they see a matrix: the axes from `axis` on are one. The reference implementation forgot that."""

PASSING = frozenset({"onnx.Identity", "onnx.Optional", "onnx.OptionalGetElement"})
"""What they give is what they get. The reference implementation makes an optional a list, even an empty one."""


HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class Reference:
    """`opsets` tells the version of each operator set of ONNX, "" for the default domain."""

    opsets: Mapping[str, int] = field(default_factory=dict)
    name: str = "reference"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """The reference kernel of a command or ONNX operator; None for other dialects and unknown operators."""
        if node.op.startswith(NN):
            return _CommandKernel(node, nn.command(node.op))
        if not node.op.startswith(PREFIX):
            return None
        if node.op in PASSING and not all(value.plannable for value in node.defs):
            return _Passing(node)
        evaluator = self._evaluator(node)
        return None if evaluator is None else _OperatorKernel(node, evaluator)

    def _evaluator(self, node: Node) -> Any | None:
        onnx = require("onnx", extra="onnx")
        reference = require("onnx.reference", extra="onnx")
        try:
            nodes, opsets = _operators(node, self.opsets)
        except Exception:  # an attribute that is not what the operator declares
            return None
        operands = zip(input_names(node), node.inputs, strict=True)
        graph = onnx.helper.make_graph(
            nodes,
            "node",
            [_declared(onnx.helper, name, value) for name, value in operands if value],
            [onnx.helper.make_empty_tensor_value_info(f"o{i}") for i, value in enumerate(node.outputs) if value],
        )
        imports = [onnx.helper.make_opsetid(name, version) for name, version in opsets.items()]
        try:
            return reference.ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports))
        except Exception:  # it lacks the operator, or the node is none
            return None


def _operators(node: Node, opsets: Mapping[str, int]) -> tuple[list[Any], dict[str, int]]:
    """The operators that compute the node, with the operator sets they are of."""
    domain, _ = domain_and_type(node.op)
    version = opsets.get(domain, 1)
    first, op, later = LATER.get(node.op, (version + 1, "", 0))
    if first <= version < later and len(node.outputs) == 1:
        return [single_node(replace(node, op=op), opsets)], {**opsets, domain: later}
    if node.op in FLATTENING and version < 13:
        return _flattened(node), {**opsets, domain: 13}
    return [single_node(node, opsets)], {**opsets, domain: version}


def _flattened(node: Node) -> list[Any]:
    make_node = require("onnx.helper", extra="onnx").make_node
    inner = single_node(replace(node, attrs={"axis": 1}), {"": 13})
    inner.input[:], inner.output[:] = ["matrix"], ["result"]
    return [
        make_node("Flatten", ["i0"], ["matrix"], axis=node.attrs.get("axis", 1)),
        inner,
        make_node("Shape", ["i0"], ["shape"]),
        make_node("Reshape", ["result", "shape"], ["o0"]),
    ]


def _declared(helper: Any, name: str, value: Value) -> Any:
    """The type of an input: operators that are functions of simpler ones unfold by it."""
    if not isinstance(value.spec, TensorSpec):
        return helper.make_empty_tensor_value_info(name)
    kind = helper.np_dtype_to_tensor_dtype(NUMPY[value.spec.dtype])
    return helper.make_tensor_value_info(name, kind, value.spec.shape)


@dataclass(frozen=True)
class _Passing:
    """The kernel of an operator that hands on what is outside the plan; None when it is given nothing."""

    node: Node
    scratch: int = 0
    keeps: bool = True

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        values = [(value, operand) for value, operand in zip(self.node.inputs, inputs, strict=True) if value]
        (cell,) = outputs
        assert isinstance(cell, Cell)

        def run() -> None:
            cell.content = _read(*values[0], True) if values else None
            if cell.content is None and self.node.op == "onnx.OptionalGetElement":
                raise ValueError("the optional has no value")

        return run


@dataclass(frozen=True)
class _OperatorKernel:
    node: Node
    evaluator: Any
    scratch: int = 0
    keeps: bool = True

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        names = [name for name in input_names(self.node) if name]
        values = [(value, operand) for value, operand in zip(self.node.inputs, inputs, strict=True) if value]
        results = [(v, to) for v, to in zip(self.node.outputs, outputs, strict=True) if v and to is not None]
        keeps = any(isinstance(operand, Cell) for operand in outputs)
        evaluator = self.evaluator

        def run() -> None:
            feeds = {name: _read(v, operand, keeps) for name, (v, operand) in zip(names, values, strict=True)}
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = evaluator.run(None, feeds)
            for content, (value, operand) in zip(found, results, strict=True):
                store(content, operand, value, value.spec)

        return run


def _read(value: Value, operand: Operand | None, keeps: bool) -> Any:
    """The input as the reference implementation takes it; a copy when the node may keep it in a cell."""
    if isinstance(operand, Cell):
        return operand.content
    assert operand is not None
    assert isinstance(value.spec, TensorSpec)
    elements = plain(operand, value.spec)
    return elements.copy() if keeps and elements is operand else elements


@dataclass(frozen=True)
class _CommandKernel:
    node: Node
    command: Command
    scratch: int = 0
    keeps: bool = True

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        if not any(value.nbytes or not value.plannable for value in self.node.defs):
            return nothing  # there is nothing to write
        compute, attrs = self.command.compute, dict(self.node.attrs)

        def run() -> None:
            with np.errstate(all="ignore"):  # a number may be too large for its type
                found = compute(*map(_widened, inputs), **attrs)
                results = found if isinstance(found, tuple) else (found,)
                if len(results) != len(outputs):
                    raise RunError(f"{self.node.op} computed {len(results)} results, the node has {len(outputs)}")
                fresh = [np.array(result, copy=True) for result in results] if len(results) > 1 else results
                for result, output, value in zip(fresh, outputs, self.node.outputs, strict=True):
                    if output is not None:
                        rounded = result if isinstance(output, Cell) else np.asarray(result, output.dtype)
                        store(rounded, output, value)

        return run


def _widened(operand: Operand | None) -> Any:
    """The input as a definition takes it."""
    if isinstance(operand, Cell):
        return operand.content
    if operand is not None and operand.dtype in HALVES:
        return operand.astype(np.float32)
    return operand
