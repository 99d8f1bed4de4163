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
from sublet.ir.recipe import PATCHES
from sublet.passes.on_demand import on_demand
from sublet.passes.ordering.search import live_bytes
from sublet.passes.patching.areas import axes_of, extents
from sublet.passes.patching.patched import Front, Patches, front_to, patched, places
from sublet.planning.budget.costs import products
from sublet.planning.pipeline import outside, plan_memory

AUTO = "auto"
MOST_EXTRA = 0.15
"""Additional multiplications and additions of chosen patches, as a share of those of the model."""

GRIDS = (
    tuple((parts, 1) for parts in (2, 3, 4, 6, 8, 12, 16)),
    tuple((parts, parts) for parts in (2, 3, 4, 5, 6, 7, 8)),
)
"""Grids (rows, columns) of each kind: bands, squares. Within a kind, a finer grid recomputes more."""

FIRST_OPSET = 10
"""The first ONNX operator set in which Slice takes its bounds as operands."""

PLANNED = 2
"""Candidates to plan: those with the fewest live bytes."""


@dataclass(frozen=True)
class InPatches:
    """A model with the front computed in patches, or unchanged if no patches need less.

    patches       the patches as text; "" for none
    bytes_before  the arena of the unchanged model
    bytes_after   the arena now
    extra_share   additional multiplications and additions, as a share
    """

    model: Model
    text: str
    before: int
    after: int
    extra: float

    @property
    def words(self) -> str:
        """The result, for people."""
        if not self.text:
            return "No patches were found that need less."
        more = f"{self.extra:.1%} more multiplications and additions"
        return f"In patches {self.text} the arena has {self.after:,} bytes instead of {self.before:,}, with {more}."


def in_patches(model: Model, options: Options, text: str) -> InPatches:
    """Return the model with its front in the patches `text`, such as "4x4@NODE".

    For "auto", the planned candidate with the smallest arena is returned, or the unchanged model.

    Raises PlanError for patches that do not fit the model, and for a model that was changed or recomputes values
    already.
    """
    if model.recipe.changed not in ("", "simplify") or model.recipe.again:
        raise PlanError(f"patches are made before anything else: this model was {model.recipe.words}")
    before = plan_memory(model, options).arena_bytes
    texts = _likely(model.graph, options) if text == AUTO else [text]
    tried = [InPatches(model, "", before, before, 0.0)] if text == AUTO else []
    for each in texts:
        changed = with_patches(model, each)
        after = plan_memory(changed, options).arena_bytes
        tried.append(InPatches(changed, each, before, after, _extra(model.graph, changed.graph)))
    return min(tried, key=lambda found: (found.after, found.extra))


def with_patches(model: Model, text: str) -> Model:
    """Return the model with its front in the patches `text`, also recorded in the recipe."""
    if model.opsets.get("", FIRST_OPSET) < FIRST_OPSET:
        raise PlanError(f"patches need operator set {FIRST_OPSET} or above: convert the model")
    done = ", ".join([*filter(None, [model.recipe.changed]), PATCHES + text])
    return replace(model, graph=patched(model.graph, text), recipe=replace(model.recipe, changed=done))


def _likely(graph: Graph, options: Options) -> list[str]:
    """Return the patches with the fewest live bytes, at most PLANNED_CANDIDATES."""
    ranked: list[tuple[int, float, str]] = []
    least = sum(products(node) for node in graph.walk())
    for name, front in _fronts(graph):
        for grid in _grids(front, MOST_EXTRA * least):
            text = str(Patches(*grid, name))
            changed = patched(graph, text)
            alive = live_bytes(on_demand(changed), outside(changed, options))
            ranked.append((alive, _extra(graph, changed), text))
    return [text for _, _, text in sorted(ranked)[:PLANNED]]


def _fronts(graph: Graph) -> list[tuple[str, Front]]:
    """Return the fronts with an output no larger than any computed before; of neighbours of equal size, the last."""
    least: float = float("inf")
    fronts: dict[tuple[int, int], tuple[str, Front]] = {}
    run = 0
    for node in graph.nodes:
        nbytes = sum(value.nbytes for value in node.defs)
        if nbytes > least:
            run += 1
        elif nbytes:
            front = front_to(graph, node.name)
            if not isinstance(front, str) and any(axes_of(each) for each in front.nodes):
                least, fronts[run, nbytes] = nbytes, (node.name, front)
    return list(fronts.values())


def _grids(front: Front, most: float) -> Iterator[tuple[int, int]]:
    """Yield the two finest grids of each kind within `most` repeated operations."""
    size = extents(front.result, front.axes)
    cost = {node.name: products(node) for node in front.nodes}
    for kind in GRIDS:
        fitting = []
        for rows, columns in kind:
            if size is None or rows > size[0] or columns > size[1]:
                break
            more = sum(cost[name] * (times - 1) for name, times in places(front, rows, columns).items())
            if more > most:
                break
            fitting.append((rows, columns))
        yield from fitting[-2:]


def _extra(before: Graph, after: Graph) -> float:
    """Return the additional multiplications and additions of `after`, as a share of those of `before`."""
    least = sum(products(node) for node in before.walk())
    return sum(products(node) for node in after.walk()) / least - 1 if least else 0.0
