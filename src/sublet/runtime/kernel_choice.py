"""Choice of a kernel for every node, and the scratch memory of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from sublet.base.errors import KernelError, RunError, SubletError
from sublet.base.formatting import abbreviated_list
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.op import MEASURE, lookup, row_form
from sublet.runtime.kernel import AliasAware, Array, Backend, Call, Kernel, RowCalls, Strided
from sublet.runtime.memory import RowPlaces, ValuePlaces
from sublet.runtime.moves import bind_copies, byte_copies
from sublet.runtime.program import operands


@dataclass(frozen=True, slots=True)
class ChosenKernel:
    """The kernel of a node, with the name of its backend. `for_row` returns the kernel of a row of the node."""

    kernel: Kernel
    backend: str
    for_row: Callable[[Node], ChosenKernel | None] = field(compare=False)


Kernels = Mapping[str, ChosenKernel | None]
"""The kernel by node name; None for a measurement, or a node that only copies bytes and runs from facts of its op."""

SHOWN = 10


def choose_kernels(
    graph: Graph,
    backends: Sequence[Backend],
    constants: Mapping[Value, Array],
    preferred: Mapping[str, str] = MappingProxyType({}),
    assumed: Collection[str] = (),
) -> Kernels:
    """Return for every node the kernel of the first backend with one; `preferred` names another first backend by node.

    A node with an output of `assumed` shape always gets a kernel: kernels refuse to produce another shape.

    Raises RunError naming the nodes without a kernel.
    """
    chosen: dict[str, ChosenKernel | None] = {}
    missing: list[Node] = []
    for node in graph.walk():
        if isinstance(node, While | CaseOf):
            continue
        if node.op == MEASURE:
            chosen[node.name] = None
            continue
        if byte_copies(node) is not None and not any(value.name in assumed for value in node.defs):
            chosen[node.name] = None
            continue
        first = preferred.get(node.name)
        order = sorted(backends, key=lambda backend: backend.name != first) if first else backends
        chosen[node.name] = _first_kernel(node, order, constants)
        if chosen[node.name] is None:
            missing.append(node)
    if missing:
        nodes = abbreviated_list([f"{node.op} (node {node.name})" for node in missing], SHOWN)
        known = ", ".join(dict.fromkeys(backend.name for backend in backends))
        raise RunError(f"no backend has a kernel for {nodes}. Backends: {known}.")
    return chosen


def _first_kernel(node: Node, backends: Sequence[Backend], constants: Mapping[Value, Array]) -> ChosenKernel | None:
    """Return the kernel of the first backend with a kernel that fits the node."""
    for backend in backends:
        kernel = _kernel(backend, node, constants)
        if kernel is not None and _respects_aliases(kernel, node) and _respects_strides(kernel, node):
            return ChosenKernel(kernel, backend.name, partial(_first_kernel, backends=backends, constants=constants))
    return None


def _kernel(backend: Backend, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
    try:
        return backend.kernel(node, constants)
    except SubletError:
        raise
    except Exception as error:  # raised by a library, or by a backend of the caller
        what = f"the backend {backend.name} failed to choose a kernel: {type(error).__name__}: {error}"
        raise RunError(f"node {node.name}, {node.op}: {what}") from error


def scratch_of(kernels: Kernels) -> tuple[tuple[str, int], ...]:
    """Return (node, bytes) for every kernel with scratch memory."""
    return tuple((name, chosen.kernel.scratch) for name, chosen in kernels.items() if chosen and chosen.kernel.scratch)


def _respects_aliases(kernel: Kernel, node: Node) -> bool:
    """True if the kernel may run where the plan puts views and concat operands of the node in place."""
    op = lookup(node.op)
    return (isinstance(kernel, AliasAware) and kernel.keeps) or not (op.views(node) or op.parts(node))


def _respects_strides(kernel: Kernel, node: Node) -> bool:
    """True if the kernel takes strides in the operands where the op promises so for every kernel."""
    strided = lookup(node.op).strided(node)
    return not strided or (isinstance(kernel, Strided) and kernel.takes_strides(strided, ()))


def bind_node(node: Node, places: ValuePlaces, kernels: Kernels) -> Call:
    """Return the call that computes a node of a graph returned by `with_scratch`."""
    chosen, in_rows = kernels[node.name], places.memory.in_rows
    if in_rows and not in_rows.isdisjoint(value.name for value in (*node.uses, *node.defs)):
        return _bind_in_rows(node, places, chosen)
    if chosen is None:
        copies = byte_copies(node)
        assert copies is not None
        return bind_copies([(copies, places)])
    return _bind_kernel(node, places, chosen)


def _bind_kernel(node: Node, places: ValuePlaces, chosen: ChosenKernel) -> Call:
    scratch = places.array(node.scratch) if chosen.kernel.scratch and node.scratch else None
    try:
        return chosen.kernel.bind(operands(node.inputs, places), operands(node.outputs, places), scratch)
    except SubletError:
        raise
    except Exception as error:  # raised by a library that opens the kernel on binding
        what = f"cannot be bound by {chosen.backend}: {type(error).__name__}: {error}"
        raise KernelError(f"node {node.name}, {node.op}: {what}") from error


def _bind_in_rows(node: Node, places: ValuePlaces, chosen: ChosenKernel | None) -> Call:
    """Return the call of a node with operands in rows: one call with strides, or a call a row."""
    rows = [(row, RowPlaces(places, i, count, sliced)) for i, count, (row, sliced) in _rows_of(node)]
    copies = [(byte_copies(row), where) for row, where in rows]
    if copies and copies[0][0] is not None:
        return bind_copies([(each, where) for each, where in copies if each is not None])
    inside = places.memory.in_rows
    strided = [
        [i for i, value in enumerate(values) if value is not None and value.name in inside]
        for values in (node.inputs, node.outputs)
    ]
    if chosen is None:
        raise RunError(f"node {node.name}, {node.op}: its operands lie in rows, which copies of bytes cannot take")
    if isinstance(chosen.kernel, Strided) and chosen.kernel.takes_strides(*strided):
        return _bind_kernel(node, places, chosen)
    kernels = [chosen.for_row(row) for row, _ in rows]
    present = [kernel for kernel in kernels if kernel is not None]
    available = node.scratch.nbytes if node.scratch else 0
    if not rows or len(present) < len(rows) or any(each.kernel.scratch > available for each in present):
        raise RunError(
            f"node {node.name}, {node.op}: no backend computes a row of the node in the planned memory. "
            "Plan with Options(in_rows=False)."
        )
    calls = [
        _bind_kernel(replace(row, scratch=node.scratch), where, kernel)
        for (row, where), kernel in zip(rows, present, strict=True)
    ]
    return RowCalls(calls)


def _rows_of(node: Node) -> Iterator[tuple[int, int, tuple[Node, Mapping[str, Value]]]]:
    """Yield (number, count, (node, sliced operands)) for every row of a node; nothing if the node has no row form."""
    form = row_form(node)
    for number in range(form.count if form else 0):
        assert form is not None
        yield number, form.count, form.row(number)
