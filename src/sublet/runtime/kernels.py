"""Which kernel computes which node, and the scratch memory the kernels ask for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sublet.base.errors import KernelError, RunError, SubletError
from sublet.base.printable import listed
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.op import lookup
from sublet.runtime.copying import bind_copies, byte_copies
from sublet.runtime.kernel import Array, Backend, Call, Keeping, Kernel
from sublet.runtime.memory import Places
from sublet.runtime.program import operands


@dataclass(frozen=True, slots=True)
class Chosen:
    """The kernel of a node, and the name of the backend it comes from."""

    kernel: Kernel
    backend: str


Kernels = Mapping[str, Chosen | None]
"""By name of the node; None for one that only moves bytes and runs from its facts."""

SHOWN = 10


def choose_kernels(
    graph: Graph,
    backends: Sequence[Backend],
    constants: Mapping[Value, Array],
    preferred: Mapping[str, str] = MappingProxyType({}),
    assumed: Collection[str] = (),
) -> Kernels:
    """For every node the kernel of the first backend that has one; by the node's name one may be `preferred`.

    What makes a value of `assumed` shape is computed by a kernel in any case, which refuses to make another shape.

    Raises RunError naming the nodes that no backend computes.
    """
    chosen: dict[str, Chosen | None] = {}
    missing: list[Node] = []
    for node in graph.walk():
        if isinstance(node, While | CaseOf):
            continue
        if byte_copies(node) is not None and not any(value.name in assumed for value in node.defs):
            chosen[node.name] = None
            continue
        first = preferred.get(node.name)
        order = sorted(backends, key=lambda backend: backend.name != first) if first else backends
        found = ((_kernel(backend, node, constants), backend.name) for backend in order)
        fitting = (Chosen(kernel, name) for kernel, name in found if kernel is not None and _knows_facts(kernel, node))
        chosen[node.name] = next(fitting, None)
        if chosen[node.name] is None:
            missing.append(node)
    if missing:
        nodes = listed([f"{node.op} (node {node.name})" for node in missing], SHOWN)
        known = ", ".join(dict.fromkeys(backend.name for backend in backends))
        raise RunError(f"no backend of {known} computes {nodes}")
    return chosen


def _kernel(backend: Backend, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
    try:
        return backend.kernel(node, constants)
    except SubletError:
        raise
    except Exception as error:  # of a library, or of a backend from outside
        what = f"the backend {backend.name} fails to choose a kernel: {type(error).__name__}: {error}"
        raise RunError(f"node {node.name}, {node.op}: {what}") from error


def scratch_of(kernels: Kernels) -> tuple[tuple[str, int], ...]:
    """(node, bytes) of the scratch memory that kernels ask for."""
    return tuple((name, chosen.kernel.scratch) for name, chosen in kernels.items() if chosen and chosen.kernel.scratch)


def _knows_facts(kernel: Kernel, node: Node) -> bool:
    """Whether the kernel may run where the plan puts views and parts of the node in place."""
    op = lookup(node.op)
    return (isinstance(kernel, Keeping) and kernel.keeps) or not (op.views(node) or op.parts(node))


def bind_node(node: Node, places: Places, kernels: Kernels) -> Call:
    """The call that computes a node of a graph that `with_scratch` returned."""
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
    except Exception as error:  # a library that opens the kernel only now
        what = f"cannot be bound by {chosen.backend}: {type(error).__name__}: {error}"
        raise KernelError(f"node {node.name}, {node.op}: {what}") from error
