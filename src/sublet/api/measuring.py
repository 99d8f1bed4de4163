"""Measured seconds of the nodes of a model on this machine, cached on disk: costs for the search within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.ir.graph import Value
from sublet.ir.model import Model
from sublet.runtime.backends.registry import AUTO, backend_names, backends_of
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.tuning import Tuner

MAX_MEASURED_BYTES = 2 << 30
"""Maximum bytes of operands for timing one node. Larger nodes are not measured."""


def measure_node_seconds(
    model: Model,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    constants: Mapping[Value, Array] | None = None,
    workspace: int = MAX_MEASURED_BYTES,
) -> tuple[dict[str, float], str]:
    """Return the seconds of the root-level nodes by name, and a remark on how many were measured.

    Each node runs with the first backend with a kernel for the node, on operands made up by the tuner, with at most
    `workspace` bytes. Nodes measured before come from the cache.
    """
    backends = backends_of(backend_names(backend), model)
    seconds = Tuner(backends, model.opsets, workspace).seconds(model.graph, constants or {})
    total = len(model.graph.nodes)
    return seconds, f"from {len(seconds)} of {total} nodes measured on this machine, the rest by operations and bytes"
