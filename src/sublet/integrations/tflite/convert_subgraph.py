"""Conversion of subgraphs to nodes: tensors become values, and called subgraphs are inlined into control-flow nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sublet.base.errors import ModelError
from sublet.base.tensor import Spec, TensorSpec
from sublet.integrations.tflite.conversion_state import (
    COUNT,
    MAX_DEPTH,
    PREFIX,
    TFLiteConversion,
    VariableKey,
    VariableState,
)
from sublet.integrations.tflite.program import CUSTOM_PREFIX, Operator, TFLiteProgram
from sublet.ir.graph import Attr, CaseOf, Graph, Node, Value, While

# Persistent variables of a program: resources, named by a subgraph and then read or assigned, and variable tensors.

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
    written = {index for operator in subgraph.operators for index in operator.outputs}
    for position, operator in enumerate(subgraph.operators):
        nodes += _scratch_nodes(conversion, graph, operator, values, written)
        given = [_value_read(conversion, graph, index, values, variables, position) for index in operator.inputs]
        results = _new_results(conversion, graph, operator, values, position)
        nodes += _convert_operator(conversion, graph, position, operator, (given, results), variables, depth)
        values.update((index, value) for index, value in zip(operator.outputs, results, strict=True) if value)
    outputs = [_value_read(conversion, graph, index, values, variables, None) for index in subgraph.outputs]
    return nodes, tuple(value for value in outputs if value is not None)


def _scratch_nodes(
    conversion: TFLiteConversion, graph: int, operator: Operator, values: Values, written: Collection[int]
) -> list[Node]:
    """Return nodes without computation for the scratch tensors first read by a custom operator; add their values.

    The compiler of an NPU passes working memory to the custom operator as a tensor that no operator writes. The tensor
    has no content before the operator, and is alive until the last operator that reads it.
    """
    if not operator.name.startswith(CUSTOM_PREFIX):
        return []
    tensors, nodes = conversion.program.subgraphs[graph].tensors, list[Node]()
    for index in dict.fromkeys(operator.inputs):
        tensor = tensors[index] if index >= 0 else None
        if tensor is None or index in values or index in written or tensor.is_variable:
            continue
        if isinstance(tensor.spec, TensorSpec) and conversion.constant(graph, index) is None:
            values[index] = conversion.new_value(graph, index)
            attrs: dict[str, Attr] = {"shape": tensor.spec.shape, "dtype": tensor.spec.dtype.text}
            name = conversion.names.fresh(f"{tensor.name or index}.scratch")
            nodes.append(Node(name, "nn.undefined", (), (values[index],), attrs))
    return nodes


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
        inputs, outputs = ([value for value in values if value] for values in operands)
        return add(SubgraphCall(conversion, graph, position, inputs, outputs, variables, depth))
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


# Conversion of IF, WHILE and CALL_ONCE: called subgraphs become arms of a branch, or check and body of a loop.


@dataclass(frozen=True)
class SubgraphCall:
    """An operator that calls subgraphs: operator `position` of subgraph `graph`, with its operands.

    variables  the state of the variables before the call, set to the state after the call
    depth      the number of calls around the operator
    """

    conversion: TFLiteConversion
    graph: int
    position: int
    inputs: Sequence[Value]
    results: Sequence[Value]
    variables: VariableState
    depth: int

    @property
    def operator(self) -> Operator:
        """The operator."""
        return self.conversion.program.subgraphs[self.graph].operators[self.position]

    def error(self, what: str) -> ModelError:
        """Return the error for a malformed call."""
        return self.conversion.error(self.graph, what, self.position)

    def fresh(self, part: str) -> str:
        """Return an unused name for a part of the operator's node."""
        return self.conversion.names.fresh(f"{self.operator.name}.{self.position}.{part}")

    def finish(self, node: Node) -> Node:
        """Return the operator's node with name and source location."""
        return self.conversion.finish_node(self.graph, self.position, self.operator, node)

    def called_subgraphs(self) -> list[int]:
        """Return the subgraphs called by the operator. Raises ModelError for subgraph 0 or a missing subgraph."""
        called = [self.operator.options.get(option, -1) for option in SUBGRAPH_OPTIONS[self.operator.name]]
        for number in called:
            if not 0 < number < len(self.conversion.program.subgraphs):
                raise self.error(f"{self.operator.name} cannot call subgraph {number}")
        return called

    def convert(
        self, called: int, inputs: Sequence[Value], variables: VariableState
    ) -> tuple[list[Node], tuple[Value, ...]]:
        """Return the nodes and outputs of a called subgraph; set `variables` to the state after the subgraph."""
        return convert_subgraph(self.conversion, called, inputs, variables, self.depth + 1)


