"""Commands specialized for inputs of certain kinds: the kernel and the result kinds, looked up once per use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sublet.base.errors import GradientError, RunError
from sublet.base.names import NameGenerator
from sublet.base.tensor import DType, TensorSpec
from sublet.dynamic.tensor_storage import BlockPool, KindRegistry, TensorStorage
from sublet.ir.graph import Node, Value
from sublet.ops import lookup
from sublet.ops.emitter import Emitter, LiteralPool
from sublet.ops.nn.command import PREFIX, spec_of
from sublet.ops.nn.rules import FLOATS
from sublet.passes.autodiff import backward
from sublet.runtime.kernel import Array, Backend, Call, Compute, Direct, Immediate, Kernel, Operand

# Immediate arithmetic and comparison of small tensors: NumPy's functions start faster than ATen's.

MOST_ELEMENTS = 4096
"""Most elements of a small tensor; with more elements, the start time of a function does not matter."""

FLOATING = (DType.F32, DType.F64)
COUNTING = (DType.I32, DType.I64)
EVERY = (*FLOATING, *COUNTING)

FUNCTIONS: Mapping[str, tuple[str, tuple[DType, ...]]] = {
    "add": ("add", EVERY),
    "sub": ("subtract", EVERY),
    "mul": ("multiply", EVERY),
    "div": ("divide", FLOATING),
    "neg": ("negative", EVERY),
    "abs": ("absolute", EVERY),
    "square": ("square", EVERY),
    "sqrt": ("sqrt", FLOATING),
    "equal": ("equal", EVERY),
    "not_equal": ("not_equal", EVERY),
    "less": ("less", EVERY),
    "less_equal": ("less_equal", EVERY),
    "greater": ("greater", EVERY),
    "greater_equal": ("greater_equal", EVERY),
}
"""Commands with the same result bits in every library: NumPy's function, and its types."""


class SmallTensors:
    """The backend of small tensors, for graphs computing at once."""

    name = "numpy"

    def __init__(self) -> None:
        quiet = copy_context()  # a context without NumPy's warnings of overflow and NaN
        quiet.run(np.seterr, all="ignore")
        self._run = quiet.run

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return NumPy's function for small tensors of one type; None otherwise."""
        function, types = FUNCTIONS.get(node.op.removeprefix(PREFIX), ("", ()))
        if not function or None in node.inputs or not node.plannable:
            return None
        specs = [spec_of(value) for value in (*node.uses, *node.defs)]
        fits = all(0 < spec.size <= MOST_ELEMENTS for spec in specs)
        same = len({spec_of(value).dtype for value in node.uses}) == 1 and specs[0].dtype in types
        return _Function(partial(self._run, getattr(np, function))) if fits and same else None


def has_context_errors() -> bool:
    """True if NumPy keeps the error state in a context variable, as from version 2.0 on."""
    return int(np.__version__.split(".")[0]) >= 2


@dataclass(frozen=True)
class _Function:
    """A kernel calling a function of NumPy."""

    function: Callable[..., Any]
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        return partial(self.function, *inputs, outputs[0])


