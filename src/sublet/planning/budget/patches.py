"""Choice of patches for patch-wise execution of the front of a network: its last node and the grid, judged by plans.

A front may end at a node whose output is no larger than any output before. For each grid the live bytes are counted
first; then the few best grids are planned. Patches compute their halos twice, up to a limit of extra multiplications
and additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sublet.analysis.options import Options
from sublet.base.errors import PlanError
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.ir.recipe import PATCHES_PREFIX
from sublet.passes.ordering.order_search import peak_live_bytes
from sublet.passes.patching.patch_based import Front, Patches, front_up_to, recompute_factors, with_patched_front
from sublet.passes.sinking import with_late_invariants
from sublet.planning.budget.cost_model import count_products
from sublet.planning.pipeline import plan_memory, values_outside_arena

AUTO = "auto"
MAX_EXTRA_SHARE = 0.15
"""Additional multiplications and additions of chosen patches, as a share of those of the model."""

PATCH_GRIDS = (
    tuple((parts, 1) for parts in (2, 3, 4, 6, 8, 12, 16)),
    tuple((parts, parts) for parts in (2, 3, 4, 5, 6, 7, 8)),
)
"""Grids (rows, columns) of each kind: bands, squares. Within a kind, a finer grid recomputes more."""

MIN_OPSET = 10
"""The first ONNX operator set in which Slice takes its bounds as operands."""

PLANNED_CANDIDATES = 2
"""Candidates to plan: those with the fewest live bytes."""


@dataclass(frozen=True)
class PatchedModel:
    """A model with the front computed in patches, or unchanged if no patches need less.

    patches       the patches as text; "" for none
    bytes_before  the arena of the unchanged model
    bytes_after   the arena now
    extra_share   additional multiplications and additions, as a share
    """

    model: Model
    patches: str
    bytes_before: int
    bytes_after: int
    extra_share: float

    @property
    def words(self) -> str:
        """The result, for people."""
        if not self.patches:
            return "No patches with a smaller arena were found."
        more = f"{self.extra_share:.1%} more multiplications and additions"
        saved = f"{self.bytes_after:,} bytes instead of {self.bytes_before:,}"
        return f"In patches {self.patches} the arena has {saved}, with {more}."


def choose_patches(model: Model, options: Options, text: str) -> PatchedModel:
    """Return the model with its front in the patches `text`, such as "4x4@NODE".

    For "auto", the planned candidate with the smallest arena is returned, or the unchanged model.

    Raises PlanError for patches that do not fit the model, and for a model that was changed or recomputes values
    already.
    """
    if model.recipe.changed not in ("", "simplify") or model.recipe.again:
        raise PlanError(f"patches must be applied first, but this model is {model.recipe.description}")
    before = plan_memory(model, options).arena_bytes
    texts = _likely_patches(model.graph, options) if text == AUTO else [text]
    tried = [PatchedModel(model, "", before, before, 0.0)] if text == AUTO else []
    for each in texts:
        changed = with_patches(model, each)
        after = plan_memory(changed, options).arena_bytes
        tried.append(PatchedModel(changed, each, before, after, _extra_share_of(model.graph, changed.graph)))
    return min(tried, key=lambda found: (found.bytes_after, found.extra_share))


def with_patches(model: Model, text: str) -> Model:
    """Return the model with its front in the patches `text`, also recorded in the recipe."""
    if model.opsets.get("", MIN_OPSET) < MIN_OPSET:
        raise PlanError(f"patches need operator set {MIN_OPSET} or above: convert the model")
    done = ", ".join([*filter(None, [model.recipe.changed]), PATCHES_PREFIX + text])
    return replace(model, graph=with_patched_front(model.graph, text), recipe=replace(model.recipe, changed=done))


def _likely_patches(graph: Graph, options: Options) -> list[str]:
    """Return the patches with the fewest live bytes, at most PLANNED_CANDIDATES."""
    ranked: list[tuple[int, float, str]] = []
    least = sum(count_products(node) for node in graph.walk())
    for name, front in _fronts_of(graph):
        for grid in _finest_grids(front, MAX_EXTRA_SHARE * least):
            text = str(Patches(*grid, name))
            changed = with_patched_front(graph, text)
            alive = peak_live_bytes(with_late_invariants(changed), values_outside_arena(changed, options))
            ranked.append((alive, _extra_share_of(graph, changed), text))
    return [text for _, _, text in sorted(ranked)[:PLANNED_CANDIDATES]]


def _fronts_of(graph: Graph) -> list[tuple[str, Front]]:
    """Return the fronts with an output no larger than any computed before; of neighbours of equal size, the last."""
    least: float = float("inf")
    fronts: dict[tuple[int, int], tuple[str, Front]] = {}
    run = 0
    for node in graph.nodes:
        nbytes = sum(value.nbytes for value in node.defs)
        if nbytes > least:
            run += 1
        elif nbytes:
            front = front_up_to(graph, node.name)
            if not isinstance(front, str) and any(each.window for along in front.along for each in along):
                least, fronts[run, nbytes] = nbytes, (node.name, front)
    return list(fronts.values())


def _finest_grids(front: Front, most: float) -> Iterator[tuple[int, int]]:
    """Yield the two finest grids of each kind within `most` repeated operations."""
    size = front.extents
    cost = {node.name: count_products(node) for node in front.nodes}
    for kind in PATCH_GRIDS:
        fitting = []
        for rows, columns in kind:
            if rows > size[0] or columns > size[1]:
                break
            more = sum(cost[name] * (times - 1) for name, times in recompute_factors(front, rows, columns).items())
            if more > most:
                break
            fitting.append((rows, columns))
        yield from fitting[-2:]


def _extra_share_of(before: Graph, after: Graph) -> float:
    """Return the additional multiplications and additions of `after`, as a share of those of `before`."""
    least = sum(count_products(node) for node in before.walk())
    return sum(count_products(node) for node in after.walk()) / least - 1 if least else 0.0
