"""A training step as one graph: forward, backward and update, to be planned and run like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sublet.analysis.options import Options
from sublet.base.errors import GradientError, SpecError
from sublet.ir.graph import Graph, Value, While
from sublet.ir.model import Model, as_model
from sublet.ir.walk import needs
from sublet.nn.affordable import cheapest, taken_back
from sublet.nn.graph import Graph as WrittenGraph
from sublet.nn.lines import at_line, user_line
from sublet.nn.micro_batches import accumulated
from sublet.nn.optimizers import Optimizer
from sublet.nn.tensor import Tensor, told
from sublet.nn.writer import graph_of
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff import PLAIN, SQRT, TREE, Checkpoints, backward, differentiable, reached, with_zeros
from sublet.passes.late_updates import with_late_updates
from sublet.passes.order import ordered
from sublet.passes.pipeline import run_passes, simplify
from sublet.planning.pipeline import plan_memory

QUICK = "best_fit_by_size"
"""The strategy that orders are judged by."""


def gradients(
    of: Tensor, wrt: Sequence[Tensor], seed: Tensor | None = None, *, checkpoint: Checkpoints = None
) -> list[Tensor]:
    """The gradients of a tensor by others of its graph, written after it; their gradients can be asked for again.

    `seed` is the gradient of `of` itself, 1 everywhere when nothing is said. What `of` does not depend on has zeros.
    Inside a loop or branch only what is written there is differentiated: by what was computed before it, `of` must not
    depend on `wrt`. Raises GradientError, which begins with the user's line: for that, for a value that is no
    floating-point number, is random, or is computed from `wrt` by a command without a gradient.

    `checkpoint` says what loops store for their gradients, where their number of rounds is a constant: every round
    ("plain"); what every k-th round begins with, and the rounds between are computed again (an integer k; "sqrt": near
    the root of the rounds); or a tree of such segments in segments ("tree"). The gradients are the same. A dict says
    it by the names of loops.
    """
    graph = graph_of(of)
    if not isinstance(graph, WrittenGraph):
        if checkpoint is not None:
            raise SpecError(at_line("a dynamic graph differentiates what ran: it takes no checkpoint"))
        return graph.gradients(of, _several(wrt), seed)
    target, values = graph.own(of), [graph.own(tensor) for tensor in _several(wrt)]
    start = None if seed is None else graph.own(seed)
    if start is not None and start.spec != target.spec:
        raise GradientError(at_line(f"the seed {told(seed)} must be like {told(of)}"))
    emit = graph.emit
    with graph.whole():
        emit.source = user_line()
        try:
            _require_inside(graph, target, values)
            start = start or emit.filled(1, spec_of(target))
            found = backward(emit, tuple(emit.nodes), {target: start}, values, checkpoint)
        except GradientError as error:
            raise GradientError(at_line(str(error))) from None
        made = with_zeros(emit, found, values)
    return [graph.tensor(value) for value in made]


def _require_inside(graph: WrittenGraph, target: Value, values: Sequence[Value]) -> None:
    """Raise GradientError when `target` depends on `values` by nodes outside the loop or branch that is open."""
    inside = graph.emit.nodes
    outer = reached([node for emit in graph.around for node in emit.nodes], values).difference(values)
    read = [target, *(value for node in inside for value in needs(node))]
    via = next((value for value in read if value in outer and target in reached(inside, [value])), None)
    if via is not None:
        raise GradientError(
            f"%{target.name} depends on what is differentiated by, through %{via.name}, which is computed outside of "
            f"this loop or branch: compute it inside, or ask for the gradient by %{via.name}"
        )


def train_step(
    loss: Tensor,
    parameters: Sequence[Tensor],
    optimizer: Optimizer,
    *,
    name: str = "loss",
    checkpoint: Checkpoints = None,
    micro_batches: int | Sequence[int] = 1,
    smaller_statistics: bool = False,
    budget: int | str | None = None,
) -> Model:
    """One step of training: computes `loss`, a scalar, and lets `optimizer` update the parameters in place.

    The result goes to `sublet.compile` or `sublet.plan_memory`; each run gives the outputs of the graph, and the loss
    under `name`. The gradients of parameters are not kept: each is consumed as early as the data allows, or, where that
    costs no memory, at the end of the step: a run that fails before leaves the parameters as they were.
    `checkpoint` is how loops are stored, see `gradients`.
    `micro_batches` computes the step over so many parts of the batch, in a loop over slices of the inputs in place: the
    loss and the gradients are those of the whole batch but for rounding. All inputs of one axis or more that are read
    have the batch as their first axis, and commands must see one sample at a time. Batch normalisation sees smaller
    batches, and is refused unless `smaller_statistics`. Dropout draws from another key in each part. Several numbers
    are choices for the budget.
    `budget` is the most bytes that the arena may have, as `sublet.plan_memory` plans the step: values are computed
    again where it needs more, and loops are stored, unless `checkpoint` says how, in the way that fits at the least
    time predicted (docs/budget.md). What kernels ask for besides is counted by `compile(step, budget=)`.
    Raises CapacityError where that is impossible or no way was found.
    Raises GradientError for a loss or parameter that has no gradient; the graph is then as it was before.
    """
    graph = graph_of(loss)
    if not isinstance(graph, WrittenGraph):
        raise SpecError(at_line("a dynamic graph computes at once: let it minimize(loss, optimizer) in each step"))
    chosen = _several(parameters)
    if loss.shape != ():
        raise GradientError(at_line(f"the loss is {told(loss)}: it must be one number; take its mean"))
    if not chosen:
        raise GradientError(at_line("there are no parameters to train"))
    if isinstance(optimizer, type) or not hasattr(optimizer, "write"):
        raise SpecError(at_line(f"{optimizer!r} is no optimiser: give one like sublet.SGD(0.1)"))

    def write(stored: Checkpoints, parts: int) -> None:
        graph.output(name, loss)
        _require_dependence(graph, loss, chosen)
        if parts > 1:
            found = accumulated(graph, loss, chosen, parts, smaller_statistics=smaller_statistics)
        with graph.scope(graph.unused("step")):
            found = found if parts > 1 else gradients(loss, chosen, checkpoint=stored)
            optimizer.write(graph, chosen, found)

    batches = _batches(micro_batches)
    if budget is None and len(batches) > 1:
        raise SpecError(
            at_line(f"micro_batches={micro_batches!r} are choices for a budget: give one number, or a budget")
        )

    with graph.whole():
        if budget is None:
            write(checkpoint, *batches)
            return step_of(graph)
        return _within(graph, write, _ways(graph, checkpoint, batches), budget)


def _within(
    graph: WrittenGraph,
    write: Callable[[Checkpoints, int], None],
    ways: Mapping[str, tuple[Checkpoints, int]],
    budget: int | str,
) -> Model:
    """The step of the cheapest of the ways, which is written to the graph."""
    made = {way: partial(taken_back, graph, partial(write, *how), step_of) for way, how in ways.items()}
    way, step = cheapest(made, budget)
    write(*ways[way])
    return step


def step_of(source: WrittenGraph | Graph | Model) -> Model:
    """A step as `train_step` leaves it: of less memory, with its updates at the end where that costs none."""
    step = less_memory(source)
    return replace(step, graph=with_late_updates(step.graph, _planned_bytes))


def _ways(graph: WrittenGraph, checkpoint: Checkpoints, batches: Sequence[int]) -> dict[str, tuple[Checkpoints, int]]:
    """How loops may be stored, and in how many micro-batches, by what that is called; the plainest first."""
    ways: dict[str, tuple[Checkpoints, int]] = {}
    for parts in batches:
        several = checkpoint is None and parts == 1 and _loops(graph)
        of = f"{parts} micro-batches" if parts > 1 else "the whole batch"
        for stored in (PLAIN, SQRT, TREE) if several else (checkpoint,):
            ways[f"{of}, loops stored {stored}" if several else of] = stored, parts
    return ways


def _batches(given: int | Sequence[int]) -> list[int]:
    """The numbers of micro-batches that were given, the fewest first. Raises SpecError for what is none."""
    numbers = [given] if isinstance(given, int) else list(given)
    if not numbers or not all(type(number) is int and number >= 1 for number in numbers):
        raise SpecError(at_line(f"micro_batches={given!r} must be an integer from 1 on, or several"))
    return sorted(set(numbers))


def _several(tensors: Sequence[Tensor]) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        raise SpecError(at_line(f"{told(tensors)} is one tensor: give a list of them"))
    return list(tensors)


def _loops(graph: WrittenGraph) -> bool:
    """Whether there are loops, in branches too."""
    waiting = list(graph.emit.nodes)
    for node in waiting:
        waiting.extend(inner for sub in node.subgraphs for inner in sub.nodes)
    return any(isinstance(node, While) for node in waiting)


def _require_dependence(graph: WrittenGraph, loss: Tensor, parameters: Sequence[Tensor]) -> None:
    values = [graph.own(tensor) for tensor in parameters]
    if differentiable(loss.value) and loss.value not in reached(graph.emit.nodes, values):
        raise GradientError(at_line(f"the loss {told(loss)} depends on none of the parameters"))


def less_memory(source: WrittenGraph | Graph | Model) -> Model:
    """A network with nothing needless in it, commands fused, that recalls what it can, in an order of less memory.

    `train_step` ends with it. It is for models that were read, and for graphs with gradients and updates of one's own;
    results stay what they are.
    Where there are loops or branches, an order is judged by planning, which knows more about them than an estimate.
    """
    model = as_model(source)
    graph = run_passes(simplify(model.graph, order=False), ["late-constants", "recall"])
    planned = any(node.subgraphs for node in graph.nodes)
    recipe = replace(model.recipe, changed=less_memory.__name__)
    return replace(model, graph=ordered(graph, _planned_bytes if planned else None), recipe=recipe)


def _planned_bytes(graph: Graph) -> tuple[int, int]:
    """The arena that a quick packing finds, and what none can go below."""
    plan = plan_memory(graph, Options(strategy=QUICK, io="bound"))
    return plan.arena_bytes, plan.lower_bound_bytes
