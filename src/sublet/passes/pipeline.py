"""Passes by name, and the order they are run in.

A pass is a function Graph -> Graph that keeps what the program computes. All of them go into sub-graphs, are
deterministic and, run twice, do no more than once. What one leaves behind the next may use; `simplify` runs the
cheap ones round and round until nothing changes, then those that come last, until nothing changes at all.
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
"""How often passes are repeated at most; another order may let an expression be seen where it was not before."""


@dataclass(frozen=True)
class Pass:
    """A rewriting of graphs.

    name      as the user chooses it
    run       the pass; what it gives computes the same results
    ensures   what holds afterwards
    requires  what it needs besides a legal graph, in words
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
"""Each can make work for the others."""

FUSING = (
    Pass("fuse", fused, "one command where there is one for a group of them", "values of a group have one reader"),
    Pass("chain", with_chains, "long element-wise work on large tensors is done block by block"),
)
"""What a fused command computes is hidden in it: differentiate before, or let its gradient be by parts."""

ORDERING = (
    Pass("late-constants", with_late_constants, "a constant is filled in right before it is read first"),
    Pass("order", ordered, "no more live bytes at the peak than before, as far as estimated"),
)

RECALL = Pass("recall", recalled, "no value is kept beyond the peak next to a concatenation it is copied into")
"""Costs copies to save memory: for training, after all that simplifies and before an order is chosen."""

PASSES = {each.name: each for each in (*SIMPLIFYING, *FUSING, RECALL, *ORDERING)}
"""All passes by name."""


def run_passes(graph: Graph, passes: Sequence[str | Pass]) -> Graph:
    """The graph after each of the passes, or names of them, in turn.

    Raises SubletError for a name that no pass has, GraphError, which names the pass, when one breaks the graph.
    """
    for entry in passes:
        each = entry if isinstance(entry, Pass) else _named(entry)
        before, graph = graph, each.run(graph)
        if graph != before:
            _verified(graph, each)
    return graph


def _verified(graph: Graph, after: Pass) -> None:
    found = [Finding(f.rule, f"after the pass {after.name}, {f.where}", f.what, f.fix) for f in findings(graph)]
    if found:
        raise GraphError(found)


def simplify(graph: Graph, *, order: bool = True) -> Graph:
    """The graph with nothing needless in it, commands fused, and, unless `order` is False, in an order of less memory.

    Raises GraphError when the graph is not legal.
    """
    verify(graph)
    return settled(graph, lambda before: _simplified(before, order), ROUNDS)


def _simplified(graph: Graph, order: bool) -> Graph:
    graph = _settled(graph)
    graph = _settled(run_passes(graph, FUSING[:1]))
    return run_passes(graph, [*FUSING[1:], *(ORDERING if order else ())])


def _settled(graph: Graph) -> Graph:
    return settled(graph, lambda before: run_passes(before, SIMPLIFYING), ROUNDS)


def _named(name: str) -> Pass:
    if name not in PASSES:
        raise SubletError(f"there is no pass {name!r}; there are {', '.join(PASSES)}")
    return PASSES[name]
