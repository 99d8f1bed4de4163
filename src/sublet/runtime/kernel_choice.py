"""Choice of a kernel for every node, and the scratch memory of the kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sublet.base.errors import KernelError, RunError, SubletError
from sublet.base.formatting import abbreviated_list
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.op import lookup
from sublet.runtime.kernel import AliasAware, Array, Backend, Call, Kernel
from sublet.runtime.memory import ValuePlaces
from sublet.runtime.moves import bind_copies, byte_copies
from sublet.runtime.program import operands


@dataclass(frozen=True, slots=True)
class ChosenKernel:
    """The kernel of a node, with the name of its backend."""

    kernel: Kernel
    backend: str


Kernels = Mapping[str, ChosenKernel | None]
"""The kernel by node name; None for a node that only copies bytes and runs from the facts of its op."""

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
        if byte_copies(node) is not None and not any(value.name in assumed for value in node.defs):
            chosen[node.name] = None
            continue
        first = preferred.get(node.name)
        order = sorted(backends, key=lambda backend: backend.name != first) if first else backends
        kernels = ((_kernel(backend, node, constants), backend.name) for backend in order)
        fitting = (
            ChosenKernel(kernel, name)
            for kernel, name in kernels
            if kernel is not None and _respects_aliases(kernel, node)
        )
        chosen[node.name] = next(fitting, None)
        if chosen[node.name] is None:
            missing.append(node)
    if missing:
        nodes = abbreviated_list([f"{node.op} (node {node.name})" for node in missing], SHOWN)
        known = ", ".join(dict.fromkeys(backend.name for backend in backends))
        raise RunError(f"no backend has a kernel for {nodes}. Backends: {known}.")
    return chosen


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


def bind_node(node: Node, places: ValuePlaces, kernels: Kernels) -> Call:
    """Return the call that computes a node of a graph returned by `with_scratch`."""
    chosen = kernels[node.name]
    if chosen is None:
        copies = byte_copies(node)
        assert copies is not None
        return bind_copies(copies, places)
    scratch = places.array(node.scratch) if chosen.kernel.scratch and node.scratch else None
    try:
        return chosen.kernel.bind(operands(node.inputs, places), operands(node.outputs, places), scratch)
    except SubletError:
        raise
    except Exception as error:  # raised by a library that opens the kernel on binding
        what = f"cannot be bound by {chosen.backend}: {type(error).__name__}: {error}"
        raise KernelError(f"node {node.name}, {node.op}: {what}") from error
