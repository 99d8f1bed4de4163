"""Gradients of values computed at once: the record becomes a graph, and the nodes added by autodiff are computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sublet.base.errors import GradientError
from sublet.base.names import NameGenerator
from sublet.dynamic.control_flow_commands import node_of_command, operands_and_attributes
from sublet.dynamic.eager_executor import EagerExecutor
from sublet.dynamic.gradient_record import RecordedApplication, SingleResult, Symbol
from sublet.dynamic.tensor_storage import TensorStorage
from sublet.ir.dataflow import required_values
from sublet.ir.graph import Node, Value
from sublet.nn.source_location import at_line, format_position, user_line
from sublet.ops.emitter import Emitter, LiteralPool
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff import backward, with_zeros


@dataclass(frozen=True)
class RecordedValue:
    """A value of the record and its storage."""

    symbol: Symbol
    storage: TensorStorage


def gradients(
    eager: EagerExecutor, of: RecordedValue, wrt: Sequence[RecordedValue], seed: RecordedValue | None, since: int | None
) -> list[RecordedValue]:
    """Return the gradients of `of` with respect to each value in `wrt`.

    seed   the gradient of `of` itself, 1 everywhere by default
    since  differentiate only commands recorded after this application number, the start of a call; None outside of
           calls

    Raises GradientError under the conditions of `sublet.gradients`, and for a value computed from results of an ended
    call.
    """
    trail = _RecordSlice(of.symbol, since or 0)
    unknown = since is None and any(held.symbol not in trail for held in wrt)
    if unknown and any(symbol.ended for symbol in trail):
        why = "depends on a result of a jit function, whose record ended with the call"
        raise GradientError(at_line(f"the differentiated tensor {why}: compute the gradients inside the function"))
    values = [trail.value(held.symbol) for held in wrt]
    target = trail.value(of.symbol)
    emit = trail.emit
    before = {id(node): node for node in emit.nodes}  # keeps the nodes alive: a freed node's id may be reused
    emit.source = user_line()
    given_values = {trail.value(held.symbol): held for held in (*wrt, of, *([seed] if seed else ()))}
    start = trail.value(seed.symbol) if seed else emit.full(1, spec_of(target))
    try:
        by_autodiff = backward(emit, tuple(emit.nodes), {target: start}, values)
    except GradientError as error:
        raise GradientError(at_line(str(error))) from None
    results = with_zeros(emit, by_autodiff, values)
    given = set(given_values)
    for i, value in enumerate(results):  # every gradient is a distinct value
        if value in given or value.literal is not None or value in results[:i]:
            results[i] = emit("nn.copy", value)
    saved = {**trail.saved_elements(), **given_values}
    return _compute_nodes(eager, _nodes_to_compute(emit.nodes, before, saved), saved, results)


def _nodes_to_compute(
    nodes: Sequence[Node], before: Mapping[int, Node], there: Mapping[Value, RecordedValue]
) -> list[Node]:
    """Return the nodes to compute.

    The nodes are the nodes not in `before`, and loops and branches with a needed result not saved in the record.
    """
    wanted, to_compute = set[Value](), list[Node]()
    for node in reversed(nodes):
        again = node.subgraphs and any(value in wanted and value not in there for value in node.defs)
        if id(node) not in before or again:
            wanted.update(required_values(node))
            to_compute.append(node)
    return to_compute[::-1]


class _RecordSlice:
    """The part of the record leading to a value, as nodes of a graph."""

    def __init__(self, of: Symbol, since: int) -> None:
        names = NameGenerator()
        self.emit = Emitter(names, LiteralPool(names))
        self._values: dict[Symbol, Value] = {of: Value(names.fresh("v"), of.kind.spec)}
        self._operands: list[tuple[tuple[Value | None, ...], tuple[Value, ...]]] = []
        self._applied = sorted(_applications_leading_to(of, since), key=lambda applied: applied.number)
        for applied in self._applied:
            results = tuple(self.value(symbol) for symbol in applied.results())
            operands = tuple(None if symbol is None else self.value(symbol) for symbol in applied.inputs)
            self._operands.append((operands, results))
            self.emit.nodes.append(
                node_of_command(self.emit, applied.command, operands, results, format_position(applied.line))
            )

    def __contains__(self, symbol: Symbol) -> bool:
        return symbol in self._values

    def __iter__(self) -> Iterator[Symbol]:
        return iter(self._values)

    def value(self, symbol: Symbol) -> Value:
        """Return the graph value of a symbol."""
        found = self._values.get(symbol)
        if found is None:
            found = self._values[symbol] = Value(self.emit.names.fresh("v"), symbol.kind.spec)
        return found

    def saved_elements(self) -> dict[Value, RecordedValue]:
        """Return the elements saved in the record by graph value."""
        saved: dict[Value, RecordedValue] = {}
        symbols = {value: symbol for symbol, value in self._values.items()}
        for applied, (given, made) in zip(self._applied, self._operands, strict=True):
            reads, gives = applied.command.keeps
            values = [*(given[i] for i in reads), *(made[i] for i in gives)]
            saved.update(
                (value, RecordedValue(symbols[value], storage))
                for value, storage in zip(values, applied.kept, strict=True)
                if value is not None and storage is not None
            )
        return saved


def _applications_leading_to(of: Symbol, since: int) -> list[RecordedApplication | SingleResult]:
    """Return the applications numbered above `since` with an influence on a value."""
    by_number: dict[int, RecordedApplication | SingleResult] = {}
    waiting = [of]
    while waiting:
        applied = waiting.pop().maker
        if applied is not None and applied.number > since and applied.number not in by_number:
            by_number[applied.number] = applied
            waiting += [symbol for symbol in applied.inputs if symbol is not None]
    return list(by_number.values())


def _compute_nodes(
    eager: EagerExecutor, nodes: Sequence[Node], there: Mapping[Value, RecordedValue], wanted: Sequence[Value]
) -> list[RecordedValue]:
    """Compute the nodes in order and return the `wanted` values; every other value is freed after its last use."""
    held = dict(there)
    last = {value: node.name for node in nodes for value in required_values(node)}
    for node in nodes:
        operands, attrs = operands_and_attributes(node)
        given = [None if value is None else _operand_of(eager, value, held) for value in operands]
        command = eager.command_for_kinds(node.op, [None if one is None else one.symbol.kind for one in given], attrs)
        storages = [None if one is None else one.storage for one in given]
        results = eager.compute(command, storages)
        symbols = [Symbol(kind, False) for kind in command.outputs]
        if eager.recording and command.recorded:
            eager.record(command, [None if one is None else one.symbol for one in given], symbols, storages, results)
        held.update(
            (value, RecordedValue(symbol, storage))
            for value, symbol, storage in zip(node.defs, symbols, results, strict=True)
            if value in last or value in wanted
        )
        for value in required_values(node):
            if last[value] == node.name and value not in wanted:
                held.pop(value, None)
    return [held[value] for value in wanted]


def _operand_of(eager: EagerExecutor, value: Value, held: dict[Value, RecordedValue]) -> RecordedValue:
    """Return an operand of a node; a literal is stored first."""
    known = held.get(value)
    if known is None:
        assert value.literal is not None, f"the record kept nothing of {value}"
        kind, storage = eager.literal(value)
        known = held[value] = RecordedValue(Symbol(kind, False), storage)
    return known
