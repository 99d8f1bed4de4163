"""Seconds of the nodes of a model on this machine, measured once and remembered: what a search for a budget weighs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.ir.graph import Value
from sublet.ir.model import Model
from sublet.runtime.backends.by_name import AUTO, backends_of, names_of
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.tuning import Tuner

WORKSPACE_BYTES = 2 << 30
"""Operands that timing one node may take."""


def measured(
    model: Model,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    constants: Mapping[Value, Array] | None = None,
    workspace: int = WORKSPACE_BYTES,
) -> tuple[dict[str, float], str]:
    """Seconds by node of the root level, with the backends asked first, and words on how many were measured.

    Operands are made up, and need `workspace` bytes at most. What was measured once is taken from the cache.
    """
    backends = backends_of(names_of(backend), model)
    seconds = Tuner(backends, model.opsets, workspace).seconds(model.graph, constants or {})
    total = len(model.graph.nodes)
    return seconds, f"from {len(seconds)} of {total} nodes measured on this machine, the rest by operations and bytes"
