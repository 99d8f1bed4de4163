"""Conversion of ONNX Loop to a `While` node.

The body's first input is the iteration counter. The loop continues while the counter is below the trip count, if any,
and while the body's condition holds, if the condition can become false. In the latter case the condition is an extra
loop-carried value, and no output reads the final condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sublet.frontends.onnx.graph_conversion import (
    BOOL_SCALAR,
    COUNT_SCALAR,
    GraphConversion,
    GraphConverter,
    as_scalar,
    graph_attribute,
    integer_constant,
    node_error,
    results_of,
    true_constant,
)
from sublet.frontends.onnx.import_state import ImportState, KnownValue, Scope
from sublet.frontends.onnx.loop_invariants import (
    CarryGuess,
    ConvertedBody,
    RowStacking,
    SettledLoop,
    add_while,
    find_invariants,
)
from sublet.frontends.onnx.types import TensorType, read_type

if TYPE_CHECKING:
    import onnx

UNBOUNDED_TRIP_COUNT = (1 << 63) - 1
"""The trip count written by exporters for a loop ended only by the condition."""


@dataclass(frozen=True)
class _LoopBody:
    """The body of one Loop, converted repeatedly under guesses; the first carry is the condition."""

    frame: GraphConversion
    name: str
    graph: onnx.GraphProto
    convert: GraphConverter
    limit: KnownValue | None

    def convert_under(self, carries: Sequence[CarryGuess]) -> ConvertedBody:
        """Convert the body under the guesses `carries`."""
        program, names = self.frame.program, [value.name for value in self.graph.input]
        scope = self.frame.scope.new_child()
        counter = program.fresh(names[0] or f"{self.name}.counter", COUNT_SCALAR)
        before = GraphConversion(program, scope, {})
        scope[names[0]] = self._counter_as_declared(before, counter)
        parameters = tuple(
            carry.body_value(program, name or f"{self.name}.carry", self.name)
            for carry, name in zip(carries, names[1:], strict=True)
        )
        scope.update(zip(names[1:], parameters, strict=True))
        with program.in_conditional_code(not self._has_first_iteration(carries[0])):
            inner = self.convert(program, self.graph, scope)
        results = results_of(program, self.graph, scope)
        updates = (as_scalar(inner, results[0], BOOL_SCALAR, f"{self.name}.goon"), *results[1 : len(carries)])
        return ConvertedBody(counter, parameters, (), updates, results[len(carries) :], (*before.nodes, *inner.nodes))

    def _has_first_iteration(self, goon: CarryGuess) -> bool:
        """True if the loop certainly has a first iteration."""
        literal = (UNBOUNDED_TRIP_COUNT,) if self.limit is None else self.limit.value.literal
        return goon.init.value.literal == (True,) and literal is not None and literal[0] > 0

    def _counter_as_declared(self, before: GraphConversion, counter: KnownValue) -> KnownValue:
        """Return the counter in the shape declared by the body: a scalar, or a tensor of one element."""
        declared = read_type(self.graph.input[0].type)
        if not isinstance(declared, TensorType) or declared.dims is None or len(declared.dims) != 1:
            return counter
        shape = integer_constant(before.program, f"{self.name}.one", 1)
        return before.emit("onnx.Reshape", f"{counter.value.name}.1d", (counter, shape), TensorType(7, (1,)))


def convert_loop(frame: GraphConversion, node: onnx.NodeProto, name: str, convert: GraphConverter) -> None:
    """Convert the Loop node and add the `While` to `frame`. Raises ModelError for a malformed Loop."""
    graph, carried = graph_attribute(frame, node, "body"), len(node.input) - 2
    inits = [frame.lookup(text) for text in node.input[2:]]
    rows = len(graph.output) - 1 - carried
    if carried < 0 or None in inits or rows < 0 or len(graph.input) != 2 + carried:
        what = f"has {len(node.input)} inputs; its body has {len(graph.input)} inputs and {len(graph.output)} outputs"
        raise node_error(frame, node, what)
    if len(node.output) > carried + rows:
        raise node_error(frame, node, f"has {len(node.output)} outputs; its body returns {carried + rows}")
    limit = frame.lookup(node.input[0])
    limit = limit and as_scalar(frame, limit, COUNT_SCALAR, f"{name}.trip")
    start = frame.lookup(node.input[1]) or true_constant(frame.program, f"{name}.start")
    start = as_scalar(frame, start, BOOL_SCALAR, f"{name}.start")
    body = _LoopBody(frame, name, graph, convert, limit)
    guess = [CarryGuess.strongest(known) for known in (start, *inits) if known is not None]
    carries, final = find_invariants(frame.program, guess, body.convert_under)
    prefix, condition = _continuation_condition(frame.program, name, limit, carries[0], final)
    names = [*node.output, *[""] * (carried + rows - len(node.output))]
    stacking = RowStacking((0,) * rows, (False,) * rows, _loop_trip_count(limit, carries[0]))
    loop = SettledLoop(node, name, carries, final, stacking, tuple(prefix.nodes), condition.value)
    add_while(frame, loop, ["", *names[:carried]], names[carried:])


def _continuation_condition(
    program: ImportState, name: str, limit: KnownValue | None, goon: CarryGuess, final: ConvertedBody
) -> tuple[GraphConversion, KnownValue]:
    """Return the nodes evaluated before each iteration, and the continuation condition."""
    prefix = GraphConversion(program, Scope(), {})
    if goon.constant and not _starts_true(goon):
        return prefix, goon.init
    if limit is None or limit.value.literal == (UNBOUNDED_TRIP_COUNT,):
        return prefix, goon.init if goon.constant else final.parameters[0]
    below = prefix.emit("onnx.Less", f"{name}.below", (final.counter, limit), BOOL_SCALAR)
    if goon.constant:
        return prefix, below
    return prefix, prefix.emit("onnx.And", f"{name}.check", (below, final.parameters[0]), BOOL_SCALAR)


def _starts_true(goon: CarryGuess) -> bool:
    """True if the condition starts as the constant true."""
    return goon.init.value.literal == (True,)


def _loop_trip_count(limit: KnownValue | None, goon: CarryGuess) -> int | None:
    """Return the trip count, None if unknown before the run."""
    if not goon.constant:
        return None
    if not _starts_true(goon):
        return 0
    literal = limit.value.literal if limit is not None else None
    return None if literal is None or literal == (UNBOUNDED_TRIP_COUNT,) else max(int(literal[0]), 0)
