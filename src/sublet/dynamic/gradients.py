"""Gradients of what was computed at once: the record becomes a graph, and what its gradient adds is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sublet.base.errors import GradientError
from sublet.dynamic.eager import Eager
from sublet.dynamic.programs import applied_to, written
from sublet.dynamic.record import Applied, Result, Symbol
from sublet.dynamic.storage import Storage
from sublet.ir.graph import Node, Value
from sublet.ir.walk import needs
from sublet.nn.lines import at_line, line_of, user_line
from sublet.ops.emitter import Emitter, Literals, Names
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff import backward, with_zeros


@dataclass(frozen=True)
class Held:
    """A value and its elements."""

    symbol: Symbol
    storage: Storage


def gradients(eager: Eager, of: Held, wrt: Sequence[Held], seed: Held | None, since: int | None) -> list[Held]:
    """The gradients of one value by others, by what was recorded after the application number `since` of a call.

    Raises GradientError as the static `sublet.gradients` does.
    """
    trail = _Trail(of.symbol, since or 0)
    unknown = since is None and any(held.symbol not in trail for held in wrt)
    if unknown and any(symbol.ended for symbol in trail):
        what = "depends on what a remembered call gave, and the record of a call ends with it"
        raise GradientError(at_line(f"what is differentiated {what}: ask for gradients inside the function"))
    values = [trail.value(held.symbol) for held in wrt]
    target = trail.value(of.symbol)
    emit = trail.emit
    before = {id(node): node for node in emit.nodes}  # held: of what is gone, others get the identity
    emit.source = user_line()
    there = {trail.value(held.symbol): held for held in (*wrt, of, *([seed] if seed else ()))}
    start = trail.value(seed.symbol) if seed else emit.filled(1, spec_of(target))
    try:
        found = backward(emit, tuple(emit.nodes), {target: start}, values)
    except GradientError as error:
        raise GradientError(at_line(str(error))) from None
    made = with_zeros(emit, found, values)
    given = set(there)
    for i, value in enumerate(made):  # each is a value of its own
        if value in given or value.literal is not None or value in made[:i]:
            made[i] = emit("nn.copy", value)
    kept = {**trail.kept(), **there}
    return _computed(eager, _to_do(emit.nodes, before, kept), kept, made)


def _to_do(nodes: Sequence[Node], before: Mapping[int, Node], there: Mapping[Value, Held]) -> list[Node]:
    """The nodes to compute: the new ones, loops and branches that give more than before, and such whose results nobody
    kept."""
    wanted, found = set[Value](), list[Node]()
    for node in reversed(nodes):
        again = node.subgraphs and any(value in wanted and value not in there for value in node.defs)
        if id(node) not in before or again:
            wanted.update(needs(node))
            found.append(node)
    return found[::-1]


class _Trail:
    """The part of the record that leads to a value, as nodes."""

    def __init__(self, of: Symbol, since: int) -> None:
        names = Names()
        self.emit = Emitter(names, Literals(names))
        self._values: dict[Symbol, Value] = {of: Value(names.fresh("v"), of.kind.spec)}
        self._operands: list[tuple[tuple[Value | None, ...], tuple[Value, ...]]] = []
        self._applied = sorted(_leading_to(of, since), key=lambda applied: applied.number)
        for applied in self._applied:
            made = tuple(self.value(symbol) for symbol in applied.results())
            given = tuple(None if symbol is None else self.value(symbol) for symbol in applied.inputs)
            self._operands.append((given, made))
            self.emit.nodes.append(written(self.emit, applied.command, given, made, line_of(applied.line)))

    def __contains__(self, symbol: Symbol) -> bool:
        return symbol in self._values

    def __iter__(self) -> Iterator[Symbol]:
        return iter(self._values)

    def value(self, symbol: Symbol) -> Value:
        """The value that stands for a symbol."""
        found = self._values.get(symbol)
        if found is None:
            found = self._values[symbol] = Value(self.emit.names.fresh("v"), symbol.kind.spec)
        return found

    def kept(self) -> dict[Value, Held]:
        """The elements that the record kept, and whose they are."""
        there: dict[Value, Held] = {}
        symbols = {value: symbol for symbol, value in self._values.items()}
        for applied, (given, made) in zip(self._applied, self._operands, strict=True):
            reads, gives = applied.command.keeps
            values = [*(given[i] for i in reads), *(made[i] for i in gives)]
            there.update(
                (value, Held(symbols[value], storage))
                for value, storage in zip(values, applied.kept, strict=True)
                if value is not None and storage is not None
            )
        return there


def _leading_to(of: Symbol, since: int) -> list[Applied | Result]:
    """The applications that a value was made by, directly or not, after the one numbered `since`."""
    found: dict[int, Applied | Result] = {}
    waiting = [of]
    while waiting:
        applied = waiting.pop().maker
        if applied is not None and applied.number > since and applied.number not in found:
            found[applied.number] = applied
            waiting += [symbol for symbol in applied.inputs if symbol is not None]
    return list(found.values())


def _computed(eager: Eager, nodes: Sequence[Node], there: Mapping[Value, Held], wanted: Sequence[Value]) -> list[Held]:
    """What nodes compute, one after another; what nobody reads any more is let go."""
    held = dict(there)
    last = {value: node.name for node in nodes for value in needs(node)}
    for node in nodes:
        operands, attrs = applied_to(node)
        given = [None if value is None else _operand(eager, value, held) for value in operands]
        used = eager.use(node.op, [None if one is None else one.symbol.kind for one in given], attrs)
        storages = [None if one is None else one.storage for one in given]
        results = eager.compute(used, storages)
        symbols = [Symbol(kind, False) for kind in used.outputs]
        if eager.recording and used.recorded:
            eager.record(used, [None if one is None else one.symbol for one in given], symbols, storages, results)
        held.update(
            (value, Held(symbol, storage))
            for value, symbol, storage in zip(node.defs, symbols, results, strict=True)
            if value in last or value in wanted
        )
        for value in needs(node):
            if last[value] == node.name and value not in wanted:
                held.pop(value, None)
    return [held[value] for value in wanted]


def _operand(eager: Eager, value: Value, held: dict[Value, Held]) -> Held:
    found = held.get(value)
    if found is None:
        assert value.literal is not None, f"the record kept nothing of {value}"
        kind, storage = eager.literal(value)
        found = held[value] = Held(Symbol(kind, False), storage)
    return found
