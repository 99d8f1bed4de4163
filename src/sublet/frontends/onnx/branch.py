"""If as a CaseOf: arm 0 is the else branch (False), arm 1 the then branch (True).

An If whose condition is a constant is no branch: the nodes of the arm it takes stand in its place.
An arm whose shapes contradict each other fails when it runs, so the other arm alone tells what comes
out (a network for two sampling rates, say, of which the bound length fits only one).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublet.frontends.onnx.frame import (
    BOOL_SCALAR,
    Converter,
    Frame,
    as_scalar,
    fail,
    graph_attribute,
    results_of,
)
from sublet.frontends.onnx.infer import CONTRADICTION
from sublet.frontends.onnx.program import Known
from sublet.frontends.onnx.types import merge
from sublet.ir.graph import CaseOf, Graph, Value

if TYPE_CHECKING:
    import onnx


def convert_if(frame: Frame, node: onnx.NodeProto, name: str, convert: Converter) -> None:
    """Add the branch, or the one arm it always takes. Raises ModelError when it is malformed."""
    condition = frame.read(node.input[0]) if len(node.input) == 1 else None
    if condition is None:
        raise fail(frame, node, "needs exactly one input, its condition")
    index = as_scalar(frame, condition, BOOL_SCALAR, f"{name}.condition")
    branches = [graph_attribute(frame, node, f"{arm}_branch") for arm in ("else", "then")]
    if any(len(branch.output) < len(node.output) for branch in branches):
        raise fail(frame, node, f"has {len(node.output)} outputs, more than one of its branches")
    if index.weight is not None:
        _take(frame, node, branches[bool(index.weight.array())], convert)
        return
    arms: list[Graph] = []
    results: list[tuple[Known, ...]] = []
    for branch, title in zip(branches, ("else_branch", "then_branch"), strict=True):
        scope = frame.scope.new_child()
        with frame.program.perhaps():
            inner = convert(frame.program, branch, scope)
        outputs = results_of(frame.program, branch, scope)[: len(node.output)]
        arms.append(Graph(title, (), tuple(inner.nodes), tuple(known.value for known in outputs)))
        results.append(outputs)
    outs = tuple(
        _define(frame, name, output, both) if output else None
        for output, both in zip(node.output, zip(*results, strict=True), strict=True)
    )
    frame.nodes.append(CaseOf(name, "case", (index.value,), outs, arms=tuple(arms)))


def _take(frame: Frame, node: onnx.NodeProto, branch: onnx.GraphProto, convert: Converter) -> None:
    scope = frame.scope.new_child()
    inner = convert(frame.program, branch, scope)
    frame.nodes.extend(inner.nodes)
    for output, known in zip(node.output, results_of(frame.program, branch, scope), strict=False):
        if output:
            frame.scope[output] = known


def _define(frame: Frame, name: str, output: str, both: tuple[Known, ...]) -> Value:
    """One output of the branch: what its arms have in common."""
    possible = [known for known in both if not known.reason.startswith(CONTRADICTION)] or both
    differ = f"the branches of If {name!r} give {both[0].type} and {both[1].type}"
    reason = next((known.reason for known in possible if known.reason), differ)
    return frame.define(output, merge([known.type for known in possible]), reason)
