"""Conversion of ONNX If to a `CaseOf` node: arm 0 is the else branch (False), arm 1 the then branch (True).

An If with a constant condition becomes no branch: the nodes of the taken arm are inlined. An arm with conflicting
shapes fails whenever the arm runs, so the output types come from the remaining arm alone (for example a network for two
sampling rates, whose bound length fits only one rate).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublet.frontends.onnx.graph_conversion import (
    BOOL_SCALAR,
    GraphConversion,
    GraphConverter,
    as_scalar,
    graph_attribute,
    node_error,
    results_of,
)
from sublet.frontends.onnx.import_state import KnownValue
from sublet.frontends.onnx.type_inference import SHAPE_CONFLICT
from sublet.frontends.onnx.types import merge_types
from sublet.ir.graph import CaseOf, Graph, Value

if TYPE_CHECKING:
    import onnx


def convert_if(frame: GraphConversion, node: onnx.NodeProto, name: str, convert: GraphConverter) -> None:
    """Add the `CaseOf` node, or inline the taken arm if the condition is constant.

    Raises ModelError for an If with a missing condition or branch, or with fewer branch outputs than node outputs.
    """
    condition = frame.lookup(node.input[0]) if len(node.input) == 1 else None
    if condition is None:
        raise node_error(frame, node, "needs exactly one input, the condition")
    index = as_scalar(frame, condition, BOOL_SCALAR, f"{name}.condition")
    branches = [graph_attribute(frame, node, f"{arm}_branch") for arm in ("else", "then")]
    if any(len(branch.output) < len(node.output) for branch in branches):
        raise node_error(frame, node, f"has {len(node.output)} outputs; one of its branches has fewer")
    if index.weight is not None:
        _inline_branch(frame, node, branches[bool(index.weight.array())], convert)
        return
    arms: list[Graph] = []
    results: list[tuple[KnownValue, ...]] = []
    for branch, title in zip(branches, ("else_branch", "then_branch"), strict=True):
        scope = frame.scope.new_child()
        with frame.program.in_conditional_code():
            inner = convert(frame.program, branch, scope)
        outputs = results_of(frame.program, branch, scope)[: len(node.output)]
        arms.append(Graph(title, (), tuple(inner.nodes), tuple(known.value for known in outputs)))
        results.append(outputs)
    outs = tuple(
        _define_output(frame, name, output, both) if output else None
        for output, both in zip(node.output, zip(*results, strict=True), strict=True)
    )
    frame.nodes.append(CaseOf(name, "case", (index.value,), outs, arms=tuple(arms)))


def _inline_branch(
    frame: GraphConversion, node: onnx.NodeProto, branch: onnx.GraphProto, convert: GraphConverter
) -> None:
    """Inline one branch of an If with a constant condition."""
    scope = frame.scope.new_child()
    inner = convert(frame.program, branch, scope)
    frame.nodes.extend(inner.nodes)
    for output, known in zip(node.output, results_of(frame.program, branch, scope), strict=False):
        if output:
            frame.scope[output] = known


def _define_output(frame: GraphConversion, name: str, output: str, arms: tuple[KnownValue, ...]) -> Value:
    """Define one output of the branch, with the type common to all arms able to run."""
    possible = [known for known in arms if not known.unplannable_reason.startswith(SHAPE_CONFLICT)] or arms
    differ = f"the branches of If {name!r} return {arms[0].type} and {arms[1].type}"
    reason = next((known.unplannable_reason for known in possible if known.unplannable_reason), differ)
    return frame.define(output, merge_types([known.type for known in possible]), reason)
