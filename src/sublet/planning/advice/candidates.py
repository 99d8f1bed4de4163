"""Candidates for advice: alternative options, and alternative graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from sublet.analysis.options import Options
from sublet.base.bytesize import human
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS, GIVEN, LESS
from sublet.plan import MemoryPlan
from sublet.plan.advice import Kind
from sublet.planning.advice.hypothetical import halve_precision, in_schedule_order, propose_overwrites, store_constants
from sublet.planning.advice.region_split import propose_splits

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
    for split in propose_splits(graph, plan.peak_point.node):
        yield idea("model", split.what, split.how, split.graph)
    for name in _producers_at_peak(plan)[:MAX_PRODUCERS]:
        for over in propose_overwrites(graph, name):
            yield idea("what-if", over.what, over.how, over.graph)
    half = halve_precision(graph, plan)
    if half is not None:
        yield idea("what-if", half.what, half.how, half.graph)