class SpecializedCommand:
    """A command with attributes, specialized for inputs of certain kinds.

    node      a node of the command, with arbitrary value names
    outputs   the kinds of the results; `kind` is the first
    recorded  True if a gradient can pass through the command
    direct    the function of arrays computing the command, for a command equal to one function with one output
    scratch   the kind of the scratch memory; None for no scratch
    """

    __slots__ = (
        *("_beside", "_compute", "_keeps", "_library", "_plain", "_see", "_views"),
        *("attrs", "direct", "kind", "node", "outputs", "recorded", "scratch"),
    )

    def __init__(self, node: Node, kernel: Kernel, kinds: KindRegistry) -> None:
        self.node = node
        self.attrs = node.attrs
        self.outputs = tuple(kinds.kind_of(_tensor_spec(value)) for value in node.defs)
        self.kind = self.outputs[0]
        self.recorded = any(_is_floating(v) for v in node.uses) and any(_is_floating(v) for v in node.defs)
        self.scratch = kinds.kind_of(TensorSpec(DType.U8, (kernel.scratch,))) if kernel.scratch else None
        self._keeps: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        # `keeps` for a number input without a gradient, by the position of the number
        self._beside: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._views = _views_of_inputs(node)
        self._library: object = None
        self._see: Callable[[Any], Any] | None = None
        self.direct = kernel.function if isinstance(kernel, Direct) else None
        if isinstance(kernel, Immediate):
            self._compute = kernel.at_once()
            self._library, self._see = type(kernel), kernel.library_view
        else:
            self._compute = _compute_by_binding(kernel)
        self._plain = self._see is not None and self.scratch is None and len(self.outputs) == 1

    def run(self, inputs: Sequence[TensorStorage | None], pool: BlockPool) -> list[TensorStorage]:
        """Compute the command into new storages, and return the storages. Raises any error of the kernel.

        The results of a command that computes nothing, as a reshape or a slice of rows, are views of the inputs.
        """
        if self._views:
            bases = [inputs[position] for position, _ in self._views]
            if not any(base is None or base.is_rewritten for base in bases):
                shares = zip(bases, self.outputs, self._views, strict=True)
                return [base.part(kind, offset) for base, kind, (_, offset) in shares if base is not None]
        see, library = self._see, self._library
        if self.direct is not None:
            result = TensorStorage(pool, self.kind)
            self.direct(*[one.view.array for one in inputs], result.view.array)  # type: ignore[union-attr]
            return [result]
        if see is None:
            results = [TensorStorage(pool, kind) for kind in self.outputs]
            arrays = [None if one is None else one.view.array for one in inputs]
            scratch = None if self.scratch is None else TensorStorage(pool, self.scratch)
            self._compute(arrays, [one.view.array for one in results], None if scratch is None else scratch.view.array)
            return results
        if self._plain and None not in inputs:
            result = TensorStorage(pool, self.kind)
            view, views = result.view, [one.view for one in inputs]  # type: ignore[union-attr]
            operands = [one.seen if one.library is library else one.over(library, see) for one in views]
            self._compute(operands, (view.seen if view.library is library else view.over(library, see),), None)
            return [result]
        results = [TensorStorage(pool, kind) for kind in self.outputs]
        operands = [None if one is None else one.view.over(library, see) for one in inputs]
        scratch = None if self.scratch is None else TensorStorage(pool, self.scratch)
        results_seen = [one.view.over(library, see) for one in results]
        self._compute(operands, results_seen, None if scratch is None else scratch.view.over(library, see))
        return results

    @property
    def keeps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The positions of the inputs, and of the outputs, with elements read by the gradient rule."""
        if self._keeps is None:
            self._keeps = _positions_read_by_rule(self.node, ())
        return self._keeps

    def saved_beside_number(self, position: int, number: TensorStorage) -> tuple[TensorStorage | None, ...] | None:
        """Return the storages to save for gradients if the input at `position` is a number without a gradient.

        The storages are in the order of `keeps`, with None for elements not needed. The result is None if the gradient
        rule reads more than the number.
        """
        if self.recorded and position not in self._beside:
            self._beside[position] = _positions_read_by_rule(self.node, (position,))
        inputs_read, outputs_read = self._beside.get(position, ((), ()))
        if outputs_read or not {*inputs_read} <= {position}:
            return None
        reads, gives = self.keeps if self.recorded else ((), ())
        return (*(number if i in inputs_read else None for i in reads), *(None for _ in gives))


def specialize_command(
    op: str, given: Sequence[Value | None], attrs: dict[str, Any], backends: Sequence[Backend], kinds: KindRegistry
) -> SpecializedCommand:
    """Return a command specialized for inputs, with the kernel of the first backend with a kernel.

    Raises SpecError for inputs not accepted by the command, RunError for a command without a kernel.
    """
    names = NameGenerator(value.name for value in given if value is not None)
    emit = Emitter(names, LiteralPool(names))
    emit.all_outputs(op, *given, **attrs)
    node = emit.nodes[-1]
    for backend in backends:
        kernel = backend.kernel(node, {})
        if kernel is not None:
            return SpecializedCommand(node, kernel, kinds)
    raise RunError(f"no backend among {', '.join(backend.name for backend in backends)} has a kernel for {op}")


def _views_of_inputs(node: Node) -> tuple[tuple[int, int], ...]:
    """Return for each output the position of the input with all bytes of the output, and their offset there.

    The result is empty if an output is not such a view. A view needs whole elements: an offset of a multiple of the
    size of an element.
    """
    if node.subgraphs:
        return ()
    found = {share.output: (share.input, share.offset) for share in lookup(node.op).views(node)}
    specs = {i: _tensor_spec(value) for i, value in enumerate(node.outputs) if value is not None}
    fits = all(
        i in found and spec.dtype.bits >= 8 and not found[i][1] * 8 % spec.dtype.bits for i, spec in specs.items()
    )
    return tuple(found[i] for i in specs) if fits and len(specs) == len(node.outputs) else ()


def _compute_by_binding(kernel: Kernel) -> Compute:
    """Return a function computing by a bound kernel, for a kernel without immediate execution."""
    return lambda inputs, outputs, scratch: kernel.bind(inputs, outputs, scratch)()


def _tensor_spec(value: Value) -> TensorSpec:
    """Return the tensor spec of a value."""
    assert isinstance(value.spec, TensorSpec)
    return value.spec


def _is_floating(value: Value) -> bool:
    """True if the value is of a floating-point type."""
    return value.spec.dtype in FLOATS


def _positions_read_by_rule(node: Node, numbers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of the inputs and of the outputs read by the gradient rule of a node.

    The positions cover gradients for all outputs together, and for each output alone. Inputs at the positions `numbers`
    get no gradient.
    """
    results = [value for value in node.defs if _is_floating(value)]
    with_gradient = (value for i, value in enumerate(node.inputs) if value is not None and i not in numbers)
    inputs = list(dict.fromkeys(value for value in with_gradient if _is_floating(value)))
    read: set[Value] = set()
    for given in (results, *([value] for value in results if len(results) > 1)):
        names = NameGenerator(value.name for value in (*node.uses, *node.defs))
        emit = Emitter(names, LiteralPool(names))
        emit.nodes.append(node)
        seeds = {value: Value(names.fresh("seed"), value.spec) for value in given}
        try:
            backward(emit, (node,), seeds, inputs)
        except GradientError:
            continue  # no gradient: requesting it raises GradientError
        read.update(value for made in emit.nodes[1:] for value in made.uses)
    positions = tuple(
        tuple(i for i, value in enumerate(values) if value is not None and value in read)
        for values in (node.inputs, node.outputs)
    )
    return positions[0], positions[1]
