"""Constant folding.

Requires a legal graph. Ensures: no pure nn command with small results remains whose inputs all have known elements; a
branch with a known index is replaced by the chosen arm; a loop with zero iterations is removed; and a loop parameter
that never changes is replaced by the initial value.

    weights %two: f32[] = [2.0]               weights %two: f32[] = [2.0], %const: f32[] = [4.0]
    %four = nn.mul(%two, %two)          ->
    %y = nn.mul(%x, %four)                    %y = nn.mul(%x, %const)

    %y = case %no { arm @a { yield %x } arm @b { yield %z } }, %no = [false]    ->    %x for %y

The NumPy reference of a command computes known elements. The elements of a weight updated by a run are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sublet.base.tensor import INTEGERS, NUMPY, DType, TensorSpec
from sublet.ir.dataflow import rename_values
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.emitter import CONSTANT_ELEMENTS
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import PREFIX
from sublet.passes.rewriting import Rewriter, literal_weights

# Conversion of literals to NumPy arrays and back, and evaluation of commands on known elements.

Elements = tuple[int | float | bool, ...]

EXACT_TYPES = frozenset((DType.BOOL, *INTEGERS, DType.F32, DType.F64))
"""Types for which NumPy computes exactly the elements defined by the commands."""


def is_filled_with(value: Value, number: float) -> bool:
    """True if the value is a literal with `number` in every element. 0.0 and -0.0 are equal."""
    return value.literal is not None and all(element == number for element in value.literal) and bool(value.literal)


def evaluate_node(node: Node, known: Mapping[Value, Elements]) -> list[Elements] | None:
    """Return the elements of each output of a node, or None.

    None means: an input is unknown, a type is computed inexactly by NumPy, or an output has too many elements.
    """
    record = COMMANDS.get(node.op.removeprefix(PREFIX)) if node.op.startswith(PREFIX) else None
    if record is None or not record.pure or node.scratch is not None or None in node.inputs:
        return None
    if not all(value in known for value in node.uses) or not all(_is_small(value) for value in node.outputs):
        return None
    arrays = [_to_array(value, known[value]) for value in node.uses if value.spec.dtype in EXACT_TYPES]
    if len(arrays) != len(node.inputs):
        return None
    with np.errstate(all="ignore"):
        result = record.compute(*arrays, **node.attrs)
    results: Sequence[Any] = result if isinstance(result, tuple) else (result,)
    return [_to_elements(array, value) for array, value in zip(results, node.outputs, strict=True) if value is not None]


def _is_small(value: Value | None) -> bool:
    spec = value.spec if value is not None else None
    return isinstance(spec, TensorSpec) and spec.dtype in EXACT_TYPES and spec.size <= CONSTANT_ELEMENTS


def _to_array(value: Value, elements: Elements) -> Any:
    assert isinstance(value.spec, TensorSpec)
    return np.array(elements, NUMPY[value.spec.dtype]).reshape(value.spec.shape)


def _to_elements(array: Any, value: Value) -> Elements:
    assert isinstance(value.spec, TensorSpec)
    return tuple(np.asarray(array).astype(NUMPY[value.spec.dtype]).reshape(-1).tolist())


MAX_WALKS = 100
"""Maximum number of walks. Each walk can expose an invariant of one more level of loop nesting."""


def with_folded_constants(graph: Graph) -> Graph:
    """Return the graph after constant folding to a fixpoint."""
    for _ in range(MAX_WALKS):
        before, graph = graph, _fold_once(_without_invariant_carries(graph))
        if graph == before:
            break
    return graph


def _fold_once(graph: Graph) -> Graph:
    """Return the graph after one forward walk of folding."""
    known: dict[Value, Elements] = {v: v.literal for v in literal_weights(graph) if v.literal is not None}

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        if isinstance(node, CaseOf):
            return _fold_branch(node, rewriter, known)
        if isinstance(node, While):
            return _fold_loop(node, rewriter, known)
        return _fold_node(node, rewriter, known)

    return Rewriter(graph, step).run()


def _fold_node(node: Node, rewriter: Rewriter, known: dict[Value, Elements]) -> Sequence[Node]:
    """Return [] and replace the outputs of the node by literals if the elements are known, else return the node."""
    if not node.uses:
        return [node]  # already a constant
    results = evaluate_node(node, known)
    outputs = [value for value in node.outputs if value is not None]
    if results is None or not all(rewriter.can_rename(value) for value in outputs):
        return [node]
    for value, elements in zip(outputs, results, strict=True):
        assert isinstance(value.spec, TensorSpec)
        literal = rewriter.literals.constant_of(elements, value.spec)
        known[literal] = elements
        rewriter.replace_value(value, literal)
    return []


def _fold_branch(node: CaseOf, rewriter: Rewriter, known: dict[Value, Elements]) -> Sequence[Node]:
    """Return the nodes of the arm chosen by a known index, else the branch."""
    if node.index not in known:
        return [node]
    index = int(known[node.index][0])
    if index >= len(node.arms) or (index < 0 and not node.fallbacks):
        return [node]  # the index names no arm: the error belongs to the run
    results = node.fallbacks if index < 0 else node.arms[index].outputs
    nodes = () if index < 0 else node.arms[index].nodes
    return _replace_node(node, nodes, results, rewriter)


def _replace_node(node: Node, nodes: Sequence[Node], results: Sequence[Value], rewriter: Rewriter) -> Sequence[Node]:
    """Replace the node by `nodes` and its outputs by `results`; return the node if an output cannot be renamed."""
    rewriter.mark_placed(nodes)
    pairs = [(old, rewriter.resolve(new)) for old, new in zip(node.outputs, results, strict=True) if old is not None]
    renamed = [new for old, new in pairs if not rewriter.can_rename(old)]
    if len(set(renamed)) < len(renamed) or not all(rewriter.can_replace(old, new) for old, new in pairs):
        return [node]
    for old, new in pairs:
        rewriter.replace_value(old, new)
    return nodes


def _fold_loop(node: While, rewriter: Rewriter, known: dict[Value, Elements]) -> Sequence[Node]:
    """Return no nodes for a loop whose condition is false at the first check, else the loop."""
    if any(value is not None for value in node.stacked_outputs) or not _never_runs(node, known):
        return [node]
    return _replace_node(node, (), node.inits, rewriter)


def _never_runs(node: While, known: dict[Value, Elements]) -> bool:
    """True if the condition of the loop is known to be false before the first iteration."""
    first = dict(known)
    first[node.counter] = (0,)
    first.update((p, known[init]) for p, init in zip(node.parameters, node.inits, strict=True) if init in known)
    for inner in node.body.nodes[: node.check]:
        results = None if inner.subgraphs else evaluate_node(inner, first)
        for value, elements in zip(inner.defs, results or (), strict=False):
            first[value] = elements
    return node.condition in first and not first[node.condition][0]


def _without_invariant_carries(graph: Graph) -> Graph:
    """Return the graph with loops reading each invariant loop-carried value directly from the initial value.

    Dead code elimination then removes the carried pair.
    """

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        if not isinstance(node, While):
            return [node]
        carries = zip(node.parameters, node.inits, node.updates, strict=True)
        idle = {parameter: init for parameter, init, update in carries if update in (parameter, init)}
        finals = list(node.finals)
        for k, parameter in enumerate(node.parameters):
            final = finals[k]
            if final is not None and parameter in idle and rewriter.replace_value(final, idle[parameter]):
                finals[k] = None
        condition = idle.get(node.condition, node.condition)
        body = rename_values(node.body, idle, definitions=False)
        return [replace(node, outputs=(*finals, *node.stacked_outputs), body=body, condition=condition)]

    return Rewriter(graph, step).run()