def add_branch(call: SubgraphCall) -> list[Node]:
    """Return the `CaseOf` node of an IF; variables assigned by an arm are additional outputs."""
    if not call.inputs:
        raise call.error("a branch without a condition")
    condition, *inputs = call.inputs
    then, otherwise = call.called_subgraphs()
    arms: list[tuple[list[Node], tuple[Value, ...], VariableState]] = []
    for called in (otherwise, then):
        arm_state = dict(call.variables)
        nodes, outputs = call.convert(called, inputs, arm_state)
        if len(outputs) != len(call.results):
            raise call.error(f"subgraph {called} returns {len(outputs)} outputs, the branch has {len(call.results)}")
        arms.append((nodes, outputs, arm_state))
    return [_case_node(call, condition, arms)]


def _case_node(
    call: SubgraphCall, index: Value, arms: Sequence[tuple[list[Node], tuple[Value, ...], VariableState]]
) -> Node:
    """Return the `CaseOf` node, and set the call's variables to the state after the branch."""
    conversion, variables = call.conversion, call.variables
    touched = dict.fromkeys(key for _, _, arm_state in arms for key in arm_state)
    before = {key: conversion.state_value(key, variables) for key in touched}
    keys = [
        key for key in touched if any(arm_state.get(key, before[key]) is not before[key] for _, _, arm_state in arms)
    ]
    graphs = []
    for nodes, outputs, arm_state in arms:
        final_values = (arm_state.get(key, before[key]) for key in keys)
        graphs.append(Graph(call.fresh("arm"), (), tuple(nodes), (*outputs, *final_values)))
    for key in keys:
        variables[key] = conversion.next_state_value(key)
    outputs = (*call.results, *(variables[key] for key in keys))
    return call.finish(CaseOf("", "case", (index,), outputs, {}, arms=tuple(graphs)))


def add_call_once(call: SubgraphCall) -> list[Node]:
    """Return the `CaseOf` node of a CALL_ONCE, taken in the first run only.

    A persistent bool variable distinguishes later runs. The list is empty for a subgraph without nodes.
    """
    conversion, variables = call.conversion, call.variables
    (called,) = call.called_subgraphs()
    if call.graph != 0:
        raise call.error("CALL_ONCE outside the main subgraph")
    key = ("once", str(call.graph), str(call.position), "initialised")
    arm_state = dict(variables)
    nodes, _ = call.convert(called, (), arm_state)
    if not nodes:
        return []
    index = conversion.initial_state.get(key)
    if index is None:
        index = conversion.initial_state[key] = conversion.flag_value("initialised", None)
        variables[key] = conversion.flag_value("initialised.always", (True,))
    return [_case_node(call, index, [(nodes, (), arm_state), ([], (), dict(variables))])]


def add_loop(call: SubgraphCall) -> list[Node]:
    """Return the `While` node of a WHILE; operands and variables assigned by the body are loop-carried values."""
    conversion, variables, inputs, results = call.conversion, call.variables, call.inputs, call.results
    check, body = call.called_subgraphs()
    if changed_variables(conversion.program, check, conversion.keys):
        raise call.error(f"condition subgraph {check} assigns a variable")
    keys = changed_variables(conversion.program, body, conversion.keys)
    inits = [*inputs, *(conversion.state_value(key, variables) for key in keys)]
    counter = Value(call.fresh("round"), COUNT)
    parameters = [Value(conversion.names.fresh(f"{value.name}.carried"), value.spec) for value in inits]
    body_state = {**variables, **dict(zip(keys, parameters[len(inputs) :], strict=True))}
    conversion.persistent.update(zip(parameters[len(inputs) :], keys, strict=True))
    nodes, conditions = call.convert(check, parameters[: len(inputs)], body_state)
    if len(conditions) != 1:
        raise call.error(f"condition subgraph {check} returns {len(conditions)} outputs; expected one")
    body_nodes, updates = call.convert(body, parameters[: len(inputs)], body_state)
    if not len(updates) == len(inputs) == len(results):
        what = f"the loop has {len(inputs)} inputs and {len(results)} outputs, its body returns {len(updates)}"
        raise call.error(what)
    body_outputs = (*updates, *(body_state[key] for key in keys))
    for key in keys:
        variables[key] = conversion.next_state_value(key)
    finals = (*results, *(variables[key] for key in keys))
    graph = Graph(call.fresh("body"), (counter, *parameters), (*nodes, *body_nodes), body_outputs)
    loop = While(
        "", "while", tuple(inits), finals, {}, body=graph, condition=conditions[0], check=len(nodes),
        carried=len(inits),
    )  # fmt: skip
    return [call.finish(loop)]
