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
from sublet.plan.advised import Kind
from sublet.planning.advice.halves import halves
from sublet.planning.advice.what_ifs import as_scheduled, halved_precision, overwritten, stored_constants

SMALL_ALIGNMENT = 16
MAKERS = 8
"""Nodes at the peak for which an overwrite of an operand is tried."""

Reread = Callable[[str], Model]
"""Reads the model again, rewritten by a level of the optimizer, or unchanged."""


@dataclass(frozen=True, slots=True)
class Idea:
    """A change to plan: `make` returns the model and the options with the change."""

    kind: Kind
    what: str
    how: str
    make: Callable[[], tuple[Model, Options]]


def ideas(
    model: Model, options: Options, plan: MemoryPlan, reread: Reread | None, levels: tuple[str, ...]
) -> Iterator[Idea]:
    """Yield every candidate, the cheapest to realize first."""
    yield from _orders(model, options)
    if reread is not None:
        yield from _levels(model, options, reread, levels)
    yield from _choices(model, options)
    if options.streams == 1:
        yield from _graphs(model, options, plan)


def _orders(model: Model, options: Options) -> Iterator[Idea]:
    """Yield the candidate of an order with less memory."""
    if options.order == GIVEN:
        less = replace(options, order=LESS)
        yield Idea("option", "another order", "--order less", lambda: (model, less))


def _levels(model: Model, options: Options, reread: Reread, levels: tuple[str, ...]) -> Iterator[Idea]:
    """Yield candidates with the graph as in the file, and from the optimizer at each level."""
    less = replace(options, order=LESS)
    for level in (AS_IS, *levels):
        if level == model.recipe.optimize:
            continue
        what = "the graph as in the file" if level == AS_IS else "ONNX Runtime's optimiser"
        words = f"--optimize {level}"
        yield Idea("option", what, words, partial(_reread, reread, level, options))
        if options.order == GIVEN:
            both = partial(_reread, reread, level, less)
            yield Idea("option", f"{what}, in another order", f"{words} --order less", both)


def _reread(reread: Reread, level: str, options: Options) -> tuple[Model, Options]:
    """Return the model read again at an optimizer level, with the options."""
    return reread(level), options


def _choices(model: Model, options: Options) -> Iterator[Idea]:
    """Yield candidates with other options: memory of the caller, alignment, streams."""
    if options.io == "arena":
        bound = replace(options, io="bound")
        yield Idea("option", "inputs and outputs in memory of the caller", "--io bound", lambda: (model, bound))
    if options.weights == "arena":
        outside = replace(options, weights="bound")
        yield Idea("option", "weights outside the arena", "--weights bound", lambda: (model, outside))
    if options.alignment > SMALL_ALIGNMENT:
        fine = replace(options, alignment=SMALL_ALIGNMENT)
        what = f"tensors aligned to {SMALL_ALIGNMENT} bytes, if the kernels allow that"
        yield Idea("option", what, f"--align {SMALL_ALIGNMENT}", lambda: (model, fine))
    if options.streams > 1:
        serial = replace(options, streams=1)
        yield Idea("option", "one stream", "--streams 1", lambda: (model, serial))


def _around(plan: MemoryPlan) -> list[str]:
    """Return the node at the peak, then the producers of the values live there, the largest value first."""
    alive = set(plan.peak.values)
    made = [place for place in plan.in_arenas if place.value in alive and place.producer]
    makers = (place.producer for place in sorted(made, key=lambda place: -place.region.nbytes))
    return list(dict.fromkeys((plan.at_peak.node, *makers)))


def _graphs(model: Model, options: Options, plan: MemoryPlan) -> Iterator[Idea]:
    """Yield candidates with a changed graph, in the order that was planned."""
    given = replace(options, order=GIVEN)
    graph = as_scheduled(model.graph, plan.schedule)

    def idea(kind: Kind, what: str, how: str, changed: Graph) -> Idea:
        return Idea(kind, what, how, lambda: (replace(model, graph=changed), given))

    stored = stored_constants(graph)
    if stored is not None:
        what = f"{stored.count} values that depend on no input, computed before and stored"
        how = f"fold them when exporting: the weights grow from {human(stored.before)} to {human(stored.after)}"
        yield idea("model", what, how, stored.graph)
    for split in halves(graph, plan.at_peak.node):
        yield idea("model", split.what, split.how, split.graph)
    for name in _around(plan)[:MAKERS]:
        for over in overwritten(graph, name):
            yield idea("what-if", over.what, over.how, over.graph)
    half = halved_precision(graph, plan)
    if half is not None:
        yield idea("what-if", half.what, half.how, half.graph)
