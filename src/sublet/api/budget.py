"""Memory budgets: the search for programs of a model that fit, with costs predicted or measured on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.analysis.options import Options
from sublet.ir.graph import Value
from sublet.ir.model import Model
from sublet.passes.rewriting import is_pure
from sublet.plan import MemoryPlan
from sublet.planning.budget.cost_model import MODELLED_COSTS
from sublet.planning.budget.search import BudgetSearch, ModelPreparation
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


def search_budget(
    model: Model,
    options: Options,
    *,
    measure: bool = False,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    preparation: ModelPreparation | None = None,
    known_plan: MemoryPlan | None = None,
) -> BudgetSearch:
    """Return the search for programs of a model within memory budgets.

    measure      predict the cost by the measured seconds of the nodes, see `measure_node_seconds`
    backend      the backends to measure
    preparation  the preparation of changed models for planning
    known_plan   the plan of the unchanged model, if available
    """
    seconds, costs = measure_node_seconds(model, backend) if measure else (None, MODELLED_COSTS)
    return BudgetSearch(model, options, seconds, costs, preparation, known_plan=known_plan)


def can_rematerialize(model: Model) -> bool:
    """Return True if a budget search may compute some node of the model again."""
    return not model.recipe.again and any(is_pure(node) for node in model.graph.walk())
