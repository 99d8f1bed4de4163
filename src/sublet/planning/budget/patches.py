"""Patch-wise execution of a front, chosen: up to where, and in how many patches, judged by plans.

A front ends where its output is no larger than any before. Of each grid the bytes alive are counted first, then the
best few are planned. The halo of each patch is computed twice, but no more multiplications and additions than asked.
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
"""Multiplications and additions more than those of the model, as a share, that chosen patches may take."""

GRIDS = (
    tuple((parts, 1) for parts in (2, 3, 4, 6, 8, 12, 16)),
    tuple((parts, parts) for parts in (2, 3, 4, 5, 6, 7, 8)),
)
"""Rows and columns: bands, squares. Of each kind more of them compute more twice."""

FIRST_OPSET = 10
"""Of ONNX: from there on Slice takes its numbers as operands."""

PLANNED = 2
"""Candidates that are planned."""


@dataclass(frozen=True)
class InPatches:
    """A model whose front is computed in patches, or as it was where none of them need less.

    text    which patches; "" for none
    before  bytes of the arena of the model as it was
    after   bytes of the arena now
    extra   multiplications and additions more, as a share
    """

    model: Model
    text: str
    before: int
    after: int
    extra: float

    @property
    def words(self) -> str:
        """What was done, for people."""
        if not self.text:
            return "No patches were found that need less."
        more = f"{self.extra:.1%} more multiplications and additions"
        return f"In patches {self.text} the arena has {self.after:,} bytes instead of {self.before:,}, with {more}."


def in_patches(model: Model, options: Options, text: str) -> InPatches:
    """The model with its front in patches as told, "4x4@NODE", or with "auto" in those that need least.

    Raises PlanError for patches that the model cannot have.
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
    """The model with its front in patches as told, and that in its recipe."""
    if model.opsets.get("", FIRST_OPSET) < FIRST_OPSET:
        raise PlanError(f"patches need operator set {FIRST_OPSET} or above: convert the model")
    done = ", ".join([*filter(None, [model.recipe.changed]), PATCHES + text])
    return replace(model, graph=patched(model.graph, text), recipe=replace(model.recipe, changed=done))


def _likely(graph: Graph, options: Options) -> list[str]:
    """The patches with the fewest bytes alive."""
    found: list[tuple[int, float, str]] = []
    least = sum(products(node) for node in graph.walk())
    for name, front in _fronts(graph):
        for grid in _grids(front, MOST_EXTRA * least):
            text = str(Patches(*grid, name))
            changed = patched(graph, text)
            alive = live_bytes(on_demand(changed), outside(changed, options))
            found.append((alive, _extra(graph, changed), text))
    return [text for _, _, text in sorted(found)[:PLANNED]]


def _fronts(graph: Graph) -> list[tuple[str, Front]]:
    """The fronts with an output no larger than any computed before; of neighbours that make as much, the last."""
    least: float = float("inf")
    found: dict[tuple[int, int], tuple[str, Front]] = {}
    run = 0
    for node in graph.nodes:
        nbytes = sum(value.nbytes for value in node.defs)
        if nbytes > least:
            run += 1
        elif nbytes:
            front = front_to(graph, node.name)
            if not isinstance(front, str) and any(axes_of(each) for each in front.nodes):
                least, found[run, nbytes] = nbytes, (node.name, front)
    return list(found.values())


def _grids(front: Front, most: float) -> Iterator[tuple[int, int]]:
    """Of each kind the two finest grids in which no more than `most` operations are made twice."""
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
    """Multiplications and additions of `after` more than of `before`, as a share."""
    least = sum(products(node) for node in before.walk())
    return sum(products(node) for node in after.walk()) / least - 1 if least else 0.0
