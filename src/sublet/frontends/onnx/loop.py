"""Conversion of ONNX Loop to a `While` node.

The body's first input is the iteration counter. The loop continues while the counter is below the trip count, if any,
and while the body's condition holds, if the condition can become false. In the latter case the condition is an extra
loop-carried value, and no output reads the final condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sublet.frontends.onnx.frame import (
    BOOL_SCALAR,
    COUNT_SCALAR,
    Converter,
    Frame,
    as_scalar,
    fail,
    graph_attribute,
    integers,
    results_of,
    truth,
)
from sublet.frontends.onnx.program import Known, Program, Scope
from sublet.frontends.onnx.rounds import Carry, Loop, Round, Rows, add_while, settle
from sublet.frontends.onnx.types import TensorType, read_type

if TYPE_CHECKING:
    import onnx

FOREVER = (1 << 63) - 1
"""The trip count written by exporters for a loop ended only by the condition."""


@dataclass(frozen=True)
class _Body:
    """The body of one Loop, converted repeatedly under guesses; the first carry is the condition."""

    frame: Frame
    name: str
    graph: onnx.GraphProto
    convert: Converter
    limit: Known | None

    def attempt(self, carries: Sequence[Carry]) -> Round:
        """Convert the body under the guesses `carries`."""
        program, names = self.frame.program, [value.name for value in self.graph.input]
        scope = self.frame.scope.new_child()
        counter = program.fresh(names[0] or f"{self.name}.counter", COUNT_SCALAR)
        before = Frame(program, scope, {})
        scope[names[0]] = self._counter(before, counter)
        parameters = tuple(
            carry.inside(program, name or f"{self.name}.carry", self.name)
            for carry, name in zip(carries, names[1:], strict=True)
        )
        scope.update(zip(names[1:], parameters, strict=True))
        with program.perhaps(not self._runs(carries[0])):
            inner = self.convert(program, self.graph, scope)
        results = results_of(program, self.graph, scope)
        updates = (as_scalar(inner, results[0], BOOL_SCALAR, f"{self.name}.goon"), *results[1 : len(carries)])
        return Round(counter, parameters, (), updates, results[len(carries) :], (*before.nodes, *inner.nodes))

    def _runs(self, goon: Carry) -> bool:
        """True if the loop certainly has a first iteration."""
        literal = (FOREVER,) if self.limit is None else self.limit.value.literal
        return goon.init.value.literal == (True,) and literal is not None and literal[0] > 0

    def _counter(self, before: Frame, counter: Known) -> Known:
        """Return the counter in the shape declared by the body: a scalar, or a tensor of one element."""
        declared = read_type(self.graph.input[0].type)
        if not isinstance(declared, TensorType) or declared.dims is None or len(declared.dims) != 1:
            return counter
        shape = integers(before.program, f"{self.name}.one", 1)
        return before.emit("onnx.Reshape", f"{counter.value.name}.1d", (counter, shape), TensorType(7, (1,)))


def convert_loop(frame: Frame, node: onnx.NodeProto, name: str, convert: Converter) -> None:
    """Convert the Loop node and add the `While` to `frame`. Raises ModelError for a malformed Loop."""
    graph, carried = graph_attribute(frame, node, "body"), len(node.input) - 2
    inits = [frame.read(text) for text in node.input[2:]]
    rows = len(graph.output) - 1 - carried
    if carried < 0 or None in inits or rows < 0 or len(graph.input) != 2 + carried:
        what = f"has {len(node.input)} inputs; its body has {len(graph.input)} inputs and {len(graph.output)} outputs"
        raise fail(frame, node, what)
    if len(node.output) > carried + rows:
        raise fail(frame, node, f"has {len(node.output)} outputs; its body gives {carried + rows}")
    limit = frame.read(node.input[0])
    limit = limit and as_scalar(frame, limit, COUNT_SCALAR, f"{name}.trip")
    start = frame.read(node.input[1]) or truth(frame.program, f"{name}.start")
    start = as_scalar(frame, start, BOOL_SCALAR, f"{name}.start")
    body = _Body(frame, name, graph, convert, limit)
    guess = [Carry.first(known) for known in (start, *inits) if known is not None]
    carries, final = settle(frame.program, guess, body.attempt)
    prefix, condition = _check(frame.program, name, limit, carries[0], final)
    names = [*node.output, *[""] * (carried + rows - len(node.output))]
    stacking = Rows((0,) * rows, (False,) * rows, _trip(limit, carries[0]))
    loop = Loop(node, name, carries, final, stacking, tuple(prefix.nodes), condition.value)
    add_while(frame, loop, ["", *names[:carried]], names[carried:])


def _check(program: Program, name: str, limit: Known | None, goon: Carry, final: Round) -> tuple[Frame, Known]:
    """Return the nodes evaluated before each iteration, and the continuation condition."""
    prefix = Frame(program, Scope(), {})
    if goon.constant and not _true(goon):
        return prefix, goon.init
    if limit is None or limit.value.literal == (FOREVER,):
        return prefix, goon.init if goon.constant else final.parameters[0]
    below = prefix.emit("onnx.Less", f"{name}.below", (final.counter, limit), BOOL_SCALAR)
    if goon.constant:
        return prefix, below
    return prefix, prefix.emit("onnx.And", f"{name}.check", (below, final.parameters[0]), BOOL_SCALAR)


def _true(goon: Carry) -> bool:
    """True if the condition starts as the constant true."""
    return goon.init.value.literal == (True,)


def _trip(limit: Known | None, goon: Carry) -> int | None:
    """Return the trip count, None if unknown before the run."""
    if not goon.constant:
        return None
    if not _true(goon):
        return 0
    literal = limit.value.literal if limit is not None else None
    return None if literal is None or literal == (FOREVER,) else max(int(literal[0]), 0)
