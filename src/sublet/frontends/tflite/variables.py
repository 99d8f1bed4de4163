"""Persistent variables of a program: resources, named by a subgraph and then read or assigned, and variable tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sublet.base.errors import ModelError
from sublet.base.tensor import Spec, TensorSpec
from sublet.frontends.tflite.conversion_state import VariableKey
from sublet.frontends.tflite.program import Operator, TFLiteProgram

HANDLE_OPERATOR, READ_OPERATOR, ASSIGN_OPERATOR = "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"
SUBGRAPH_OPTIONS = {"IF": ("then", "else"), "WHILE": ("cond", "body"), "CALL_ONCE": ("init",)}
"""The operators calling subgraphs, and the options holding the subgraph numbers."""


def variables_of(program: TFLiteProgram) -> tuple[dict[tuple[int, int], VariableKey], dict[VariableKey, TensorSpec]]:
    """Return the variable named by, or stored in, each tensor as (subgraph, tensor), and the spec of each variable.

    Raises ModelError for conflicting specs of a variable, and for a read or assignment of an unknown variable.
    """
    keys: dict[tuple[int, int], VariableKey] = {}
    specs: dict[VariableKey, TensorSpec] = {}

    def declare(key: VariableKey, spec: Spec, at: int, position: int) -> None:
        where = f"{program.where}: subgraph {at}, operator {position}"
        if not isinstance(spec, TensorSpec):
            raise ModelError(f"{where}: the variable {key[-1][:80]!r} holds {spec}, which has no size")
        if specs.setdefault(key, spec) != spec:
            raise ModelError(f"{where}: the variable {key[-1][:80]!r} is {spec} here, and {specs[key]} elsewhere")

    for at, subgraph in enumerate(program.subgraphs):
        for index, tensor in enumerate(subgraph.tensors):
            if tensor.is_variable and isinstance(tensor.spec, TensorSpec):
                keys[at, index] = ("tensor", str(at), str(index), tensor.name or f"variable{index}")
                specs[keys[at, index]] = tensor.spec
        for operator in subgraph.operators:
            if operator.name == HANDLE_OPERATOR and operator.outputs:
                keys[at, operator.outputs[0]] = ("resource", *(operator.texts or ("", "")))
        for position, operator in enumerate(subgraph.operators):
            if operator.name in (READ_OPERATOR, ASSIGN_OPERATOR):
                key, index = _variable_operand(program, at, position, operator, keys)
                declare(key, subgraph.tensors[index].spec, at, position)
    return keys, specs


def _variable_operand(
    program: TFLiteProgram, at: int, position: int, operator: Operator, keys: Mapping[tuple[int, int], VariableKey]
) -> tuple[VariableKey, int]:
    """Return the variable read or assigned by an operator, and the tensor with the content."""
    where = f"{program.where}: subgraph {at}, operator {position}"
    contents = operator.outputs if operator.name == READ_OPERATOR else operator.inputs[1:]
    if not operator.inputs or len(contents) != 1 or contents[0] < 0:
        raise ModelError(
            f"{where}: {operator.name} with {len(operator.inputs)} inputs, {len(operator.outputs)} outputs"
        )
    key = keys.get((at, operator.inputs[0]))
    if key is None:
        raise ModelError(f"{where}: no {HANDLE_OPERATOR} of this subgraph defines the variable of {operator.name}")
    return key, contents[0]


def changed_variables(
    program: TFLiteProgram, graph: int, keys: Mapping[tuple[int, int], VariableKey]
) -> tuple[VariableKey, ...]:
    """Return the variables possibly changed by a subgraph, including called subgraphs."""
    assigned: dict[VariableKey, None] = {}
    for at in _reachable_subgraphs(program, graph):
        for operator in program.subgraphs[at].operators:
            if operator.name == ASSIGN_OPERATOR:
                assigned[keys[at, operator.inputs[0]]] = None
            elif operator.name not in (HANDLE_OPERATOR, READ_OPERATOR):
                assigned.update((key, None) for i in operator.inputs if (key := variable_key_of(program, at, i, keys)))
    return tuple(assigned)


def variable_key_of(
    program: TFLiteProgram, graph: int, index: int, keys: Mapping[tuple[int, int], VariableKey]
) -> VariableKey | None:
    """Return the key of a variable tensor; None for any other tensor."""
    known = index >= 0 and program.subgraphs[graph].tensors[index].is_variable
    return keys.get((graph, index)) if known else None


def _reachable_subgraphs(program: TFLiteProgram, graph: int) -> Iterator[int]:
    """Yield the subgraph and all subgraphs reachable by calls."""
    todo, seen = [graph], {graph}
    while todo:
        at = todo.pop()
        yield at
        for operator in program.subgraphs[at].operators:
            for option in SUBGRAPH_OPTIONS.get(operator.name, ()):
                called = operator.options.get(option, -1)
                if 0 <= called < len(program.subgraphs) and called not in seen:
                    seen.add(called)
                    todo.append(called)
