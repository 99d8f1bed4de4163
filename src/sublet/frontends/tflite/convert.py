"""Subgraphs as nodes: what an operator is given and gives become values; a subgraph that is run is written in line."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.frontends.tflite.control import add_branch, add_loop, add_once
from sublet.frontends.tflite.conversion import MOST_DEPTH, PREFIX, Conversion, Key, State
from sublet.frontends.tflite.program import Operator
from sublet.frontends.tflite.state import ASSIGN, READ, variable
from sublet.ir.graph import Attr, Node, Value

Values = dict[int, Value]
"""What the tensors of a subgraph stand for, by their positions."""


def convert_subgraph(
    conversion: Conversion, graph: int, inputs: Sequence[Value], now: State, depth: int = 0
) -> tuple[list[Node], tuple[Value, ...]]:
    """The nodes and outputs of a subgraph with these inputs; `now` is left as the subgraph leaves it."""
    subgraph = conversion.program.subgraphs[graph]
    if depth > MOST_DEPTH:
        raise conversion.error(graph, f"subgraphs run each other more than {MOST_DEPTH} deep, or in a circle")
    if len(inputs) != len(subgraph.inputs) or len(set(subgraph.inputs)) != len(inputs):
        raise conversion.error(
            graph, f"the subgraph takes {len(set(subgraph.inputs))} inputs, and is given {len(inputs)}"
        )
    values: Values = {}
    for index, value in zip(subgraph.inputs, inputs, strict=True):
        tensor = subgraph.tensors[index]
        if tensor.spec != value.spec:
            raise conversion.error(graph, f"its input {tensor.name[:80]!r} is {tensor.spec}, and is given {value.spec}")
        values[index] = value
    nodes: list[Node] = []
    for position, operator in enumerate(subgraph.operators):
        given = [_read(conversion, graph, index, values, now, position) for index in operator.inputs]
        results = _results(conversion, graph, operator, values, position)
        nodes += _converted(conversion, graph, position, operator, (given, results), now, depth)
        values.update((index, value) for index, value in zip(operator.outputs, results, strict=True) if value)
    outputs = [_read(conversion, graph, index, values, now, None) for index in subgraph.outputs]
    return nodes, tuple(value for value in outputs if value is not None)


def _read(
    conversion: Conversion, graph: int, index: int, values: Values, now: State, position: int | None
) -> Value | None:
    """What a tensor holds where it is read; None for one that is left out."""
    if index < 0:
        return None
    if index in values:
        return values[index]
    key = variable(conversion.program, graph, index, conversion.keys)
    if key is not None:
        return conversion.state(key, now)
    value = conversion.constant(graph, index)
    if value is None:
        name = conversion.program.subgraphs[graph].tensors[index].name[:80]
        raise conversion.error(graph, f"{name!r} (tensor {index}) is read, and nothing gives it a content", position)
    return value


def _results(
    conversion: Conversion, graph: int, operator: Operator, values: Values, position: int
) -> list[Value | None]:
    """New values for what an operator gives. Raises ModelError for a tensor that has a content already."""
    found: list[Value | None] = []
    twice = len(set(operator.outputs)) < len(operator.outputs)
    for index in operator.outputs:
        if index < 0:
            found.append(None)
            continue
        tensor = conversion.program.subgraphs[graph].tensors[index]
        if index in values or twice or tensor.variable:
            raise conversion.error(graph, f"{tensor.name[:80]!r} (tensor {index}) is written once more", position)
        if conversion.program.content(tensor) is not None:
            raise conversion.error(graph, f"{tensor.name[:80]!r} (tensor {index}), a constant, is written", position)
        found.append(conversion.made(graph, index))
    return found


def _converted(
    conversion: Conversion,
    graph: int,
    position: int,
    operator: Operator,
    operands: tuple[list[Value | None], list[Value | None]],
    now: State,
    depth: int,
) -> list[Node]:
    given, results = operands
    add = {"IF": add_branch, "WHILE": add_loop, "CALL_ONCE": add_once}.get(operator.name)
    if add is not None:
        if None in given or None in results:
            raise conversion.error(graph, f"{operator.name} with an operand left out", position)
        values = [value for value in given if value], [value for value in results if value]
        return add(conversion, graph, position, values, now, depth, convert_subgraph)
    return [_operator(conversion, graph, position, (given, results), now)]


def _operator(
    conversion: Conversion,
    graph: int,
    position: int,
    operands: tuple[list[Value | None], list[Value | None]],
    now: State,
) -> Node:
    """A plain node: with what outlasts a run as an operand of its own, and as an output where it is changed."""
    operator = conversion.program.subgraphs[graph].operators[position]
    given, results = operands
    variables: tuple[int, ...] = ()
    if operator.name in (READ, ASSIGN):
        key = conversion.keys[graph, operator.inputs[0]]
        given = [given[0], conversion.state(key, now), *given[1:]]
        if operator.name == ASSIGN:
            now[key] = conversion.remembered(key)
            results, variables = [now[key]], (1,)
    else:
        changed: dict[Key, int] = {}
        for i, index in enumerate(operator.inputs):
            found = variable(conversion.program, graph, index, conversion.keys)
            if found is not None:
                changed.setdefault(found, i)
        now.update((each, conversion.remembered(each)) for each in changed)
        results, variables = [*results, *(now[each] for each in changed)], tuple(changed.values())
    attrs: dict[str, Attr] = {**operator.options, "outside": _outside(conversion, given), "variables": variables}
    node = Node("", f"{PREFIX}{operator.name}", tuple(given), tuple(results), attrs)
    return conversion.node(graph, position, operator, node)


def _outside(conversion: Conversion, given: Sequence[Value | None]) -> tuple[int, ...]:
    """The positions of operands that lie in no arena: constants, and what outlasts a run."""
    kept = conversion.weights.keys() | conversion.outlasting.keys()
    return tuple(i for i, value in enumerate(given) if value in kept)
