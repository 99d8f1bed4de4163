"""Commands that are computed at once: the kernel and the specs for each use of one, looked up once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sublet.base.errors import GradientError, RunError
from sublet.base.tensor import DType, TensorSpec
from sublet.dynamic.storage import Kinds, Pool, Storage
from sublet.ir.graph import Node, Value
from sublet.ops.emitter import Emitter, Literals, Names
from sublet.ops.nn.shapes import FLOATS
from sublet.passes.autodiff import backward
from sublet.runtime.kernel import Backend, Compute, Direct, Immediate, Kernel


class Used:
    """A command as it is used with inputs of certain kinds and certain attributes.

    node      a node of this use, whose values have names that mean nothing
    outputs   the kinds of what it gives; `kind` is that of the first
    recorded  whether a gradient can go through it
    direct    what computes it of arrays, where that is one function with one output
    """

    __slots__ = (
        *("_beside", "_compute", "_keeps", "_library", "_plain", "_see"),
        *("attrs", "direct", "kind", "node", "outputs", "recorded", "scratch"),
    )

    def __init__(self, node: Node, kernel: Kernel, kinds: Kinds) -> None:
        self.node = node
        self.attrs = node.attrs
        self.outputs = tuple(kinds.of(_planned(value)) for value in node.defs)
        self.kind = self.outputs[0]
        self.recorded = any(_floating(v) for v in node.uses) and any(_floating(v) for v in node.defs)
        self.scratch = kinds.of(TensorSpec(DType.U8, (kernel.scratch,))) if kernel.scratch else None
        self._keeps: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._beside: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # the same, beside a number
        self._library: object = None
        self._see: Callable[[Any], Any] | None = None
        self.direct = kernel.function if isinstance(kernel, Direct) else None
        if isinstance(kernel, Immediate):
            self._compute = kernel.at_once()
            self._library, self._see = type(kernel), kernel.over
        else:
            self._compute = _bound(kernel)
        self._plain = self._see is not None and self.scratch is None and len(self.outputs) == 1

    def run(self, inputs: Sequence[Storage | None], pool: Pool) -> list[Storage]:
        """Compute it. Raises whatever the kernel raises."""
        see, library = self._see, self._library
        if self.direct is not None:
            result = Storage(pool, self.kind)
            self.direct(*[one.view.array for one in inputs], result.view.array)  # type: ignore[union-attr]
            return [result]
        if see is None:
            results = [Storage(pool, kind) for kind in self.outputs]
            given = [None if one is None else one.view.array for one in inputs]
            room = None if self.scratch is None else Storage(pool, self.scratch)
            self._compute(given, [one.view.array for one in results], None if room is None else room.view.array)
            return results
        if self._plain and None not in inputs:
            result = Storage(pool, self.kind)
            view, views = result.view, [one.view for one in inputs]  # type: ignore[union-attr]
            over = [one.seen if one.library is library else one.over(library, see) for one in views]
            self._compute(over, (view.seen if view.library is library else view.over(library, see),), None)
            return [result]
        results = [Storage(pool, kind) for kind in self.outputs]
        over = [None if one is None else one.view.over(library, see) for one in inputs]
        room = None if self.scratch is None else Storage(pool, self.scratch)
        to = [one.view.over(library, see) for one in results]
        self._compute(over, to, None if room is None else room.view.over(library, see))
        return results

    @property
    def keeps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The positions of the inputs, and of the outputs, whose elements the rule of differentiation reads."""
        if self._keeps is None:
            self._keeps = _read_by_rule(self.node, ())
        return self._keeps

    def kept_beside(self, position: int, number: Storage) -> tuple[Storage | None, ...] | None:
        """What is kept where a number, by which nobody asks for a gradient, is at a position; None if more than it."""
        if self.recorded and position not in self._beside:
            self._beside[position] = _read_by_rule(self.node, (position,))
        needed, made = self._beside.get(position, ((), ()))
        if made or not {*needed} <= {position}:
            return None
        reads, gives = self.keeps if self.recorded else ((), ())
        return (*(number if i in needed else None for i in reads), *(None for _ in gives))


def used(
    op: str, given: Sequence[Value | None], attrs: dict[str, Any], backends: Sequence[Backend], kinds: Kinds
) -> Used:
    """A command with its kernel.

    Raises SpecError when it does not take such inputs, RunError when nobody computes it.
    """
    names = Names(value.name for value in given if value is not None)
    emit = Emitter(names, Literals(names))
    emit.several(op, *given, **attrs)
    node = emit.nodes[-1]
    for backend in backends:
        kernel = backend.kernel(node, {})
        if kernel is not None:
            return Used(node, kernel, kinds)
    raise RunError(f"no backend of {', '.join(backend.name for backend in backends)} computes {op}")


def _bound(kernel: Kernel) -> Compute:
    return lambda inputs, outputs, scratch: kernel.bind(inputs, outputs, scratch)()


def _planned(value: Value) -> TensorSpec:
    assert isinstance(value.spec, TensorSpec)
    return value.spec


def _floating(value: Value) -> bool:
    return value.spec.dtype in FLOATS


def _read_by_rule(node: Node, numbers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the gradients of a node read of it: with those of all outputs given, and with that of each alone.

    By the inputs at `numbers` nobody asks for one.
    """
    results = [value for value in node.defs if _floating(value)]
    asked = (value for i, value in enumerate(node.inputs) if value is not None and i not in numbers)
    inputs = list(dict.fromkeys(value for value in asked if _floating(value)))
    read: set[Value] = set()
    for given in (results, *([value] for value in results if len(results) > 1)):
        names = Names(value.name for value in (*node.uses, *node.defs))
        emit = Emitter(names, Literals(names))
        emit.nodes.append(node)
        seeds = {value: Value(names.fresh("seed"), value.spec) for value in given}
        try:
            backward(emit, (node,), seeds, inputs)
        except GradientError:
            continue  # there is none: who asks is told
        read.update(value for made in emit.nodes[1:] for value in made.uses)
    positions = tuple(
        tuple(i for i, value in enumerate(values) if value is not None and value in read)
        for values in (node.inputs, node.outputs)
    )
    return positions[0], positions[1]
