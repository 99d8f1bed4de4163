"""The reference backend: ONNX's own reference implementation of every operator. Slow, total, independent."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.errors import RunError
from sublet.extras import require
from sublet.ir.graph import Node, Value
from sublet.ops.onnx import PREFIX
from sublet.runtime.dtypes import NUMPY, pack, packed, unpack
from sublet.runtime.kernel import Array, Call, Cell, Kernel, Operand
from sublet.runtime.onnx_nodes import domain_and_type, input_names, single_node
from sublet.tensor import TensorSpec


@dataclass(frozen=True)
class Reference:
    """`opsets` tells the version of each operator set, "" for the default domain."""

    opsets: Mapping[str, int]
    name: str = "reference"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """The reference kernel of an ONNX operator; None for other dialects and unknown operators."""
        if not node.op.startswith(PREFIX):
            return None
        evaluator = self._evaluator(node)
        return None if evaluator is None else _ReferenceKernel(node, evaluator)

    def _evaluator(self, node: Node) -> Any | None:
        onnx = require("onnx", extra="onnx")
        reference = require("onnx.reference", extra="onnx")
        empty = onnx.helper.make_empty_tensor_value_info
        graph = onnx.helper.make_graph(
            [single_node(node, self.opsets)],
            "node",
            [empty(name) for name in input_names(node) if name],
            [empty(f"o{i}") for i, value in enumerate(node.outputs) if value is not None],
        )
        domain, _ = domain_and_type(node.op)
        opsets = {**self.opsets, domain: self.opsets.get(domain, 1)}
        imports = [onnx.helper.make_opsetid(name, version) for name, version in opsets.items()]
        try:
            return reference.ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports))
        except (NotImplementedError, onnx.reference.op_run.OnnxImplementationError, KeyError, RuntimeError):
            return None


@dataclass(frozen=True)
class _ReferenceKernel:
    node: Node
    evaluator: Any
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        names = [name for name in input_names(self.node) if name]
        values = [(value, operand) for value, operand in zip(self.node.inputs, inputs, strict=True) if value]
        results = [(value, operand) for value, operand in zip(self.node.outputs, outputs, strict=True) if value]
        keeps = any(isinstance(operand, Cell) for operand in outputs)
        evaluator = self.evaluator

        def run() -> None:
            feeds = {name: _read(v, operand, keeps) for name, (v, operand) in zip(names, values, strict=True)}
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = evaluator.run(None, feeds)
            for content, (value, operand) in zip(found, results, strict=True):
                _write(content, value, operand)

        return run


def _read(value: Value, operand: Operand | None, keeps: bool) -> Any:
    """The input as the reference implementation takes it; a copy when the node may keep it in a cell."""
    if isinstance(operand, Cell):
        return operand.content
    assert operand is not None
    assert isinstance(value.spec, TensorSpec)
    if packed(value.spec):
        return unpack(operand, value.spec)
    return operand.copy() if keeps else operand


def _write(content: Any, value: Value, operand: Operand | None) -> None:
    if isinstance(operand, Cell):
        operand.content = content
        return
    assert operand is not None
    spec = value.spec
    assert isinstance(spec, TensorSpec)
    array = np.asarray(content)
    if array.shape != spec.shape or array.dtype != NUMPY[spec.dtype]:
        raise RunError(f"{value} turned out to be {array.dtype}{list(array.shape)}, but was planned as {spec}")
    operand[...] = pack(array, spec) if packed(spec) else array
