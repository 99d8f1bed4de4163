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
from sublet.integrations.registry import installed_integrations
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.ops import lookup
from sublet.ops.slice_maps import no_slices
from sublet.passes.ordering.order_search import peak_live_bytes
from sublet.passes.patching import (
    AreaMaps,
    Axes,
    Front,
    Patches,
    front_up_to,
    map_form_of,
    recompute_factors,
    with_patched_front,
    with_patches,
)
from sublet.passes.sinking import with_late_invariants
from sublet.plan import MemoryPlan
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

PLANNED_CANDIDATES = 2
"""Candidates to plan: those with the fewest live bytes."""


@dataclass(frozen=True)
class PatchedModel:
    """A model with the front computed in patches, or unchanged if no patches need less.

    plan          the plan of the model
    patches       the patches as text; "" for none
    bytes_before  the arena of the unchanged model
    extra_share   additional multiplications and additions, as a share
    kept_bytes    additional bytes kept by the runtime for the kernels of the patches, estimated; 0 if not asked for
    declined      the patches with the smallest arena, if their kernels keep more bytes than the patches save
    """

    model: Model
    plan: MemoryPlan
    patches: str
    bytes_before: int
    extra_share: float
    kept_bytes: int = 0
    declined: PatchedModel | None = None

    @property
    def bytes_after(self) -> int:
        """The bytes of the arena now."""
        return self.plan.arena_bytes

    @property
    def needed_bytes(self) -> int:
        """The bytes of the arena now and of the additional kernels."""
        return self.bytes_after + self.kept_bytes

    @property
    def has_saving(self) -> bool:
        """True if the arena and the kernels of the patches need fewer bytes than the arena of the unchanged model."""
        return self.needed_bytes < self.bytes_before

    @property
    def model_with_remark(self) -> Model:
        """The model; the remark says so if patches save nothing."""
        remarks = (self.model.remark, "" if self.has_saving else self.words)
        return replace(self.model, remark="; ".join(filter(None, remarks)))

    @property
    def words(self) -> str:
        """The result, for people."""
        if self.declined is not None:
            return f"{self.declined.words} The model stays whole: patches would cost more bytes than they save."
        if not self.patches:
            return "Patches save nothing for this model: no patches with a smaller arena were found."
        more = f"{self.extra_share:.1%} more multiplications and additions"
        kept = f", and about {self.kept_bytes:,} bytes of kernels" if self.kept_bytes else ""
        saved = f"{self.bytes_after:,} bytes instead of {self.bytes_before:,}"
        nothing = "" if self.has_saving or self.bytes_after < self.bytes_before else ": these patches save nothing"
        return f"In patches {self.patches} the arena has {saved}, with {more}{kept}{nothing}."


def choose_patches(model: Model, options: Options, text: str, *, for_run: bool = False) -> PatchedModel:
    """Return the model with its front in the patches `text`, such as "4x4@NODE".

    For "auto", the planned candidate with the smallest arena is returned, or the unchanged model. `for_run` adds to
    the arena the bytes kept by the runtime for the kernels of the patches.

    Raises PlanError for patches that do not fit the model, for a model that was changed or recomputes values already,
    and for operators without slice maps.
    """
    if reason := why_no_patches(model):
        raise PlanError(reason)
    plan = plan_memory(model, options)
    before = plan.arena_bytes
    texts = _likely_patches(model, options, for_run=for_run) if text == AUTO else [text]
    tried = [PatchedModel(model, plan, "", before, 0.0)] if text == AUTO else []
    for each in texts:
        changed = with_patches(model, each)
        kept = kept_bytes_of(changed.graph) - kept_bytes_of(model.graph) if for_run else 0
        extra_share = _extra_share_of(model.graph, changed.graph)
        tried.append(PatchedModel(changed, plan_memory(changed, options), each, before, extra_share, kept))
    smallest = min(tried, key=lambda found: (found.bytes_after, found.extra_share))
    best = min(tried, key=lambda found: (found.needed_bytes, found.extra_share))
    return best if best.patches or not smallest.patches else replace(best, declined=smallest)


def why_no_patches(model: Model) -> str:
    """Return the reason why a model cannot be computed in patches; "" if the model has operators with slice maps."""
    ops = {node.op: lookup(node.op) for node in model.graph.walk() if not node.subgraphs}
    if ops and all(op.slices is no_slices for op in ops.values()):
        return (
            f"patches: operators such as {min(ops)} are not supported here, only ONNX operators and commands of "
            "sublet.nn. Convert the model to ONNX, or drop the patches"
        )
    if model.recipe.changed not in ("", "simplify") or model.recipe.again:
        return f"patches must be applied first, but this model is {model.recipe.description}"
    return ""


def kept_bytes_of(graph: Graph) -> int:
    """Return the bytes kept from run to run for the kernels of a graph, estimated from the records of integrations."""
    node_bytes = {prefix: each.node_bytes for each in installed_integrations() for prefix in each.dialects}
    computing = (node for node in graph.walk() if not node.subgraphs and not lookup(node.op).views(node))
    prefixes = (node.op.partition(".")[0] for node in computing)
    return sum(node_bytes.get(prefix, 0) for prefix in prefixes)


def _likely_patches(model: Model, options: Options, *, for_run: bool) -> list[str]:
    """Return the patches with the fewest bytes, live or kept for kernels, at most PLANNED_CANDIDATES."""
    ranked: list[tuple[int, float, str]] = []
    graph, form = model.graph, map_form_of(model)
    least = sum(count_products(node) for node in graph.walk())
    for name, front in _fronts_of(graph):
        for grid in _finest_grids(front, MAX_EXTRA_SHARE * least):
            text = str(Patches(*grid, name))
            changed = with_patched_front(graph, text, form)
            alive = peak_live_bytes(with_late_invariants(changed), values_outside_arena(changed, options))
            kept = kept_bytes_of(changed) if for_run else 0
            ranked.append((alive + kept, _extra_share_of(graph, changed), text))
    return [text for _, _, text in sorted(ranked)[:PLANNED_CANDIDATES]]


def _fronts_of(graph: Graph) -> list[tuple[str, Front]]:
    """Return the fronts with an output no larger than any computed before; of neighbours of equal size, the last."""
    least: float = float("inf")
    fronts: dict[tuple[int, int], tuple[str, Front]] = {}
    known: dict[tuple[str, Axes], AreaMaps | str] = {}
    run = 0
    for node in graph.nodes:
        nbytes = sum(value.nbytes for value in node.defs)
        if nbytes > least:
            run += 1
        elif nbytes:
            front = front_up_to(graph, node.name, known)
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
