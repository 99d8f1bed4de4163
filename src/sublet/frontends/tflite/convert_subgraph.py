"""Conversion of subgraphs to nodes: tensors become values, and called subgraphs are inlined into control-flow nodes."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.frontends.tflite.control_flow import add_branch, add_call_once, add_loop
from sublet.frontends.tflite.conversion_state import MAX_DEPTH, PREFIX, TFLiteConversion, VariableKey, VariableState
from sublet.frontends.tflite.program import Operator
from sublet.frontends.tflite.variables import ASSIGN_OPERATOR, READ_OPERATOR, variable_key_of
from sublet.ir.graph import Attr, Node, Value

Values = dict[int, Value]
"""The values of the tensors of a subgraph, by position."""


def convert_subgraph(
    conversion: TFLiteConversion, graph: int, inputs: Sequence[Value], variables: VariableState, depth: int = 0
) -> tuple[list[Node], tuple[Value, ...]]:
    """Return the nodes and outputs of a subgraph called with `inputs`; set `variables` to the state after the subgraph.

    Raises ModelError for recursion or too deep calls, for mismatched inputs, and for malformed operators.
    """
    subgraph = conversion.program.subgraphs[graph]
    if depth > MAX_DEPTH:
        raise conversion.error(graph, f"subgraph calls are nested deeper than {MAX_DEPTH}, or recursive")
    if len(inputs) != len(subgraph.inputs) or len(set(subgraph.inputs)) != len(inputs):
        raise conversion.error(
            graph, f"the subgraph has {len(set(subgraph.inputs))} inputs; the call passes {len(inputs)}"
        )
    values: Values = {}
    for index, value in zip(subgraph.inputs, inputs, strict=True):
        tensor = subgraph.tensors[index]
        if tensor.spec != value.spec:
            raise conversion.error(graph, f"input {tensor.name[:80]!r} is {tensor.spec}; the call passes {value.spec}")
        values[index] = value
    nodes: list[Node] = []
    for position, operator in enumerate(subgraph.operators):
        given = [_value_read(conversion, graph, index, values, variables, position) for index in operator.inputs]
        results = _new_results(conversion, graph, operator, values, position)
        nodes += _convert_operator(conversion, graph, position, operator, (given, results), variables, depth)
        values.update((index, value) for index, value in zip(operator.outputs, results, strict=True) if value)
    outputs = [_value_read(conversion, graph, index, values, variables, None) for index in subgraph.outputs]
    return nodes, tuple(value for value in outputs if value is not None)


def _value_read(
    conversion: TFLiteConversion, graph: int, index: int, values: Values, variables: VariableState, position: int | None
) -> Value | None:
    """Return the value of a tensor at the point of a read; None for an omitted tensor.

    Raises ModelError for a tensor without content.
    """
    if index < 0:
        return None
    if index in values:
        return values[index]
    key = variable_key_of(conversion.program, graph, index, conversion.keys)
    if key is not None:
        return conversion.state_value(key, variables)
    value = conversion.constant(graph, index)
    if value is None:
        name = conversion.program.subgraphs[graph].tensors[index].name[:80]
        raise conversion.error(graph, f"{name!r} (tensor {index}) is read before a write", position)
    return value


def _new_results(
    conversion: TFLiteConversion, graph: int, operator: Operator, values: Values, position: int
) -> list[Value | None]:
    """Return new values for the outputs of an operator. Raises ModelError for a tensor already written or constant."""
    results: list[Value | None] = []
    twice = len(set(operator.outputs)) < len(operator.outputs)
    for index in operator.outputs:
        if index < 0:
            results.append(None)
            continue
        tensor = conversion.program.subgraphs[graph].tensors[index]
        if index in values or twice or tensor.is_variable:
            raise conversion.error(graph, f"{tensor.name[:80]!r} (tensor {index}) is written twice", position)
        if conversion.program.constant_content(tensor) is not None:
            raise conversion.error(graph, f"{tensor.name[:80]!r} (tensor {index}), a constant, is written", position)
        results.append(conversion.new_value(graph, index))
    return results


def _convert_operator(
    conversion: TFLiteConversion,
    graph: int,
    position: int,
    operator: Operator,
    operands: tuple[list[Value | None], list[Value | None]],
    variables: VariableState,
    depth: int,
) -> list[Node]:
    """Return the nodes of one operator."""
    operands_read, results = operands
    add = {"IF": add_branch, "WHILE": add_loop, "CALL_ONCE": add_call_once}.get(operator.name)
    if add is not None:
        if None in operands_read or None in results:
            raise conversion.error(graph, f"{operator.name} with a missing operand", position)
        values = [value for value in operands_read if value], [value for value in results if value]
        return add(conversion, graph, position, values, variables, depth, convert_subgraph)
    return [_operator_node(conversion, graph, position, (operands_read, results), variables)]


def _operator_node(
    conversion: TFLiteConversion,
    graph: int,
    position: int,
    operands: tuple[list[Value | None], list[Value | None]],
    now: VariableState,
) -> Node:
    """Return the node of a plain operator, with variables as operands and changed variables as additional outputs."""
    operator = conversion.program.subgraphs[graph].operators[position]
    operands_read, results = operands
    variables: tuple[int, ...] = ()
    if operator.name in (READ_OPERATOR, ASSIGN_OPERATOR):
        key = conversion.keys[graph, operator.inputs[0]]
        operands_read = [operands_read[0], conversion.state_value(key, now), *operands_read[1:]]
        if operator.name == ASSIGN_OPERATOR:
            now[key] = conversion.next_state_value(key)
            results, variables = [now[key]], (1,)
    else:
        changed_positions: dict[VariableKey, int] = {}
        for i, index in enumerate(operator.inputs):
            changed_key = variable_key_of(conversion.program, graph, index, conversion.keys)
            if changed_key is not None:
                changed_positions.setdefault(changed_key, i)
        now.update((each, conversion.next_state_value(each)) for each in changed_positions)
        results, variables = [*results, *(now[each] for each in changed_positions)], tuple(changed_positions.values())
    attrs: dict[str, Attr] = {
        **operator.options,
        "outside": _outside_arena(conversion, operands_read),
        "variables": variables,
    }
    node = Node("", f"{PREFIX}{operator.name}", tuple(operands_read), tuple(results), attrs)
    return conversion.finish_node(graph, position, operator, node)


def _outside_arena(conversion: TFLiteConversion, given: Sequence[Value | None]) -> tuple[int, ...]:
    """Return the positions of operands outside the arena: constants and variables."""
    non_arena = conversion.weights.keys() | conversion.persistent.keys()
    return tuple(i for i, value in enumerate(given) if value in non_arena)
