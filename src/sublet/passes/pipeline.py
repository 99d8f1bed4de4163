"""All passes by name, and the order in which `simplify` runs the passes.

A pass is a function Graph -> Graph preserving the results of the program. Every pass processes sub-graphs, is
deterministic and idempotent. `simplify` runs the cheap passes to a fixpoint, then fusion and ordering, and repeats both
phases to a fixpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sublet.base.errors import Finding, GraphError, SubletError
from sublet.ir.graph import Graph
from sublet.ops.verify import findings, verify
from sublet.passes.algebra import without_needless_work
from sublet.passes.chains import with_chains
from sublet.passes.common import without_common
from sublet.passes.constants import with_late_constants
from sublet.passes.dead_code import without_dead_code
from sublet.passes.folding import folded
from sublet.passes.fusion import fused
from sublet.passes.order import ordered
from sublet.passes.recall import recalled
from sublet.passes.rewriting import settled

ROUNDS = 20
"""Maximum number of repetitions; a new order can expose an expression to the simplifying passes."""


@dataclass(frozen=True)
class Pass:
    """A graph rewrite.

    name      name chosen by the user
    run       the pass; the returned graph computes the same results
    ensures   postcondition, in words
    requires  precondition besides a legal graph, in words
    """

    name: str
    run: Callable[[Graph], Graph]
    ensures: str
    requires: str = "a legal graph"


SIMPLIFYING = (
    Pass("dead-code", without_dead_code, "every pure node has an output that is read"),
    Pass("fold", folded, "nothing small is computed that is known before the run"),
    Pass("needless", without_needless_work, "no copy, conversion or arithmetic that changes nothing"),
    Pass("common", without_common, "no two pure nodes of equal op, inputs and attributes"),
)
"""Each pass can enable the remaining passes."""

FUSING = (
    Pass("fuse", fused, "one command where there is one for a group of them", "values of a group have one reader"),
    Pass("chain", with_chains, "long element-wise work on large tensors is done block by block"),
)
"""Fusion hides inner values: differentiate before, or give the fused command a gradient by parts."""

ORDERING = (
    Pass("late-constants", with_late_constants, "a constant is filled in right before it is read first"),
    Pass("order", ordered, "no more live bytes at the peak than before, as far as estimated"),
)

RECALL = Pass("recall", recalled, "no value is kept beyond the peak next to a concatenation it is copied into")
"""Trades copies for memory: for training, after the simplifying passes and before an order is chosen."""

PASSES = {each.name: each for each in (*SIMPLIFYING, *FUSING, RECALL, *ORDERING)}
"""All passes by name."""


def run_passes(graph: Graph, passes: Sequence[str | Pass]) -> Graph:
    """Return the graph after running each of the passes, given as `Pass` or by name, in turn.

    Raises SubletError for an unknown name, and GraphError, naming the pass, if a pass returns an illegal graph.
    """
    for entry in passes:
        each = entry if isinstance(entry, Pass) else _named(entry)
        before, graph = graph, each.run(graph)
        if graph != before:
            _verified(graph, each)
    return graph


def _verified(graph: Graph, after: Pass) -> None:
    """Raise GraphError, naming the pass `after`, if the graph is illegal."""
    found = [Finding(f.rule, f"after the pass {after.name}, {f.where}", f.what, f.fix) for f in findings(graph)]
    if found:
        raise GraphError(found)


def simplify(graph: Graph, *, order: bool = True) -> Graph:
    """Return the simplified and fused graph, reordered for lower memory unless `order` is False.

    Raises GraphError if the graph is illegal.
    """
    verify(graph)
    return settled(graph, lambda before: _simplified(before, order), ROUNDS)


def _simplified(graph: Graph, order: bool) -> Graph:
    """Return the graph after one iteration of simplifying, fusing and, if `order`, reordering."""
    graph = _settled(graph)
    graph = _settled(run_passes(graph, FUSING[:1]))
    return run_passes(graph, [*FUSING[1:], *(ORDERING if order else ())])


def _settled(graph: Graph) -> Graph:
    """Return the graph after running the simplifying passes to a fixpoint."""
    return settled(graph, lambda before: run_passes(before, SIMPLIFYING), ROUNDS)


def _named(name: str) -> Pass:
    """Return the pass with this name. Raises SubletError for an unknown name."""
    if name not in PASSES:
        raise SubletError(f"there is no pass {name!r}; there are {', '.join(PASSES)}")
    return PASSES[name]
