"""Advice: plans with other orders, other options and other graphs, made to measure the memory each would save."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

from sublet.analysis.options import Options, Progress
from sublet.base.errors import PlanError, SubletError
from sublet.base.formatting import abbreviated_list, human
from sublet.base.optional_imports import is_installed
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.registry import installed_integrations, resolve
from sublet.ir.dataflow import reads_inside, rename_values, results
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS, GIVEN, LESS
from sublet.ops import lookup, present_shares
from sublet.passes.ordering.order_search import search_order
from sublet.passes.sinking import input_independent_nodes, with_late_invariants
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule
from sublet.plan.verdict import Advice, Advised, Kind, buffers_at_peak
from sublet.planning.pipeline import candidate_schedules, plan_memory, values_outside_arena

# Hypothetical graphs: variants of a graph with a single change, to measure the memory the change would save.

MAX_LISTED_READERS = 3


@dataclass(frozen=True, slots=True)
class HypotheticalGraph:
    """A changed graph, the change, and the way to make the change."""

    what: str
    how: str
    graph: Graph


@dataclass(frozen=True, slots=True)
class StoredConstants:
    """A graph with constants stored as weights: the number of new weights, and the bytes of all weights."""

    graph: Graph
    count: int
    bytes_before: int
    bytes_after: int


def in_schedule_order(graph: Graph, schedule: Schedule) -> Graph:
    """Return the graph with its nodes, on every level, in the order of a serial schedule."""
    nodes = {node.name: node for node in graph.nodes}
    return replace(graph, nodes=tuple(_with_scheduled_bodies(nodes[step.node], schedule) for step in schedule.steps))


def _with_scheduled_bodies(node: Node, schedule: Schedule) -> Node:
    """Return a loop or branch with scheduled sub-graphs; other nodes unchanged."""
    bodies = schedule.bodies.get(node.name, ())
    if isinstance(node, While):
        return replace(node, body=in_schedule_order(node.body, bodies[0]))
    if isinstance(node, CaseOf):
        arms = (in_schedule_order(arm, body) for arm, body in zip(node.arms, bodies, strict=True))
        return replace(node, arms=tuple(arms))
    return node


def store_constants(graph: Graph) -> StoredConstants | None:
    """Return the graph with values computed from constants alone as weights; None if no value qualifies.

    Values of the root level only. None as well if a stored value would be an output or is unplannable.
    """
    computed = input_independent_nodes(graph)
    rest = tuple(node for node in graph.nodes if node.name not in computed)
    wanted = {*results(graph), *(value for pair in graph.updates for value in pair)}
    wanted.update(*(reads_inside(node) for node in rest))
    made = [value for node in graph.nodes if node.name in computed for value in node.defs if value in wanted]
    if not made or any(value in results(graph) or not value.plannable for value in made):
        return None
    kept = tuple(weight for weight in graph.weights if weight in wanted)
    changed = replace(graph, nodes=rest, weights=(*kept, *made))
    return StoredConstants(changed, len(made), _total_bytes(graph.weights), _total_bytes(changed.weights))


def _total_bytes(values: tuple[Value, ...]) -> int:
    """Return the bytes of all values together."""
    return sum(value.nbytes for value in values)


def propose_overwrites(graph: Graph, name: str) -> Iterator[HypotheticalGraph]:
    """Yield the graphs in which the node `name` overwrites an operand that later nodes read today.

    In each graph the later readers of one operand read the result of the node instead.
    """
    place = next((i for i, node in enumerate(graph.nodes) if node.name == name and not node.subgraphs), None)
    if place is None:
        return
    node, later = graph.nodes[place], graph.nodes[place + 1 :]
    for result, operand, _ in present_shares(node, lookup(node.op).inplace(node)):
        if operand.spec != result.spec:
            continue
        if operand in graph.weights or operand in results(graph):
            continue
        readers = [each.name for each in later if operand in reads_inside(each)]
        if readers:
            instead = rename_values(replace(graph, nodes=later), {operand: result}, definitions=False)
            changed = replace(graph, nodes=(*graph.nodes[: place + 1], *instead.nodes))
            what = f"{name!r} written over %{operand.name}, if nothing reads %{operand.name} later"
            yield HypotheticalGraph(
                what, f"another network: {abbreviated_list(readers, MAX_LISTED_READERS)} must not read it", changed
            )


def halve_precision(graph: Graph, plan: MemoryPlan) -> HypotheticalGraph | None:
    """Return the graph with the largest buffer at the peak in f16 instead of f32; None if impossible.

    All f32 values sharing the buffer change. Impossible for updated values and weights.
    """
    alive = buffers_at_peak(plan)
    if not alive:
        return None
    first = alive[0].values[0]
    number = next(place.buffer for place in plan.in_arenas if place.value == first)
    names = {place.value for place in plan.in_arenas if place.buffer == number}
    half = {
        value: replace(value, spec=replace(value.spec, dtype=DType.F16))
        for value in graph.values()
        if value.name in names and isinstance(value.spec, TensorSpec) and value.spec.dtype is DType.F32
    }
    if not half or any(value in graph.updated_values or value in graph.weights for value in half):
        return None
    largest = max(half, key=lambda value: value.nbytes)
    others = f" and the {len(half) - 1} that share its bytes" if len(half) > 1 else ""
    what = f"%{largest.name} ({human(largest.nbytes)}, the largest at the peak){others} in f16"
    return HypotheticalGraph(what, "other numbers: half the precision for these tensors", rename_values(graph, half))


SMALL_ALIGNMENT = 16
MAX_PRODUCERS = 8
"""Nodes at the peak for which an overwrite of an operand is tried."""

ReadAgain = Callable[[str], Model]
"""Reads the model again, rewritten by a level of the optimizer, or unchanged."""


@dataclass(frozen=True, slots=True)
class AdviceCandidate:
    """A change to plan: `make` returns the model and the options with the change."""

    kind: Kind
    what: str
    how: str
    make: Callable[[], tuple[Model, Options]]


def list_candidates(
    model: Model, options: Options, plan: MemoryPlan, reread: ReadAgain | None, levels: tuple[str, ...]
) -> Iterator[AdviceCandidate]:
    """Yield every candidate, the cheapest to realize first."""
    yield from _order_candidates(model, options)
    if reread is not None:
        yield from _level_candidates(model, options, reread, levels)
    yield from _option_candidates(model, options)
    if options.streams == 1:
        yield from _graph_candidates(model, options, plan)


def _order_candidates(model: Model, options: Options) -> Iterator[AdviceCandidate]:
    """Yield the candidate of an order with less memory."""
    if options.order == GIVEN:
        less = replace(options, order=LESS)
        yield AdviceCandidate("option", "another order", "--order less", lambda: (model, less))


def _level_candidates(
    model: Model, options: Options, reread: ReadAgain, levels: tuple[str, ...]
) -> Iterator[AdviceCandidate]:
    """Yield candidates with the graph as in the file, and from the optimizer at each level."""
    less = replace(options, order=LESS)
    for level in (AS_IS, *levels):
        if level == model.recipe.optimize:
            continue
        what = "the graph as in the file" if level == AS_IS else "ONNX Runtime's optimiser"
        words = f"--optimize {level}"
        yield AdviceCandidate("option", what, words, partial(_read_again, reread, level, options))
        if options.order == GIVEN:
            both = partial(_read_again, reread, level, less)
            yield AdviceCandidate("option", f"{what}, in another order", f"{words} --order less", both)


def _read_again(reread: ReadAgain, level: str, options: Options) -> tuple[Model, Options]:
    """Return the model read again at an optimizer level, with the options."""
    return reread(level), options


def _option_candidates(model: Model, options: Options) -> Iterator[AdviceCandidate]:
    """Yield candidates with other options: memory of the caller, alignment, streams."""
    if options.io == "arena":
        bound = replace(options, io="bound")
        yield AdviceCandidate(
            "option", "inputs and outputs in the caller's memory", "--io bound", lambda: (model, bound)
        )
    if options.weights == "arena":
        outside = replace(options, weights="bound")
        yield AdviceCandidate("option", "weights outside the arena", "--weights bound", lambda: (model, outside))
    if options.alignment > SMALL_ALIGNMENT:
        fine = replace(options, alignment=SMALL_ALIGNMENT)
        what = f"tensors aligned to {SMALL_ALIGNMENT} bytes, if the kernels allow that"
        yield AdviceCandidate("option", what, f"--align {SMALL_ALIGNMENT}", lambda: (model, fine))
    if options.streams > 1:
        serial = replace(options, streams=1)
        yield AdviceCandidate("option", "one stream", "--streams 1", lambda: (model, serial))


def _producers_at_peak(plan: MemoryPlan) -> list[str]:
    """Return the node at the peak, then the producers of the values live there, the largest value first."""
    alive = set(plan.peak.values)
    made = [place for place in plan.in_arenas if place.value in alive and place.producer]
    makers = (place.producer for place in sorted(made, key=lambda place: -place.region.nbytes))
    return list(dict.fromkeys((plan.peak_point.node, *makers)))


def _graph_candidates(model: Model, options: Options, plan: MemoryPlan) -> Iterator[AdviceCandidate]:
    """Yield candidates with a changed graph, in the order that was planned."""
    given = replace(options, order=GIVEN)
    graph = in_schedule_order(model.graph, plan.schedule)

    def idea(kind: Kind, what: str, how: str, changed: Graph) -> AdviceCandidate:
        return AdviceCandidate(kind, what, how, lambda: (replace(model, graph=changed), given))

    stored = store_constants(graph)
    if stored is not None:
        what = f"{stored.count} values that depend on no input, stored as weights"
        growth = f"the weights grow from {human(stored.bytes_before)} to {human(stored.bytes_after)}"
        how = f"fold them when exporting: {growth}"
        yield idea("model", what, how, stored.graph)
    for propose in (function for each in installed_integrations() for function in each.region_splits):
        for split in resolve(propose)(graph, plan.peak_point.node):
            yield idea("model", split.what, split.how, split.graph)
    for name in _producers_at_peak(plan)[:MAX_PRODUCERS]:
        for over in propose_overwrites(graph, name):
            yield idea("what-if", over.what, over.how, over.graph)
    half = halve_precision(graph, plan)
    if half is not None:
        yield idea("what-if", half.what, half.how, half.graph)


# Evaluation of candidates: plans each change, within a time limit.

MAX_SECONDS = 120.0
"""Seconds of an evaluation. Afterwards no candidate starts."""

OnCandidate = Callable[[AdviceCandidate, tuple[Advice, ...]], None]


def evaluate_candidates(
    plan: MemoryPlan, ideas: Iterable[AdviceCandidate], seconds: float = MAX_SECONDS, trying: OnCandidate | None = None
) -> Advised:
    """Plan each candidate and return the advice, the smallest arena first.

    Candidates that cannot be planned are listed with the reason. No candidate starts after `seconds`. An interrupt ends
    the evaluation and keeps the advice found until then. `trying` is called with each next candidate and the advice
    found until then.
    """
    advice: list[Advice] = []
    failed: list[str] = []
    reason, end = "", monotonic() + seconds
    try:
        for idea in ideas:
            if monotonic() > end:
                reason = f"the time limit of {seconds:g} seconds is over"
                break
            if trying is not None:
                trying(idea, tuple(advice))
            try:
                advice += _evaluate_candidate(plan, idea)
            except SubletError as error:
                failed.append(f"{idea.what}: {error}")
    except KeyboardInterrupt:
        reason = "interrupted"
    return Advised(tuple(sorted(advice, key=lambda each: each.arena_bytes)), tuple(failed), reason)


def _evaluate_candidate(plan: MemoryPlan, idea: AdviceCandidate) -> list[Advice]:
    """Return the advice from planning a candidate; empty if the plan is unchanged.

    Raises KeyboardInterrupt if the search was interrupted.
    """
    changed = plan_memory(*idea.make())
    if changed.stopped == "interrupt":
        raise KeyboardInterrupt
    if changed == plan:
        return []
    saved, outside = plan.arena_bytes - changed.arena_bytes, changed.bound_bytes - plan.bound_bytes
    unplanned = len(changed.outside) - len(plan.outside)
    return [Advice(idea.kind, idea.what, idea.how, changed.arena_bytes, saved, outside, unplanned)]


# Order bound: the lower bound on all orders of a model's nodes, reported beside a plan in an order of less memory.

LOG = logging.getLogger(__name__)

EXACT_HINT = "To optimize order, sharing and offsets together: pip install 'sublet[exact]'"


@dataclass(frozen=True, slots=True)
class OrderBound:
    """A lower bound on all orders of the given nodes, each node run once.

    nbytes       no plan of any order needs fewer bytes; None if unknown
    proof_kind   "cut": a minimum cut at `node`; "search": a refutation of smaller peaks; "start": the inputs alone
    node         the node of the minimum cut
    live_bytes   the peak of live bytes in the order found by the search
    arena_bytes  the arena of the plan
    """

    nbytes: int | None
    proof_kind: str
    node: str
    live_bytes: int
    arena_bytes: int

    @property
    def is_optimal(self) -> bool:
        """True if no order of the nodes can be planned in fewer bytes than the plan."""
        return self.nbytes is not None and self.arena_bytes <= self.nbytes

    @property
    def words(self) -> str:
        """The claim, for people."""
        if self.nbytes is None:
            return "Orders were compared by an estimate: no bound on all orders is proven."
        at = {"cut": f", at node {self.node}", "search": " (by search)"}.get(self.proof_kind, ", for the inputs alone")
        if self.is_optimal:
            return f"The order is optimal: no order of these nodes needs fewer bytes than this arena{at}."
        text = (
            f"No order of these nodes needs fewer than {self.nbytes:,} bytes{at}; this arena has {self.arena_bytes:,}."
        )
        return text if is_installed("ortools") else f"{text} {EXACT_HINT}"

    @property
    def to_json(self) -> dict[str, Any]:
        """The bound as a JSON object."""
        return {
            "lower_bound_bytes": self.nbytes,
            "by": self.proof_kind if self.nbytes is not None else None,
            "node": self.node,
            "live_bytes": self.live_bytes,
            "optimal": self.is_optimal,
            "words": self.words,
        }


def bound_all_orders(model: Model, options: Options, plan: MemoryPlan) -> OrderBound:
    """Return the bound on all orders of a model, with the arena of `plan` for comparison.

    The bound is unknown for bound inputs and outputs, several streams, memory regions, and programs with estimated live
    bytes.
    """
    _, known = search_order(with_late_invariants(model.graph), values_outside_arena(model.graph, options))
    said = known.proven and options.io == "arena" and options.streams == 1 and not options.regions
    by = "search" if known.searched else "cut" if known.node else "start"
    return OrderBound(known.bound if said else None, by, known.node, known.live_bytes, plan.arena_bytes)


MAX_ORDERED_NODES = 4000
"""Nodes of a program. For a larger program, other orders are not tried."""


@dataclass(frozen=True, slots=True)
class OrderAdvice:
    """The result of planning alternative orders.

    arena_bytes   the smallest arena of the other orders; None if none was planned
    words         the result, for people
    order_bound   the lower bound on all orders, if an order of less memory was asked for
    """

    arena_bytes: int | None
    words: str
    order_bound: OrderBound | None = None

    @property
    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        least = None if self.order_bound is None else self.order_bound.to_json
        return {"arena_bytes": self.arena_bytes, "words": self.words, "least": least}


def advise_order(model: Model, options: Options, plan: MemoryPlan, progress: Progress | None = None) -> OrderAdvice:
    """Return the arena of the orders behind `--order less`, for a plan in the model's own order.

    If the options already ask for an order of less memory, the result holds the lower bound on all orders instead.
    """
    if options.order != GIVEN:
        least = bound_all_orders(model, options, plan)
        own = "No order that needs less was found: the order is the model's own."
        words = (
            "The order was chosen for less memory, and differs from the model's own."
            if plan.recipe.order == LESS
            else own
        )
        return OrderAdvice(None, f"{words} {least.words}", least)
    if plan.recipe.order == LESS:
        return OrderAdvice(None, "The order was chosen for less memory, and differs from the model's own.")
    reason = _why_not_tried(model, options)
    if reason:
        return OrderAdvice(None, f"Other orders were not tried: {reason}. Use --order less.")
    orders = candidate_schedules(model.graph, replace(options, order=LESS))
    LOG.info("other orders to try: %d", len(orders) - 1)
    needed = (_arena_bytes_in_order(model, options, order, progress) for order in orders[1:])
    lowest = min((nbytes for nbytes in needed if nbytes is not None), default=None)
    less = lowest is not None and lowest < plan.arena_bytes
    return OrderAdvice(lowest, "Another order needs less." if less else "No order that needs less was found.")


def _arena_bytes_in_order(model: Model, options: Options, order: Schedule, progress: Progress | None) -> int | None:
    """Return the arena bytes of a plan in `order`; None if the plan would move bytes although moves are forbidden."""
    try:
        return plan_memory(model, options, schedule=order, progress=progress).arena_bytes
    except PlanError:
        return None


def _why_not_tried(model: Model, options: Options) -> str:
    """Return the reason for not trying other orders, "" for none."""
    if options.timeout is not None:
        return "the plan has a time limit"
    if options.regions:
        return "the plan has several memory regions"
    count = sum(1 for _ in model.graph.walk())
    return f"the model has {count} nodes, more than {MAX_ORDERED_NODES}" if count > MAX_ORDERED_NODES else ""
