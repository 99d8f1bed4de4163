"""IF, WHILE and CALL_ONCE: the subgraphs that they run are arms of a branch, or the check and the body of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sublet.frontends.tflite.conversion import COUNT, Conversion, State
from sublet.frontends.tflite.program import Operator
from sublet.frontends.tflite.state import CALLS, changed
from sublet.ir.graph import CaseOf, Graph, Node, Value, While

Operands = tuple[list[Value], list[Value]]


class Convert(Protocol):
    """Makes nodes and outputs of a subgraph with these inputs."""

    def __call__(
        self, conversion: Conversion, graph: int, inputs: Sequence[Value], now: State, depth: int, /
    ) -> tuple[list[Node], tuple[Value, ...]]: ...


def _called(conversion: Conversion, graph: int, position: int, operator: Operator) -> list[int]:
    """The subgraphs that an operator runs."""
    found = [operator.options.get(option, -1) for option in CALLS[operator.name]]
    for called in found:
        if not 0 < called < len(conversion.program.subgraphs):
            raise conversion.error(graph, f"{operator.name} runs subgraph {called}, which it cannot", position)
    return found


def add_branch(
    conversion: Conversion, graph: int, position: int, operands: Operands, now: State, depth: int, convert: Convert
) -> list[Node]:
    """A branch with two arms. What one of them assigns is an output too."""
    operator = conversion.program.subgraphs[graph].operators[position]
    if not operands[0]:
        raise conversion.error(graph, "a branch without a condition", position)
    (condition, *given), results = operands[0], operands[1]
    then, otherwise = _called(conversion, graph, position, operator)
    arms: list[tuple[list[Node], tuple[Value, ...], State]] = []
    for called in (otherwise, then):
        inside = dict(now)
        nodes, outputs = convert(conversion, called, given, inside, depth + 1)
        if len(outputs) != len(results):
            what = f"subgraph {called} gives {len(outputs)} outputs, the branch has {len(results)}"
            raise conversion.error(graph, what, position)
        arms.append((nodes, outputs, inside))
    return [_case(conversion, graph, position, condition, results, arms, now)]


def _case(
    conversion: Conversion,
    graph: int,
    position: int,
    index: Value,
    results: Sequence[Value],
    arms: Sequence[tuple[list[Node], tuple[Value, ...], State]],
    now: State,
) -> Node:
    """The branch; `now` is left as whichever arm leaves it."""
    operator = conversion.program.subgraphs[graph].operators[position]
    touched = dict.fromkeys(key for _, _, inside in arms for key in inside)
    before = {key: conversion.state(key, now) for key in touched}
    keys = [key for key in touched if any(inside.get(key, before[key]) is not before[key] for _, _, inside in arms)]
    graphs = []
    for nodes, outputs, inside in arms:
        left = (inside.get(key, before[key]) for key in keys)
        graphs.append(Graph(conversion.fresh(f"{operator.name}.{position}.arm"), (), tuple(nodes), (*outputs, *left)))
    for key in keys:
        now[key] = conversion.remembered(key)
    outputs = (*results, *(now[key] for key in keys))
    return conversion.node(graph, position, operator, CaseOf("", "case", (index,), outputs, {}, arms=tuple(graphs)))


def add_once(
    conversion: Conversion, graph: int, position: int, operands: Operands, now: State, depth: int, convert: Convert
) -> list[Node]:
    """A branch that is taken in the first run only: what runs remember tells which one it is."""
    operator = conversion.program.subgraphs[graph].operators[position]
    (called,) = _called(conversion, graph, position, operator)
    if graph != 0:
        raise conversion.error(graph, "CALL_ONCE in a subgraph that is itself run by another", position)
    key = ("once", str(graph), str(position), "initialised")
    inside = dict(now)
    nodes, _ = convert(conversion, called, (), inside, depth + 1)
    if not nodes:
        return []
    index = conversion.initial.get(key)
    if index is None:
        index = conversion.initial[key] = conversion.flag("initialised", None)
        now[key] = conversion.flag("initialised.always", (True,))
    return [_case(conversion, graph, position, index, (), [(nodes, (), inside), ([], (), dict(now))], now)]


def add_loop(
    conversion: Conversion, graph: int, position: int, operands: Operands, now: State, depth: int, convert: Convert
) -> list[Node]:
    """A loop that carries the operands, and what its body assigns."""
    operator = conversion.program.subgraphs[graph].operators[position]
    check, body = _called(conversion, graph, position, operator)
    if changed(conversion.program, check, conversion.keys):
        raise conversion.error(graph, f"subgraph {check} is a condition, and assigns a variable", position)
    given, results = operands
    keys = changed(conversion.program, body, conversion.keys)
    inits = [*given, *(conversion.state(key, now) for key in keys)]
    counter = Value(conversion.fresh(f"{operator.name}.{position}.round"), COUNT)
    parameters = [Value(conversion.fresh(f"{value.name}.carried"), value.spec) for value in inits]
    inside = {**now, **dict(zip(keys, parameters[len(given) :], strict=True))}
    conversion.outlasting.update(zip(parameters[len(given) :], keys, strict=True))
    nodes, conditions = convert(conversion, check, parameters[: len(given)], inside, depth + 1)
    if len(conditions) != 1:
        raise conversion.error(graph, f"subgraph {check} is a condition, and gives {len(conditions)} outputs", position)
    more, updates = convert(conversion, body, parameters[: len(given)], inside, depth + 1)
    if not len(updates) == len(given) == len(results):
        what = f"the loop has {len(given)} inputs and {len(results)} outputs, its body gives {len(updates)}"
        raise conversion.error(graph, what, position)
    left = (*updates, *(inside[key] for key in keys))
    for key in keys:
        now[key] = conversion.remembered(key)
    finals = (*results, *(now[key] for key in keys))
    graph_ = Graph(conversion.fresh(f"{operator.name}.{position}.body"), (counter, *parameters), (*nodes, *more), left)
    loop = While(
        "", "while", tuple(inits), finals, {}, body=graph_, condition=conditions[0], check=len(nodes),
        carried=len(inits),
    )  # fmt: skip
    return [conversion.node(graph, position, operator, loop)]
