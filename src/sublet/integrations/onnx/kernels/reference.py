"""Reference kernels of ONNX operators: each runs in the reference implementation of ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sublet.base.arrays import unpacked_elements
from sublet.base.optional_imports import require
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.integrations.onnx.kernels.session_node import domain_and_type, node_input_names, single_node
from sublet.ir.graph import Node, Value
from sublet.runtime.kernel import Array, Call, Kernel, Operand, UnplannedCell, store

REPLACEMENTS: dict[str, tuple[int, str, int]] = {
    "onnx.BatchNormalization": (7, "onnx.BatchNormalization", 14),
    "onnx.Clip": (1, "onnx.Clip", 6),
    "onnx.DequantizeLinear": (10, "onnx.DequantizeLinear", 19),
    "onnx.Gemm": (1, "onnx.Gemm", 6),
    "onnx.Scatter": (9, "onnx.ScatterElements", 11),
}
"""Replacements for operators missing in the reference implementation, or evaluated there in training mode: for an
operator with a single output, from a first version on, the operator and version with the same result."""

FLATTENING = frozenset({"onnx.Softmax", "onnx.LogSoftmax", "onnx.Hardmax"})
"""Operators flattening the axes from `axis` on before version 13, which the reference implementation omits."""

PASS_THROUGH = frozenset({"onnx.Identity", "onnx.Optional", "onnx.OptionalGetElement"})
"""Operators that pass their input through. The reference implementation makes an optional a list, even if empty."""


def reference_kernel(node: Node, opsets: Mapping[str, int]) -> Kernel | None:
    """Return the kernel of an ONNX operator; None for an operator without a reference implementation.

    `opsets` gives the version of each operator set, "" for the default domain.
    """
    if node.op in PASS_THROUGH and not all(value.plannable for value in node.defs):
        return _PassThroughKernel(node)
    evaluator = _evaluator(node, opsets)
    return None if evaluator is None else _OperatorKernel(node, evaluator)


def _evaluator(node: Node, opset_versions: Mapping[str, int]) -> Any | None:
    """Return an evaluator of the node by the ONNX reference implementation; None if not possible."""
    onnx = require("onnx", extra="onnx")
    reference = require("onnx.reference", extra="onnx")
    try:
        nodes, opsets = _operators(node, opset_versions)
    except Exception:  # an attribute not matching the declaration of the operator
        return None
    operands = zip(node_input_names(node), node.inputs, strict=True)
    graph = onnx.helper.make_graph(
        nodes,
        "node",
        [_value_info_of(onnx.helper, name, value) for name, value in operands if value],
        [onnx.helper.make_empty_tensor_value_info(f"o{i}") for i, value in enumerate(node.outputs) if value],
    )
    imports = [onnx.helper.make_opsetid(name, version) for name, version in opsets.items()]
    try:
        return reference.ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports))
    except Exception:  # an unsupported operator, or an invalid node
        return None


def _operators(node: Node, opsets: Mapping[str, int]) -> tuple[list[Any], dict[str, int]]:
    """Return the operators that compute the node, with their operator sets."""
    domain, _ = domain_and_type(node.op)
    version = opsets.get(domain, 1)
    first, op, later = REPLACEMENTS.get(node.op, (version + 1, "", 0))
    if first <= version < later and len(node.outputs) == 1:
        return [single_node(replace(node, op=op), opsets)], {**opsets, domain: later}
    if node.op in FLATTENING and version < 13:
        return _flatten_softmax(node), {**opsets, domain: 13}
    return [single_node(node, opsets)], {**opsets, domain: version}


def _flatten_softmax(node: Node) -> list[Any]:
    """Return operators for a softmax before version 13: flatten to a matrix, apply along axis 1, restore the shape."""
    make_node = require("onnx.helper", extra="onnx").make_node
    inner = single_node(replace(node, attrs={"axis": 1}), {"": 13})
    inner.input[:], inner.output[:] = ["matrix"], ["result"]
    return [
        make_node("Flatten", ["i0"], ["matrix"], axis=node.attrs.get("axis", 1)),
        inner,
        make_node("Shape", ["i0"], ["shape"]),
        make_node("Reshape", ["result", "shape"], ["o0"]),
    ]


def _value_info_of(helper: Any, name: str, value: Value) -> Any:
    """Return the type declaration of an input, needed to expand operators defined as functions."""
    if not isinstance(value.spec, TensorSpec):
        return helper.make_empty_tensor_value_info(name)
    kind = helper.np_dtype_to_tensor_dtype(NUMPY[value.spec.dtype])
    return helper.make_tensor_value_info(name, kind, value.spec.shape)


@dataclass(frozen=True)
class _PassThroughKernel:
    """The kernel of an operator that passes a value outside the plan through; None without an input."""

    node: Node
    scratch: int = 0
    keeps: bool = True

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        values = [(value, operand) for value, operand in zip(self.node.inputs, inputs, strict=True) if value]
        (cell,) = outputs
        assert isinstance(cell, UnplannedCell)

        def run() -> None:
            cell.content = _input_content(*values[0], True) if values else None
            if cell.content is None and self.node.op == "onnx.OptionalGetElement":
                raise ValueError("the optional has no value")

        return run


@dataclass(frozen=True)
class _OperatorKernel:
    """The kernel of an ONNX operator, run by the reference implementation."""

    node: Node
    evaluator: Any
    scratch: int = 0
    keeps: bool = True

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        names = [name for name in node_input_names(self.node) if name]
        values = [(value, operand) for value, operand in zip(self.node.inputs, inputs, strict=True) if value]
        results = [(v, to) for v, to in zip(self.node.outputs, outputs, strict=True) if v and to is not None]
        keeps = any(isinstance(operand, UnplannedCell) for operand in outputs)
        evaluator = self.evaluator

        def run() -> None:
            feeds = {name: _input_content(v, operand, keeps) for name, (v, operand) in zip(names, values, strict=True)}
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                computed = evaluator.run(None, feeds)
            for content, (value, operand) in zip(computed, results, strict=True):
                store(content, operand, value, value.spec)

        return run


def _input_content(value: Value, operand: Operand | None, keeps: bool) -> Any:
    """Return an input for the reference implementation; a copy if the node may keep it in a cell."""
    if isinstance(operand, UnplannedCell):
        return operand.content
    assert operand is not None
    assert isinstance(value.spec, TensorSpec)
    elements = unpacked_elements(operand, value.spec)
    return elements.copy() if keeps and elements is operand else elements
