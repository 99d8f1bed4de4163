"""Conversion of IF, WHILE and CALL_ONCE: called subgraphs become arms of a branch, or check and body of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sublet.frontends.tflite.conversion_state import COUNT, TFLiteConversion, VariableState
from sublet.frontends.tflite.program import Operator
from sublet.frontends.tflite.variables import SUBGRAPH_OPTIONS, changed_variables
from sublet.ir.graph import CaseOf, Graph, Node, Value, While

Operands = tuple[list[Value], list[Value]]


class SubgraphConverter(Protocol):
    """A function returning the nodes and outputs of a subgraph called with `inputs`."""

    def __call__(
        self, conversion: TFLiteConversion, graph: int, inputs: Sequence[Value], now: VariableState, depth: int, /
    ) -> tuple[list[Node], tuple[Value, ...]]: ...


def _called_subgraphs(conversion: TFLiteConversion, graph: int, position: int, operator: Operator) -> list[int]:
    """Return the subgraphs called by an operator. Raises ModelError for subgraph 0 or a missing subgraph."""
    subgraphs = [operator.options.get(option, -1) for option in SUBGRAPH_OPTIONS[operator.name]]
    for called in subgraphs:
        if not 0 < called < len(conversion.program.subgraphs):
            raise conversion.error(graph, f"{operator.name} cannot call subgraph {called}", position)
    return subgraphs


def add_branch(
    conversion: TFLiteConversion,
    graph: int,
    position: int,
    operands: Operands,
    variables: VariableState,
    depth: int,
    convert: SubgraphConverter,
) -> list[Node]:
    """Return the `CaseOf` node of an IF; variables assigned by an arm are additional outputs."""
    operator = conversion.program.subgraphs[graph].operators[position]
    if not operands[0]:
        raise conversion.error(graph, "a branch without a condition", position)
    (condition, *inputs), results = operands[0], operands[1]
    then, otherwise = _called_subgraphs(conversion, graph, position, operator)
    arms: list[tuple[list[Node], tuple[Value, ...], VariableState]] = []
    for called in (otherwise, then):
        arm_state = dict(variables)
        nodes, outputs = convert(conversion, called, inputs, arm_state, depth + 1)
        if len(outputs) != len(results):
            what = f"subgraph {called} returns {len(outputs)} outputs, the branch has {len(results)}"
            raise conversion.error(graph, what, position)
        arms.append((nodes, outputs, arm_state))
    return [_case_node(conversion, graph, position, condition, results, arms, variables)]


def _case_node(
    conversion: TFLiteConversion,
    graph: int,
    position: int,
    index: Value,
    results: Sequence[Value],
    arms: Sequence[tuple[list[Node], tuple[Value, ...], VariableState]],
    variables: VariableState,
) -> Node:
    """Return the `CaseOf` node, and set `variables` to the state after the branch."""
    operator = conversion.program.subgraphs[graph].operators[position]
    touched = dict.fromkeys(key for _, _, arm_state in arms for key in arm_state)
    before = {key: conversion.state_value(key, variables) for key in touched}
    keys = [
        key for key in touched if any(arm_state.get(key, before[key]) is not before[key] for _, _, arm_state in arms)
    ]
    graphs = []
    for nodes, outputs, arm_state in arms:
        final_values = (arm_state.get(key, before[key]) for key in keys)
        graphs.append(
            Graph(conversion.fresh(f"{operator.name}.{position}.arm"), (), tuple(nodes), (*outputs, *final_values))
        )
    for key in keys:
        variables[key] = conversion.next_state_value(key)
    outputs = (*results, *(variables[key] for key in keys))
    return conversion.finish_node(
        graph, position, operator, CaseOf("", "case", (index,), outputs, {}, arms=tuple(graphs))
    )


def add_call_once(
    conversion: TFLiteConversion,
    graph: int,
    position: int,
    operands: Operands,
    variables: VariableState,
    depth: int,
    convert: SubgraphConverter,
) -> list[Node]:
    """Return the `CaseOf` node of a CALL_ONCE, taken in the first run only.

    A persistent bool variable distinguishes later runs. The list is empty for a subgraph without nodes.
    """
    operator = conversion.program.subgraphs[graph].operators[position]
    (called,) = _called_subgraphs(conversion, graph, position, operator)
    if graph != 0:
        raise conversion.error(graph, "CALL_ONCE outside the main subgraph", position)
    key = ("once", str(graph), str(position), "initialised")
    arm_state = dict(variables)
    nodes, _ = convert(conversion, called, (), arm_state, depth + 1)
    if not nodes:
        return []
    index = conversion.initial_state.get(key)
    if index is None:
        index = conversion.initial_state[key] = conversion.flag_value("initialised", None)
        variables[key] = conversion.flag_value("initialised.always", (True,))
    return [
        _case_node(
            conversion, graph, position, index, (), [(nodes, (), arm_state), ([], (), dict(variables))], variables
        )
    ]


def add_loop(
    conversion: TFLiteConversion,
    graph: int,
    position: int,
    operands: Operands,
    variables: VariableState,
    depth: int,
    convert: SubgraphConverter,
) -> list[Node]:
    """Return the `While` node of a WHILE; operands and variables assigned by the body are loop-carried values."""
    operator = conversion.program.subgraphs[graph].operators[position]
    check, body = _called_subgraphs(conversion, graph, position, operator)
    if changed_variables(conversion.program, check, conversion.keys):
        raise conversion.error(graph, f"condition subgraph {check} assigns a variable", position)
    inputs, results = operands
    keys = changed_variables(conversion.program, body, conversion.keys)
    inits = [*inputs, *(conversion.state_value(key, variables) for key in keys)]
    counter = Value(conversion.fresh(f"{operator.name}.{position}.round"), COUNT)
    parameters = [Value(conversion.fresh(f"{value.name}.carried"), value.spec) for value in inits]
    body_state = {**variables, **dict(zip(keys, parameters[len(inputs) :], strict=True))}
    conversion.persistent.update(zip(parameters[len(inputs) :], keys, strict=True))
    nodes, conditions = convert(conversion, check, parameters[: len(inputs)], body_state, depth + 1)
    if len(conditions) != 1:
        raise conversion.error(
            graph, f"condition subgraph {check} returns {len(conditions)} outputs; expected one", position
        )
    body_nodes, updates = convert(conversion, body, parameters[: len(inputs)], body_state, depth + 1)
    if not len(updates) == len(inputs) == len(results):
        what = f"the loop has {len(inputs)} inputs and {len(results)} outputs, its body returns {len(updates)}"
        raise conversion.error(graph, what, position)
    body_outputs = (*updates, *(body_state[key] for key in keys))
    for key in keys:
        variables[key] = conversion.next_state_value(key)
    finals = (*results, *(variables[key] for key in keys))
    graph_ = Graph(
        conversion.fresh(f"{operator.name}.{position}.body"),
        (counter, *parameters),
        (*nodes, *body_nodes),
        body_outputs,
    )
    loop = While(
        "", "while", tuple(inits), finals, {}, body=graph_, condition=conditions[0], check=len(nodes),
        carried=len(inits),
    )  # fmt: skip
    return [conversion.finish_node(graph, position, operator, loop)]
