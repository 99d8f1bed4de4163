"""A recorded call as one graph: steps as nodes, with a suspension point at every observed value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.base.names import NameGenerator
from sublet.dynamic.call_trie import APPLY, DETACH, GRADIENTS, OBSERVE, UPDATE, CallStep, ExternalTensor, NumberOperand
from sublet.dynamic.control_flow_commands import ControlFlowCommand, node_of_command
from sublet.dynamic.tensor import Parameter
from sublet.ir.dataflow import producing_nodes, rename_values_in_node, required_values, results
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.model import Model
from sublet.ops.emitter import Emitter, LiteralPool
from sublet.ops.nn.command import spec_of
from sublet.ops.op import SUSPEND as CUT_OP
from sublet.ops.verify import verify
from sublet.passes.autodiff import backward, with_zeros
from sublet.passes.pass_pipeline import run_passes, simplify
from sublet.passes.reordering import with_lower_peak
from sublet.training.step import finish_step


@dataclass(frozen=True)
class Trace:
    """The graph of a recorded call, with the meaning of its values in the call.

    model       the graph, in the order of the plan
    externals   the inputs read by the graph, by slot
    kept        for each suspension point the values saved at the point, by slot
    left        the outputs, by slot
    parameters  the parameters by value name
    closed      for each suspension point: True if every value read later was saved at the point
    """

    model: Model
    externals: Mapping[int, Value]
    kept: tuple[Mapping[int, Value], ...]
    left: Mapping[int, Value]
    parameters: Mapping[str, Parameter]
    closed: tuple[bool, ...]


def trace_call(path: Sequence[CallStep]) -> Trace:
    """Return the trace of a call with the steps `path`."""
    return _TraceWriter(path).trace()


class _TraceWriter:
    """The construction of the graph of a call, step by step."""

    def __init__(self, path: Sequence[CallStep]) -> None:
        self.names = NameGenerator()
        self.emit = Emitter(self.names, LiteralPool(self.names))
        self.values: dict[int, Value] = {}
        self.inputs: list[Value] = []
        self.parameters: dict[str, tuple[Parameter, Value]] = {}
        self.alias: dict[Value, Value] = {}
        self.differentiable: list[Node] = []
        self.updates: dict[str, Value] = {}
        self.kept: list[list[Value]] = []
        self.slots: list[Sequence[int]] = []
        for step in path:
            self._declare_externals(step)
        for step in path:
            self._write(step)
        self.left = path[-1].kept

    def _declare_externals(self, step: CallStep) -> None:
        """Declare the operands from outside of a step as inputs, parameters or constants."""
        for entry in step.external_operands:
            if isinstance(entry, NumberOperand):
                if entry.varies:
                    self._input(entry)
                else:
                    elements = (entry.element(),)
                    self.values[entry.slot] = self.emit.literals.constant_of(elements, entry.kind.spec)
            elif entry.parameter is None:
                self._input(entry)
            else:
                self.values[entry.slot] = self._parameter(entry.parameter)
        if step.target is not None:
            self._parameter(step.target)

    def _input(self, entry: ExternalTensor | NumberOperand) -> None:
        """Declare an input."""
        value = Value(self.names.fresh(f"input{entry.slot}"), entry.kind.spec)
        self.values[entry.slot] = value
        self.inputs.append(value)

    def _parameter(self, parameter: Parameter) -> Value:
        """Return the value of a parameter, declared at the first use."""
        declared = self.parameters.get(parameter.name)
        if declared is None:
            declared = self.parameters[parameter.name] = parameter, self._new_parameter_value(parameter)
        return declared[1]

    def _new_parameter_value(self, parameter: Parameter) -> Value:
        """Return a new value of a parameter."""
        return Value(self.names.fresh(parameter.name), parameter._kind.spec)

    def _write(self, step: CallStep) -> None:
        """Append the nodes of a step."""
        emit, before = self.emit, len(self.emit.nodes)
        earlier = {node.name for node in emit.nodes} if step.what is GRADIENTS else set()
        emit.source, emit.scope = step.source, step.scope
        operands = [None if slot is None else self.values[slot] for slot in step.operand_slots]
        if step.what is APPLY and isinstance(step.command, ControlFlowCommand):
            results = [Value(self.names.fresh(f"{step.scope}{step.op}"), kind.spec) for kind in step.kinds]
            emit.nodes.append(node_of_command(emit, step.command, operands, results, step.source))
        elif step.what is APPLY:
            results = list(emit.all_outputs(step.op, *operands, **dict(step.attrs)))
        elif step.what is GRADIENTS:
            results = self._gradients(operands)
        elif step.what in (UPDATE, DETACH):
            (source,) = operands
            assert source is not None
            results = [Value(self.names.fresh("detached"), source.spec)]
            self.alias[results[0]] = self.alias.get(source, source)
            if step.target is not None:
                self.updates[step.target.name] = self.alias[results[0]]
        else:
            results = []
            if step.what is OBSERVE:
                self.slots.append(step.kept)
                self.kept.append([self._root(self.values[slot]) for slot in step.kept])
        self.values.update(zip(step.result_slots, results, strict=True))
        if step.recording:  # autodiff may insert nodes before existing nodes
            new = emit.nodes[before:] if not earlier else [node for node in emit.nodes if node.name not in earlier]
            self.differentiable += new

    def _gradients(self, operands: Sequence[Value | None]) -> list[Value]:
        """Append the nodes of gradients and return the gradients."""
        of, *wrt, seed = operands
        assert of is not None
        values = [value for value in wrt if value is not None]
        start = seed or self.emit.full(1, spec_of(of))
        by_autodiff = backward(self.emit, tuple(self.differentiable), {of: start}, values)
        return with_zeros(self.emit, by_autodiff, values)

    def _root(self, value: Value) -> Value:
        """Return the value behind a detached or updated value."""
        return self.alias.get(value, value)

    def trace(self) -> Trace:
        """Return the trace of all steps."""
        nodes = [rename_values_in_node(node, self.alias) for node in self.emit.nodes]
        wanted = list(dict.fromkeys([*(self._root(self.values[slot]) for slot in self.left)]))
        updates = [(self.parameters[name][1], source) for name, source in self.updates.items()]
        sources = _as_distinct_results([source for _, source in updates], nodes, self.names, set())
        given = {*self.inputs, *(value for _, value in self.parameters.values()), *self.emit.literals.added}
        outputs = _as_distinct_results(wanted, nodes, self.names, given)
        looked = list(dict.fromkeys(v for kept in self.kept for v in kept if v not in given))
        graph = Graph(
            "call",
            tuple(self.inputs),
            tuple(nodes),
            (*outputs, *looked),
            (*(value for _, value in self.parameters.values()), *self.emit.literals.added),
            updates=tuple((target, source) for (target, _), source in zip(updates, sources, strict=True)),
        )
        verify(graph)
        if not self.kept:
            model = finish_step(Model(graph))
            return self._finish_trace(model.graph, dict(zip(wanted, model.graph.outputs, strict=True)), {}, ())
        graph = run_passes(simplify(graph, order=False), ["late-constants", "recall"])
        count = len(outputs)
        later = dict(zip(looked, graph.outputs[count:], strict=True))
        kept = [[later.get(value, value) for value in several] for several in self.kept]
        cut, closed = with_suspensions(replace(graph, outputs=graph.outputs[:count]), kept)
        return self._finish_trace(cut, dict(zip(wanted, graph.outputs, strict=False)), later, closed)

    def _finish_trace(
        self, graph: Graph, left: Mapping[Value, Value], later: Mapping[Value, Value], closed: tuple[bool, ...]
    ) -> Trace:
        """Return the trace for a finished graph.

        `left` and `later` map values to the graph's values after the passes: results, and values saved at suspension
        points.
        """
        names = tuple(value.name for value in graph.inputs), tuple(value.name for value in graph.outputs)
        nodes = {value for node in graph.nodes for value in required_values(node)}
        # unread inputs are left out: the plan reuses their bytes from the start
        read = nodes.union(results(graph)).intersection(graph.inputs)
        roots = {slot: self._root(value) for slot, value in self.values.items()}
        return Trace(
            Model(graph, inputs=names[0], outputs=tuple(f"{i}:{name}" for i, name in enumerate(names[1]))),
            {slot: value for slot, value in roots.items() if value in read},
            tuple({slot: later.get(roots[slot], roots[slot]) for slot in slots} for slots in self.slots),
            {slot: left[roots[slot]] for slot in self.left},
            {value.name: one for one, value in self.parameters.values()},
            closed,
        )


def _as_distinct_results(
    values: Sequence[Value], nodes: list[Node], names: NameGenerator, given: set[Value]
) -> list[Value]:
    """Return distinct computed values: values in `given`, not computed, or repeated are copied by new nodes."""
    computed = {value for node in nodes for value in node.defs}
    distinct: list[Value] = []
    for value in values:
        if value in given or value not in computed or value in distinct:
            copy = Value(names.fresh("copy"), value.spec)
            nodes.append(Node(copy.name, "nn.copy", (value,), (copy,)))
            value = copy
        distinct.append(value)
    return distinct


def with_suspensions(graph: Graph, kept: Sequence[Sequence[Value]]) -> tuple[Graph, tuple[bool, ...]]:
    """Return the graph with a suspension point after each list of values in `kept`, and the flags `Trace.closed`.

    A suspension point saves the listed values, and the parameters to be overwritten by updates. Each piece is ordered
    for less memory.
    """
    maker = producing_nodes(graph.nodes)
    waiting = {node.name: node for node in graph.nodes}
    done: list[Node] = []
    closed: list[bool] = []
    for number, values in enumerate(kept):
        needed = _ancestors(values, maker)
        piece = [node for name, node in waiting.items() if name in needed]
        for node in piece:
            del waiting[node.name]
        later = {v for node in waiting.values() for v in required_values(node)} | {
            *graph.outputs,
            *(s for _, s in graph.updates),
        }
        after = {v for several in kept[number + 1 :] for v in several}
        done += _order_piece(graph, piece, [*values, *later, *after], ())
        computed = {value for node in done for value in node.defs}
        closed.append(not (later | after) & computed - {*values})
        uses = dict.fromkeys([*values, *graph.updated_values])
        done.append(Node(f"cut{number}", CUT_OP, tuple(v for v in uses if v.literal is None), ()))
    done += _order_piece(graph, list(waiting.values()), graph.outputs, graph.updates)
    cut_graph = replace(graph, nodes=tuple(done))
    verify(cut_graph)
    return cut_graph, tuple(closed)


def _ancestors(values: Sequence[Value], maker: Mapping[Value, Node]) -> set[str]:
    """Return the names of the nodes needed to compute values."""
    names: set[str] = set()
    waiting = list(values)
    while waiting:
        node = maker.get(waiting.pop())
        if node is not None and node.name not in names:
            names.add(node.name)
            waiting += required_values(node)
    return names


def _order_piece(
    graph: Graph, piece: Sequence[Node], piece_results: Sequence[Value], updates: Sequence[tuple[Value, Value]]
) -> list[Node]:
    """Return the nodes of a piece in an order with less memory."""
    computed = {value for node in piece for value in node.defs}
    weights = set(graph.weights)
    read = dict.fromkeys(value for node in piece for value in required_values(node) if value not in computed)
    read.update(dict.fromkeys(value for pair in updates for value in pair if value not in computed))
    inputs = tuple(value for value in read if value not in weights)
    outputs = tuple(value for value in dict.fromkeys(piece_results) if value in computed)
    used = tuple(value for value in graph.weights if value in read)
    return list(with_lower_peak(Graph("piece", inputs, tuple(piece), outputs, used, tuple(updates))).nodes)
